#include "gate/recorder.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

namespace isola::gate {

namespace {

constexpr size_t kLookBack = 32;
constexpr char kOthers[] = "(others)";

std::string key_of(const Event& event) {
  return (event.name.empty() ? "[" + event.address + "]" : event.name) + ":" + std::to_string(event.port);
}

bool same(const Event& a, const Event& b) {
  return a.name == b.name && a.port == b.port && a.reason == b.reason && a.protocol == b.protocol &&
         a.address == b.address && a.rule == b.rule;
}

}  // namespace

void Recorder::record(Event event, Clock::time_point now) {
  event.sandbox = sandbox_;
  event.when =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  auto key = key_of(event);
  if (counts_.size() >= kDestinations && !counts_.contains(key)) key = kOthers;
  auto& counts = counts_[key];
  switch (event.kind) {
    case Event::Kind::denied: ++counts.denied; return note_denial(event, now);
    case Event::Kind::allowed: {
      ++counts.connections;
      counts.allowed = true;
      const auto& target = event.name.empty() ? event.address : event.name;
      if (used_.contains(target) || used_.size() < kDestinations)
        if (auto& ports = used_[target]; ports.size() < 64) ports[event.port] = true;
      break;
    }
    case Event::Kind::closed:
      counts.up += event.up;
      counts.down += event.down;
      break;
  }
  sink_(event);
}

void Recorder::note_denial(Event& event, Clock::time_point now) {
  size_t first = denials_.size() > kLookBack ? denials_.size() - kLookBack : 0;
  for (size_t i = denials_.size(); i-- > first;) {
    if (!same(denials_[i], event)) continue;
    Event& known = denials_[i];
    ++known.count;
    known.when = event.when;
    auto& [when, told] = told_[i];
    if (now - when < std::chrono::seconds(1)) return;
    event.count = known.count - told;
    when = now, told = known.count;
    return sink_(event);
  }
  if (denials_.size() == kDenials) denials_.pop_front(), told_.pop_front();
  denials_.push_back(event);
  told_.emplace_back(now, 1);
  sink_(event);
}

Policy Recorder::smallest_policy() const {
  Policy out;
  for (const auto& [target, ports] : used_) {
    auto rule = make_rule("allow", target, "", false);
    if (!rule) continue;
    for (const auto& [port, unused] : ports) rule->ports.ranges.emplace_back(port, port);
    out.rules.push_back(std::move(*rule));
  }
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
    room -= std::min(room, it->name.size() + it->rule.size() + 200);
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
              {"denials", std::move(denials)},
              {"destinations", std::move(destinations)},
              {"smallest_policy", to_text(smallest_policy()).substr(0, 30'000)}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace isola::gate
