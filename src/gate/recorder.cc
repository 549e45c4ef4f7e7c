#include "gate/recorder.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace isola::gate {

namespace {

constexpr size_t kLookBack = 32;
constexpr size_t kRanges = 64, kLastLines = 80;
constexpr char kOthers[] = "(others)";

std::string key_of(const Event& event) {
  return (event.name.empty() ? "[" + event.address + "]" : event.name) + ":" + std::to_string(event.port);
}

bool same(const Event& a, const Event& b) {
  return a.name == b.name && a.port == b.port && a.reason == b.reason && a.protocol == b.protocol &&
         a.address == b.address && a.rule == b.rule && a.method == b.method && a.path == b.path &&
         a.binding == b.binding;
}

}  // namespace

Recorder::Recorder(std::string sandbox, std::function<void(const Event&)> sink)
    : sandbox_(std::move(sandbox)), sink_(std::move(sink)), since_(milliseconds_now()) {}

// Names that were only made up take at most half of the room: those that were reached must be seen.
Recorder::Counts& Recorder::counts_of(const Event& event) {
  const bool denied = event.kind == Event::Kind::denied;
  auto key = key_of(event);
  auto it = counts_.find(key);
  if (it == counts_.end()) {
    bool room = counts_.size() < kDestinations && (!denied || only_denied_ < kDestinations / 2);
    if (!room) return counts_[kOthers];
    it = counts_.emplace(std::move(key), Counts{}).first;
    only_denied_ += denied;
  } else if (!denied && it->second.denied > 0 && !it->second.allowed) {
    --only_denied_;
  }
  if (!denied) it->second.allowed = true;
  return it->second;
}

void Recorder::record(Event event, Clock::time_point now) {
  event.sandbox = sandbox_;
  event.when = milliseconds_now();
  auto& counts = counts_of(event);
  switch (event.kind) {
    case Event::Kind::denied: ++counts.denied; return note_denial(event, now);
    case Event::Kind::allowed: {
      ++counts.connections;
      note_use(event);
      break;
    }
    case Event::Kind::closed:
    case Event::Kind::moved:
      counts.up += event.up;
      counts.down += event.down;
      break;
    case Event::Kind::lost:
    case Event::Kind::injected:
    case Event::Kind::redacted:
    case Event::Kind::minted:
    case Event::Kind::restarted:
    case Event::Kind::count_: break;
  }
  tell(std::move(event), now);
}

// Each event is an entry in the ledger: beyond a rate those of one destination are one, once a second.
void Recorder::tell(Event event, Clock::time_point now) {
  if (each_.take(now)) return sink_(event);
  // Whose credential was used is never lost in a sum; for which request, is.
  auto key = std::pair(event.kind, key_of(event) + " " + event.binding);
  if (merged_.size() >= kMerged && !merged_.contains(key)) {
    key.second = kOthers + (" " + event.binding);
    event.name = kOthers;
    event.address.clear();
    event.rule.clear();
    event.port = 0;
    event.host_verified = false;
    event.method.clear(), event.path.clear();
  }
  auto [it, first] = merged_.emplace(std::move(key), event);
  if (first) return;
  Event& known = it->second;
  ++known.count;
  known.up += event.up;
  known.down += event.down;
  known.when = event.when;
  known.host_verified &= event.host_verified;
  if (known.address != event.address) known.address.clear();
  if (known.method != event.method) known.method.clear();
  if (known.path != event.path) known.path.clear();
}

void Recorder::flush(Clock::time_point now, bool last) {
  for (const auto& [key, event] : std::exchange(merged_, {})) sink_(event);
  if (!std::exchange(held_back_, false)) return;
  for (size_t i = 0; i < denials_.size(); ++i) {
    auto& [when, told] = told_[i];
    if (denials_[i].count == told) continue;
    if (!last && now - when < std::chrono::seconds(1)) {
      held_back_ = true;
      continue;
    }
    Event event = denials_[i];
    event.count -= std::exchange(told, event.count);
    when = now;
    sink_(event);
  }
}

void Recorder::note_denial(Event& event, Clock::time_point now) {
  const bool short_look = event.name != kOthers && denials_.size() > kLookBack;
  const size_t first = short_look ? denials_.size() - kLookBack : 0;
  for (size_t i = denials_.size(); i-- > first;) {
    if (!same(denials_[i], event)) continue;
    Event& known = denials_[i];
    ++known.count;
    known.when = event.when;
    auto& [when, told] = told_[i];
    if (now - when < std::chrono::seconds(1)) {
      held_back_ = true;
      return;
    }
    event.count = known.count - told;
    when = now, told = known.count;
    return sink_(event);
  }
  // Names can be made up by the thousand, and each event is an entry in the ledger: beyond a rate they are one.
  if (event.name != kOthers && !fresh_.take(now)) {
    event.name = kOthers;
    event.address.clear();
    event.rule.clear();
    event.port = 0;
    event.method.clear(), event.path.clear();
    // Whose sake it was for stays, as in tell(): a flood of names does not make a refused credential anonymous.
    return note_denial(event, now);
  }
  if (denials_.size() == kDenials) {
    Event oldest = std::move(denials_.front());
    oldest.count -= told_.front().second;
    denials_.pop_front(), told_.pop_front();
    if (oldest.count > 0) sink_(oldest);
  }
  denials_.push_back(event);
  told_.emplace_back(now, 1);
  sink_(event);
}

