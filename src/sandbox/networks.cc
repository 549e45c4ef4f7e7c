// What a sandbox may reach: its policy on the way to the gate, and what the gate tells on the way to the ledger.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "gate/control.h"
#include "gate/name.h"
#include "gate/policy.h"
#include "sandbox/service.h"
#include "sandbox/untold.h"

namespace isola::sandbox {

using nlohmann::json;

namespace {
constexpr Millis kGatherAgain = 30'000;
}  // namespace

// Presets and policies alike become the text that the store keeps: what a preset meant at the time stays what it was.
Result<std::string> Service::policy_text(const std::string& network) const {
  if (network.empty() || network == "none") return std::string();
  if (network == "all" || network == "package-registries") {
    if (network == "package-registries" && parts_.registries.endpoints.empty())
      return fail(Code::unsupported, "network: no package registry is configured on this machine");
    ISOLA_TRY(auto policy, gate::preset_policy(network, parts_.registries));
    return gate::to_text(policy);
  }
  auto policy = network.starts_with('{') ? gate::parse_policy_json(network) : gate::parse_policy(network);
  if (!policy) return fail(Code::invalid, "network: " + policy.error().message);
  return gate::to_text(*policy);
}

namespace {

// Whether a policy speaks of addresses that are somebody's inside: the host's own, its network's, a cloud's metadata.
// Package registries may be there; those that the operator configured are for everybody.
bool opens_inside(const gate::Policy& policy, const gate::Policy& registries) {
  for (const auto& rule : policy.rules) {
    if (rule.action != gate::Action::allow || std::ranges::find(registries.rules, rule) != registries.rules.end())
      continue;
    if (rule.local) return true;
    // Only a network that lies within such a block opens it: 0.0.0.0/0 does not.
    if (rule.network && gate::is_inside(*rule.network)) return true;
  }
  return false;
}

}  // namespace

// On a machine with several tenants it is the operator who opens what lies inside, by a ceiling that says so.
Result<void> Service::may_ask_for(const std::string& project, const std::string& policy) {
  if (project == "default" || policy.empty()) return {};
  ISOLA_TRY(auto record, parts_.store.find_project(project));
  if (!record.ceiling.empty()) return {};
  ISOLA_TRY(auto parsed, gate::parse_policy(policy));
  if (opens_inside(parsed, gate::registries_policy(parts_.registries)))
    return fail(Code::denied,
                "network: private and local addresses are open to this project only under a ceiling that names them");
  return {};
}

Result<void> Service::may_reach(const std::string& project, const std::string& name, uint16_t port) {
  ISOLA_TRY(auto record, parts_.store.find_project(project));
  if (record.ceiling.empty()) return {};
  ISOLA_TRY(auto ceiling, gate::parse_policy(record.ceiling));
  size_t colon = name.rfind(':');
  std::string host = name.substr(0, colon);
  if (colon != name.npos) port = static_cast<uint16_t>(std::strtoul(name.c_str() + colon + 1, nullptr, 10));
  gate::Egress egress(std::move(ceiling));
  // As the gate does it: names in one spelling, and addresses by the rules for addresses.
  bool allowed = false;
  if (auto address = gate::Address::parse(host)) {
    allowed = egress.connect_address("", *address, port).allowed();
  } else {
    ISOLA_TRY(host, gate::normal_name(host));
    allowed = egress.connect_name(host, port).allowed();
  }
  if (allowed) return {};
  return fail(Code::denied, "the ceiling of this project does not allow " + name);
}

// A project of which the operator said nothing still has one: whatever a tenant's policy says, or said before a ceiling
// was lifted, the inside stays closed but for the package registries.
std::string Service::ceiling_of(const store::ProjectRecord& project) const {
  if (!project.ceiling.empty() || project.id == "default") return project.ceiling;
  auto ceiling = gate::registries_policy(parts_.registries);
  ceiling.otherwise = gate::Action::allow;
  return gate::to_text(ceiling);
}

Task<Result<void>> Service::apply_network(BoxPtr box, std::string policy, bool cut, const Meanwhile* meanwhile) {
  auto told = co_await apply_terms(box, std::move(policy), cut, meanwhile);
  if (!told) co_return std::unexpected(told.error());
  warn_of_missing(*box, told->missing);
  co_return Result<void>();
}

void Service::warn_of_missing(const Box& box, const vault::Reasons& missing) {
  for (const auto& [binding, why] : missing)
    log::warn("sandbox", "{} goes without the binding {}: {}", box.id(), binding, why);
}

Task<Result<Service::Told>> Service::apply_terms(BoxPtr box, std::string policy, bool cut, const Meanwhile* meanwhile) {
  ISOLA_CO_TRY(auto project, parts_.store.find_project(box->project()));
  launcher::PolicyRequest request{.id = box->id(), .policy = policy, .ceiling = ceiling_of(project), .cut = cut};
  // What reaches nothing needs no credentials.
  Millis refresh = 0;
  Told told;
  if (!policy.empty()) {
    auto gathered = sealed_grants(box->record(), refresh);
    if (gathered) request.bindings = std::move(*gathered);
    // Without any, rather than as it was: the change may be what takes one of them, or a way out, away.
    if (!gathered) {
      log::error("sandbox", "{} goes without its bindings: {}", box->id(), gathered.error().message);
      told.ungathered = gathered.error();
      refresh = now_millis() + kGatherAgain;
    }
    // Before the gate has them: nothing that went out with one of them comes back unseen.
    if (!request.bindings.empty() || !gathered) box->screening()->turn_on();
    // … nor after a restart of the server. Where that cannot be written down, it goes without any.
    if (!request.bindings.empty() && !box->record().screened) {
      store::SandboxChange change;
      change.screened = true;
      if (auto kept = parts_.store.change_sandbox(box->id(), change); kept) {
        box->change([](auto& r) { r.screened = true; });
      } else {
        request.bindings.clear();
        told.ungathered = kept.error();
        refresh = now_millis() + kGatherAgain;
      }
    }
  }
  {
    std::lock_guard lock(grants_mutex_);
    if (refresh > 0)
      grants_due_[box->id()] = refresh;
    else
      grants_due_.erase(box->id());
  }
  if (refresh > 0) grants_bell_.ring();
  ISOLA_CO_TRY(std::string missing, co_await parts_.launcher->set_policy(std::move(request), meanwhile));
  ISOLA_CO_TRY(told.missing, vault::decode_reasons(missing));
  if (!told.missing.empty()) {
    // They may have been sealed to a key that has been changed meanwhile: then only what the store has now helps.
    std::lock_guard lock(grants_mutex_);
    auto& due = grants_due_[box->id()];
    due = due == 0 ? now_millis() + kGatherAgain : std::min(due, now_millis() + kGatherAgain);
    grants_bell_.ring();
  }
  co_return told;
}

// The caller has the turn. `fresh`: the gate does not know it yet.
Task<Result<void>> Service::renew_network(BoxPtr box, bool fresh, const Meanwhile* meanwhile) {
  std::string policy = box->record().network;
  if (!policy.empty() || !fresh) co_return co_await apply_network(box, policy, false, meanwhile);
  ISOLA_CO_TRY(auto project, parts_.store.find_project(box->project()));
  launcher::PolicyRequest request{.id = box->id(), .ceiling = ceiling_of(project), .first = true};
  // Under a ceiling that somebody set it is waited for: whoever gives it a policy while no server runs stays below it.
  if (!project.ceiling.empty()) {
    auto told = co_await parts_.launcher->set_policy(std::move(request), meanwhile);
    if (!told) co_return std::unexpected(told.error());
    co_return Result<void>();
  }
  // A policy that is set meanwhile is not undone by it.
  tell_gate_later(box->home(), parts_.launcher, std::move(request));
  co_return Result<void>();
}

Task<Result<void>> Service::set_network(BoxPtr box, NetworkChange asked, Caller by) {
  ISOLA_CO_TRY(std::string policy, policy_text(asked.network));
  const bool registries = asked.network == "package-registries";
  if (!registries) ISOLA_CO_CHECK(may_ask_for(box->project(), policy));
  Box::Turn turn = co_await box->turn();
  if (asked.replaces && *asked.replaces != shown_policy(box->record().network))
    co_return fail(Code::exists, "network: it was changed meanwhile");
  store::SandboxChange change;
  change.network = policy;
  if (!asked.notes.empty()) {
    change.metadata = box->record().metadata;
    for (const auto& [key, value] : asked.notes) (*change.metadata)[key] = value;
    ISOLA_CO_CHECK(check_metadata(*change.metadata));
  }
  if (registries) {
    if (box->state() != State::running)
      co_return conflict("network: programs inside are pointed to the registries while it runs; resume it first");
    change.env = box->record().env;
    change.env->insert(parts_.registries.environment.begin(), parts_.registries.environment.end());
    ISOLA_CO_CHECK(co_await place_files(box, parts_.registries.files));
    ISOLA_CO_CHECK(co_await configure(box, *change.env, false));
  }
  std::optional<NewGrants> grants;
  if (asked.grants) {
    ISOLA_CO_TRY(grants, co_await write_network_grants(box, std::move(*asked.grants), by));
    if (!grants->now.bindings.empty()) change.keep_grants = true;
  }
  // The gate first: a policy that is written down but not in force would be a promise nobody keeps.
  // One that sleeps gets it when it is resumed.
  Result<void> kept;
  const bool awake = !store::is_asleep(box->state());
  if (awake && grants)
    kept = co_await apply_with_grants(box, policy, asked.cut, *grants);
  else if (awake)
    kept = co_await apply_network(box, policy, asked.cut);
  // The certificate's are set in nobody's turn.
  const auto told = change.env;
  if (change.env) {
    change.env = box->record().env;
    change.env->insert(parts_.registries.environment.begin(), parts_.registries.environment.end());
  }
  if (kept) kept = parts_.store.change_sandbox(box->id(), change);
  if (!kept) {
    if (grants) co_await undo_network_grants(box, *grants, by);
    // A gate that answered too late may have taken it all the same: what is written down comes behind it.
    if (awake) (void)co_await apply_network(box, box->record().network, asked.cut);
    co_return kept;
  }
  box->change([&](auto& r) {
    r.network = policy;
    if (change.metadata) r.metadata = *change.metadata;
    if (change.env) r.env = *change.env;
    if (change.keep_grants) r.keep_grants = true;
  });
  if (change.env != told) (void)co_await configure(box, *change.env, false);
  json data = {{"changed", {"network"}}, {"network", policy}};
  record(ledger::Kind::sandbox_updated, box, data.dump(), by);
  turn.release();
  co_await place_certificate(box);
  co_return Result<void>();
}

Result<std::string> Service::ceiling_text(const std::string& ceiling) const {
  ISOLA_TRY(std::string text, policy_text(ceiling));
  // An empty one is no ceiling at all; `none` is the lowest.
  if (ceiling == "none") text = gate::to_text(gate::Policy::none());
  if (!text.empty()) ISOLA_CHECK(gate::read_egress("", text));
  return text;
}

Task<Result<void>> Service::apply_ceiling(std::string project) {
  Result<void> result;
  for (const auto& box : boxes_of(project)) {
    // All of them, whatever happens with one; those that reach nothing, too.
    Box::Turn turn = co_await box->turn();
    auto applied = co_await apply_network(box, box->record().network, true);
    if (!applied && applied.error().code != Code::not_found && result) result = std::unexpected(applied.error());
    turn.release();
    if (applied) co_await place_certificate(box);  // it may be looked into from now on
  }
  co_return result;
}

Task<Result<void>> Service::place_files(BoxPtr box, const std::map<std::string, std::string>& files) {
  for (const auto& [path, content] : files) ISOLA_CO_CHECK(co_await write_file(box, path, content));
  co_return Result<void>();
}

}  // namespace isola::sandbox
