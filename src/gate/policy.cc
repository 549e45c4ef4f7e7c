#include "gate/policy.h"

#include <algorithm>

#include "gate/name.h"
#include "gate/request_path.h"

namespace isola::gate {

namespace {

constexpr uint16_t kDotPort = 853;

Verdict by(const Policy& policy, const Rule* rule, Reason reason) {
  return {reason, rule ? to_text(*rule) : policy.otherwise == Action::allow ? "default allow" : "default deny"};
}

// Not what a connection is refused for: only some requests in it.
bool denies_requests_only(const Rule& rule) { return rule.action == Action::deny && rule.is_about_requests(); }

Reason reason_of(Action action) { return action == Action::allow ? Reason::allowed : Reason::policy; }

// Could some port be reached under this name?
Verdict resolve(const Policy& policy, std::string_view name) {
  for (const auto& rule : policy.rules) {
    if (!rule.matches_name(name) || denies_requests_only(rule)) continue;
    if (rule.action == Action::allow) {
      if (rule.kind != Rule::Kind::name && policy.restricts_names() && is_public_resolver(name))
        return by(policy, &rule, Reason::public_resolver);
      return by(policy, &rule, Reason::allowed);
    }
    if (rule.ports.all()) return by(policy, &rule, Reason::policy);
  }
  if (policy.otherwise == Action::allow && policy.restricts_names() && is_public_resolver(name))
    return by(policy, nullptr, Reason::public_resolver);
  return by(policy, nullptr, reason_of(policy.otherwise));
}

Verdict connect_by_name(const Policy& policy, std::string_view name, uint16_t port) {
  const Rule* found = nullptr;
  for (const auto& rule : policy.rules)
    if (rule.matches_name(name) && rule.ports.contain(port) && !denies_requests_only(rule)) {
      found = &rule;
      break;
    }
  Action action = found ? found->action : policy.otherwise;
  if (action == Action::allow && policy.restricts_names()) {
    bool exact = found && found->kind == Rule::Kind::name;
    if (is_public_resolver(name) && !exact) return by(policy, found, Reason::public_resolver);
    if (port == kDotPort && !(found && found->ports.name(port))) return by(policy, found, Reason::public_resolver);
  }
  return by(policy, found, reason_of(action));
}

// Whether a rule that allows speaks of this inside place, rather than of everything.
bool speaks_of(const Rule& rule, const Placed& placed) {
  if (rule.kind == Rule::Kind::network) return placed.block->contains(*rule.network);
  return rule.kind != Rule::Kind::any && rule.local && placed.place == Place::local;
}

bool is_about(const Rule& rule, std::string_view name, const Address& address, uint16_t port) {
  if (!rule.ports.contain(port)) return false;
  if (rule.kind == Rule::Kind::network) return rule.network->contains(address);
  // Without a name there is no host that a request could be held to.
  return name.empty() ? rule.kind == Rule::Kind::any && !rule.is_about_requests() : rule.matches_name(name);
}

const Rule* first_for(const Policy& policy, std::string_view name, const Address& address, uint16_t port) {
  for (const auto& rule : policy.rules)
    if (is_about(rule, name, address, port) && !denies_requests_only(rule)) return &rule;
  return nullptr;
}

bool inspects_in(const Policy& policy, std::string_view name, uint16_t port) {
  for (const auto& rule : policy.rules) {
    if (!rule.matches_name(name) || !rule.ports.contain(port)) continue;
    return rule.is_about_requests();  // or else nothing behind it is ever asked
  }
  return false;
}

Verdict request_in(const Policy& policy, std::string_view name, const Address& address, uint16_t port,
                   std::string_view method, std::string_view path) {
  for (const auto& rule : policy.rules)
    if (is_about(rule, name, address, port) && rule.fits(method, path))
      return by(policy, &rule, rule.action == Action::allow ? Reason::allowed : Reason::request);
  return by(policy, nullptr, policy.otherwise == Action::allow ? Reason::allowed : Reason::request);
}

// Under a policy of names nobody asks a stranger for addresses: neither by his name nor by his address.
bool asks_resolver(const Policy& policy, const Rule* found, const Address& address, uint16_t port) {
  if (!policy.restricts_names() || (found && found->kind == Rule::Kind::network)) return false;
  return is_public_resolver(address) || (port == kDotPort && !(found && found->ports.name(port)));
}

Verdict connect_by_address(const Policy& policy, std::string_view name, const Address& address, uint16_t port) {
  const Placed placed = place_of(address);
  const Rule* found = nullptr;
  bool spoken_of = false;
  for (const auto& rule : policy.rules) {
    if (!is_about(rule, name, address, port) || denies_requests_only(rule)) continue;
    if (!found) found = &rule;
    if (placed.place == Place::open) break;
    // A name that is allowed and a network that is allowed further down go together: the name says who, the network
    // that this inside place is meant.
    if (rule.action == Action::deny) break;
    if (placed.place != Place::open && speaks_of(rule, placed)) {
      spoken_of = true;
      break;
    }
  }
  Action action = found ? found->action : policy.otherwise;
  if (action == Action::deny && !policy.learn) return by(policy, found, Reason::policy);
  if (placed.place != Place::open && !spoken_of)
    return {Reason::place, std::string(to_string(placed.place)) + " " + placed.block->text()};
  if (name.empty() && action == Action::allow && asks_resolver(policy, found, address, port))
    return by(policy, found, Reason::public_resolver);
  return by(policy, found, action == Action::allow ? Reason::allowed : Reason::learnt);
}

// Both must allow; if both do, the policy's own words count.
Verdict under(Verdict policy, const Verdict& ceiling) {
  if (!policy.allowed() || ceiling.allowed()) return policy;
  if (ceiling.reason == Reason::policy) return {Reason::ceiling, ceiling.rule};
  return ceiling;
}

Verdict learning(const Policy& policy, Verdict verdict) {
  if (policy.learn && verdict.reason == Reason::policy) verdict.reason = Reason::learnt;
  return verdict;
}

}  // namespace

bool Ports::contain(uint16_t port) const {
  return all() || std::any_of(ranges.begin(), ranges.end(),
                              [port](const auto& range) { return port >= range.first && port <= range.second; });
}

bool Rule::matches_name(std::string_view other) const {
  switch (kind) {
    case Kind::any: return true;
    case Kind::name: return other == name;
    case Kind::below: return is_below(other, name);
    case Kind::network: return false;
  }
  return false;
}

bool Rule::fits(std::string_view method, std::string_view path) const {
  return (methods.empty() || std::find(methods.begin(), methods.end(), method) != methods.end()) &&
         (paths.empty() ||
          std::any_of(paths.begin(), paths.end(), [&](const auto& prefix) { return is_under(path, prefix); }));
}

bool Policy::restricts_names() const {
  if (learn) return false;
  for (const auto& rule : rules) {
    if (rule.kind == Rule::Kind::network) continue;
    if (rule.action == Action::deny) return true;
    if (rule.is_about_requests()) return true;
    if (rule.kind == Rule::Kind::any && rule.ports.all()) return false;  // nothing behind it is ever asked
  }
  return otherwise == Action::deny;
}

Egress::Egress(Policy policy, std::optional<Policy> ceiling)
    : policy_(std::move(policy)),
      ceiling_(std::move(ceiling)),
      verifies_tls_(policy_.restricts_names() || (ceiling_ && ceiling_->restricts_names())) {}

Verdict Egress::may_resolve(std::string_view name) const {
  auto own = learning(policy_, resolve(policy_, name));
  return ceiling_ ? under(own, resolve(*ceiling_, name)) : own;
}

Verdict Egress::connect_name(std::string_view name, uint16_t port) const {
  auto own = learning(policy_, connect_by_name(policy_, name, port));
  return ceiling_ ? under(own, connect_by_name(*ceiling_, name, port)) : own;
}

Verdict Egress::connect_address(std::string_view name, const Address& address, uint16_t port) const {
  auto own = connect_by_address(policy_, name, address, port);
  return ceiling_ ? under(own, connect_by_address(*ceiling_, name, address, port)) : own;
}

bool Egress::inspects(std::string_view name, uint16_t port) const {
  return inspects_in(policy_, name, port) || (ceiling_ && inspects_in(*ceiling_, name, port));
}

Verdict Egress::request(std::string_view name, const Address& address, uint16_t port, std::string_view method,
                        std::string_view path) const {
  auto own = request_in(policy_, name, address, port, method, path);
  if (policy_.learn && own.reason == Reason::request) own.reason = Reason::learnt;
  if (!own.allowed() || !ceiling_) return own;
  auto above = request_in(*ceiling_, name, address, port, method, path);
  return above.allowed() ? own : above;
}

bool Egress::names_address(const Address& address, uint16_t port) const {
  auto alone = Network::parse(address.text());
  auto named_in = [&](const Policy& policy) {
    return std::any_of(policy.rules.begin(), policy.rules.end(), [&](const Rule& rule) {
      return rule.action == Action::allow && rule.network && *rule.network == *alone && rule.ports.contain(port);
    });
  };
  return alone && named_in(policy_) && (!ceiling_ || named_in(*ceiling_));
}

bool Egress::allows_network(const Address& address, uint16_t port) const {
  auto by_network = [&](const Policy& policy) {
    const Rule* found = first_for(policy, "", address, port);
    return found && found->kind == Rule::Kind::network && found->action == Action::allow;
  };
  return by_network(policy_) && (!ceiling_ || !ceiling_->restricts_names() || by_network(*ceiling_));
}

std::string Egress::wildcard_of(std::string_view name) const {
  auto first = [&](const Policy& policy) -> const Rule* {
    for (const auto& rule : policy.rules)
      if (rule.action == Action::allow && rule.matches_name(name)) return &rule;
    return nullptr;
  };
  const Rule* rule = first(policy_);
  if (ceiling_ && (!rule || rule->kind == Rule::Kind::any)) rule = first(*ceiling_);
  return rule && rule->kind == Rule::Kind::below ? rule->name : std::string();
}

Limits Egress::limits() const {
  auto pick = [](auto own, auto above, auto standard) {
    auto value = own ? own : standard;
    return above && (!value || above < value) ? above : value;
  };
  const Limits own = policy_.limits, above = ceiling_ ? ceiling_->limits : Limits{};
  return {pick(own.connections, above.connections, kStandardLimits.connections),
          pick(own.connections_per_second, above.connections_per_second, kStandardLimits.connections_per_second),
          pick(own.bytes_per_second, above.bytes_per_second, kStandardLimits.bytes_per_second)};
}

std::string_view to_string(Reason reason) {
  switch (reason) {
    case Reason::allowed: return "allowed";
    case Reason::learnt: return "learnt";
    case Reason::policy: return "policy";
    case Reason::ceiling: return "ceiling";
    case Reason::place: return "place";
    case Reason::own_address: return "own-address";
    case Reason::not_a_name: return "not-a-name";
    case Reason::public_resolver: return "public-resolver";
    case Reason::unknown_address: return "unknown-address";
    case Reason::dns_rate: return "dns-rate";
    case Reason::no_such_name: return "no-such-name";
    case Reason::unresolvable: return "unresolvable";
    case Reason::unreachable: return "unreachable";
    case Reason::sni_missing: return "sni-missing";
    case Reason::sni_differs: return "sni-differs";
    case Reason::ech: return "ech";
    case Reason::bad_hello: return "bad-hello";
    case Reason::too_many_connections: return "too-many-connections";
    case Reason::too_fast: return "too-fast";
    case Reason::policy_changed: return "policy-changed";
    case Reason::request: return "request";
    case Reason::bad_request: return "bad-request";
    case Reason::authority: return "authority-differs";
    case Reason::cleartext: return "cleartext";
    case Reason::placeholder: return "placeholder";
    case Reason::upstream_tls: return "upstream-tls";
    case Reason::binding_expired: return "binding-expired";
    case Reason::revoked: return "revoked";
    case Reason::locked: return "locked";
    case Reason::encoded: return "encoded";
    case Reason::bad_answer: return "bad-answer";
    case Reason::count_: break;
  }
  return "?";
}

}  // namespace isola::gate