// What a policy would have to say for this connection: the name, with the mark that a private address needs; and where
// the name led to another inside place, or to the host itself, that very address as well.
void Recorder::note_use(const Event& event) {
  auto use = [&](const std::string& target, bool local) {
    auto it = used_.find(target);
    bool room = pairs_ < kPairs && (it != used_.end() || used_.size() < kDestinations);
    if (it != used_.end() && it->second.ports.contains(event.port)) room = true;
    if (!room) {
      if (left_out_.size() < kPairs) left_out_.insert(std::hash<std::string>()(target));
      return;
    }
    auto& known = used_[target];
    known.local |= local;
    if (event.hello != Reason::allowed) known.hello = event.hello;
    pairs_ += known.ports.insert(event.port).second;
  };
  if (event.name.empty()) return use(event.address, false);
  auto address = Address::parse(event.address);
  Place place = address ? place_of(*address).place : Place::open;
  use(event.name, place == Place::local);
  if (event.own_address || (place != Place::open && place != Place::local)) use(event.address, false);
}

Policy Recorder::smallest_policy() const {
  Policy out;
  for (const auto& [target, use] : used_) {
    auto rule = make_rule("allow", target, "", use.local);
    if (!rule) continue;
    auto& ranges = rule->ports.ranges;
    for (uint16_t port : use.ports) {
      // A rule has at most 64 ranges: what lies side by side is one.
      if (!ranges.empty() && ranges.back().second + 1 == port)
        ranges.back().second = port;
      else if (ranges.size() < kRanges)
        ranges.emplace_back(port, port);
    }
    out.rules.push_back(std::move(*rule));
  }
  return out;
}

std::string Recorder::smallest_policy_text(size_t most) const {
  const Policy policy = smallest_policy();
  size_t left_out = left_out_.size();
  for (const auto& [target, use] : used_) {
    size_t ranges = 0, last = 0;
    for (uint16_t port : use.ports) ranges += port != last + 1, last = port;
    left_out += ranges > kRanges;
  }
  std::string out;
  size_t rules = 0;
  for (; rules < policy.rules.size(); ++rules) {
    auto line = to_text(policy.rules[rules]) + "\n";
    if (out.size() + line.size() + kLastLines > most) break;
    out += line;
  }
  left_out += policy.rules.size() - rules;
  out += "default deny\n";
  for (const auto& [target, use] : used_) {
    if (use.hello == Reason::allowed || out.size() + target.size() + 2 * kLastLines > most) continue;
    out +=
        "# " + target + " was asked for by TLS in a way that this refuses: " + std::string(to_string(use.hello)) + "\n";
  }
  if (left_out > 0) out += "# too many names: " + std::to_string(left_out) + " are not in this list\n";
  return out;
}

std::string Recorder::report(const std::string& policy) const {
  using nlohmann::json;
  json denials = json::array(), destinations = json::object();
  size_t room = 30'000;  // a report is one message
  for (auto it = denials_.rbegin(); it != denials_.rend() && room > 500; ++it) {
    json one = {{"protocol", it->protocol == Event::Protocol::dns ? "dns" : "tcp"},
                {"name", it->name},
                {"address", it->address},
                {"port", it->port},
                {"reason", std::string(to_string(it->reason))},
                {"rule", it->rule},
                {"count", it->count},
                {"when", it->when}};
    if (!it->method.empty()) one["method"] = it->method, one["path"] = it->path;
    if (!it->binding.empty()) one["binding"] = it->binding, one["secret"] = it->secret;
    room -= std::min(room, it->name.size() + it->rule.size() + it->path.size() + 300);
    denials.push_back(std::move(one));
  }
  room = 40'000;
  for (const auto& [key, counts] : counts_) {
    if (room < 400) break;
    room -= std::min(room, key.size() + 100);
    destinations[key] = {{"connections", counts.connections},
                         {"denied", counts.denied},
                         {"bytes_up", counts.up},
                         {"bytes_down", counts.down}};
  }
  // Bytes of a sandbox's choosing cannot be in here (names are plain), but a report must never fail to print.
  return json{{"policy", policy},
              {"since", since_},
              {"denials", std::move(denials)},
              {"destinations", std::move(destinations)},
              {"smallest_policy", smallest_policy_text(kMaxPolicyText / 2)}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace isola::gate
