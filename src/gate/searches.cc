#include "gate/searches.h"

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/log.h"
#include "gate/name.h"
#include "gate/screen.h"

namespace isola::gate {

namespace {
constexpr size_t kMostPlaces = 1024;
constexpr size_t kShownText = 512, kShownMethod = 32, kShownPath = 200;  // of what a sandbox says, in records

// A name was made lower case before anybody could look at it, and with it a value that was asked for as one.
void blot_whatever_case(std::string& text, std::string_view value) {
  auto alike = [](char a, char b) {
    auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return lower(a) == lower(b);
  };
  for (auto from = text.begin();;) {
    auto at = std::search(from, text.end(), value.begin(), value.end(), alike);
    if (at == text.end()) return;
    from = at + static_cast<ptrdiff_t>(value.size());
    std::fill(at, from, '*');
  }
}
}  // namespace

const Searches::Target& Searches::target(const std::string& binding) const {
  static const Target kNone;
  auto at = targets_.find(binding);
  return at == targets_.end() ? kNone : at->second;
}

bool Searches::any_for(std::string_view name, uint16_t port) const {
  return everywhere_ || std::ranges::any_of(places_, [&](const Place& place) {
           return place.ports.contain(port) &&
                  std::ranges::any_of(place.names, [&](const Rule& rule) { return rule.matches_name(name); });
         });
}

void Searches::blot(Event& event) const {
  Screen blots(automaton_, [](const std::string&) { return false; });
  for (auto [text, most] :
       {std::pair(&event.name, kMaxName), std::pair(&event.address, kShownText), std::pair(&event.rule, kShownText),
        std::pair(&event.method, kShownMethod), std::pair(&event.path, kShownPath)}) {
    blots.whole(*text);
    for (const auto* list : {&now_, &past_})
      for (const auto& bound : *list)
        for (auto part : bound->searched())
          if (scan::is_searchable(part)) blot_whatever_case(*text, part);
    text->resize(std::min(text->size(), most));
  }
}

void Searches::set(const Bindings& bindings) {
  for (const auto& bound : bindings.all()) {
    Place place{bound->names, bound->ports};
    if (bound->value.empty() || std::ranges::find(places_, place) != places_.end()) continue;
    if (places_.size() < kMostPlaces)
      places_.push_back(std::move(place));
    else
      everywhere_ = true;
  }
  auto among = [](const std::vector<std::shared_ptr<const Bound>>& list, const Bound& one) {
    return std::any_of(list.begin(), list.end(),
                       [&](const auto& other) { return other->value.view() == one.value.view(); });
  };
  std::vector<std::shared_ptr<const Bound>> now, past;
  for (const auto& bound : bindings.all())
    if (!bound->value.empty()) now.push_back(bound);
  size_t total = 0;
  std::set<std::string_view> different;
  for (const auto& bound : now)
    if (different.insert(bound->value.view()).second) total += bound->value.size();
  const int64_t moment = milliseconds_now();
  for (const auto* list : {&now_, &past_})
    for (const auto& bound : *list) {
      if (among(now, *bound) || among(past, *bound)) continue;
      // A token that opens nothing any more must not take the room of a key that still does.
      if (bound->until != 0 && bound->until + vault::kStaysKnown < moment) continue;
      if (total + bound->value.size() > kMostValues) continue;  // the oldest are forgotten
      total += bound->value.size();
      past.push_back(bound);
    }
  std::map<std::string, Target> targets;
  for (const auto* list : {&now, &past})
    for (const auto& bound : *list)
      targets.try_emplace(bound->binding.id, Target{bound->binding.secret, bound->binding.blocks});
  if (past.empty()) {
    automaton_ = bindings.automaton();
  } else {
    std::vector<scan::Value> values;
    for (const auto* list : {&now, &past})
      for (const auto& bound : *list)
        for (auto part : bound->searched()) values.push_back({bound->binding.id, part});
    auto made = scan::Automaton::make(values);
    // What was searched for before still is; of what is new nothing is known, and nothing may pass.
    if (!made) {
      log::error("gate", "the values of a sandbox cannot be searched for: {}", made.error().message);
      missing_ = made.error().message;
      return;
    }
    automaton_ = (*made)->empty() ? nullptr : std::move(*made);
  }
  now_ = std::move(now);
  past_ = std::move(past);
  targets_ = std::move(targets);
}

}  // namespace isola::gate
