// Bindings that come with what is said about a sandbox's network: all of them are in force, or none of the change is.
//
// Some have a value of their own, or are a token of the sandbox's identity. It is sealed like every other, stands in
// the store as a secret that only this sandbox has, and goes with it; nobody finds it by name.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "base/log.h"
#include "gate/policy.h"
#include "sandbox/service.h"
#include "scan/automaton.h"

namespace isola::sandbox {

using nlohmann::json;

namespace {

// The store gives bindings back by time and then by id, and the gate takes the first that fits.
std::vector<std::string> ids_in_order(size_t count) {
  std::vector<std::string> ids(count);
  for (auto& id : ids) id = new_binding_id();
  std::ranges::sort(ids);
  return ids;
}

constexpr char kChangeRefused[] = "a change was refused";

std::string own_name(const std::string& sandbox, const std::string& binding) { return sandbox + "." + binding; }

}  // namespace

Task<Result<Service::NewGrants>> Service::write_network_grants(BoxPtr box, std::vector<NetworkGrant> grants,
                                                               Caller by) {
  auto self = shared_from_this();
  NewGrants out;
  vault::PublicKey key{};
  if (!grants.empty()) {
    ISOLA_CO_TRY(auto state, co_await parts_.launcher->vault_state());
    ISOLA_CO_TRY(key, vault_key(state));
    if (state.locked) co_return fail(Code::unavailable, "the vault is locked: `isola vault unlock` opens it");
  }
  if (std::ranges::any_of(grants, &NetworkGrant::identity)) {
    if (settings().issuer.empty())
      co_return fail(Code::unsupported, "tokens of identity need the setting `issuer` of the server");
    ISOLA_CO_CHECK(co_await parts_.launcher->signing_keys());  // the first is made now
  }
  const Millis now = now_millis();
  const std::string actor = by.actor.empty() ? by.key : by.actor;
  auto ids = ids_in_order(grants.size());
  for (size_t i = 0; i < grants.size(); ++i) {
    auto& binding = grants[i].binding;
    binding.id = ids[i];
    binding.actor = actor;
    binding.sealed.clear();
    // A header that somebody wrote out need not be a secret. One that cannot be searched for is marked as such.
    binding.unsearched = grants[i].value && !scan::is_searchable(grants[i].value->view());
    if (grants[i].value || grants[i].identity) {
      binding.secret = own_name(box->id(), binding.id);
      store::SecretRecord secret{.project = box->project(), .name = binding.secret};
      if (grants[i].identity) {
        const vault::Source source{.type = vault::Source::Type::jwt};
        secret.source = vault::shown_source(source);
        ISOLA_CO_TRY(secret.sealed, vault::seal_source(key, source));
      } else {
        ISOLA_CO_TRY(secret.sealed, vault::seal_value(key, grants[i].value->view()));
      }
      secret.created = secret.changed = now;
      secret.actor = actor;
      secret.made_by = by.key;
      secret.sandbox = box->id();
      out.now.secrets.push_back(std::move(secret));
    } else if (auto there = find_secret(box->project(), binding.secret); !there) {
      if (there.error().code != Code::not_found) co_return std::unexpected(there.error());
      co_return fail(Code::invalid, "network: there is no secret " + log::quoted(binding.secret));
    }
    ISOLA_CO_CHECK(vault::check_binding(binding));
    for (const auto& name : binding.names) ISOLA_CO_CHECK(gate::make_rule("allow", name, binding.ports, false));
    store::BindingRecord record{.id = binding.id,
                                .project = box->project(),
                                .scope = store::BindingScope::sandbox,
                                .subject = box->id(),
                                .secret = binding.secret,
                                .created = now,
                                .actor = actor,
                                .made_by = by.key,
                                .of_network = true};
    json body = json::parse(vault::to_json(binding));
    for (const char* own : {"id", "actor", "expires"}) body.erase(own);
    record.body = body.dump();
    out.now.bindings.push_back(std::move(record));
  }
  ISOLA_CO_TRY(auto replaced, parts_.store.list_bindings(box->project(), store::BindingScope::sandbox, box->id()));
  std::erase_if(replaced, [](const auto& one) { return !one.of_network; });
  // In the ledger before it is in the store, as with every grant; and so is the end of what was there before.
  std::vector<ledger::Event> events;
  for (const auto& binding : replaced)
    events.push_back(grant_event(ledger::Kind::grant_revoked, binding, "the sandbox's network was changed", by));
  for (const auto& binding : out.now.bindings)
    events.push_back(grant_event(ledger::Kind::grant_created, binding, "", by));
  auto kept = co_await record_durably(std::move(events));
  if (kept) {
    auto before = parts_.store.replace_network_grants(box->id(), out.now);
    if (before)
      out.before = std::move(*before);
    else
      kept = std::unexpected(before.error());
  }
  if (!kept) {
    for (const auto& binding : out.now.bindings) record_grant(ledger::Kind::grant_revoked, binding, kNotGranted, by);
    for (const auto& binding : replaced) record_grant(ledger::Kind::grant_created, binding, kChangeRefused, by);
    co_return std::unexpected(kept.error());
  }
  for (const auto& secret : out.now.secrets) {
    auto sealed = co_await seal_again_if_rotated(secret);
    if (sealed) continue;
    co_await undo_network_grants(box, out, by);
    co_return std::unexpected(sealed.error());
  }
  co_return out;
}

Task<void> Service::undo_network_grants(BoxPtr box, NewGrants grants, Caller by) {
  auto self = shared_from_this();
  std::vector<ledger::Event> events;
  for (const auto& binding : grants.now.bindings)
    events.push_back(grant_event(ledger::Kind::grant_revoked, binding, kNotGranted, by));
  for (const auto& binding : grants.before.bindings)
    events.push_back(grant_event(ledger::Kind::grant_created, binding, kChangeRefused, by));
  auto written = co_await record_durably(std::move(events));
  if (written && parts_.store.replace_network_grants(box->id(), grants.before)) co_return;
  // One of its secrets is gone, or something cannot be written: without any, then.
  const bool emptied = parts_.store.replace_network_grants(box->id(), store::NetworkGrants()).has_value();
  for (const auto& binding : grants.before.bindings)
    record_grant(ledger::Kind::grant_revoked, binding, kNotGranted, by);
  if (emptied && written) co_return;
  for (const auto& binding : grants.now.bindings)
    if (emptied)
      record_grant(ledger::Kind::grant_revoked, binding, kNotGranted, by);
    else
      record_grant(ledger::Kind::grant_created, binding, kStays, by);
}

Task<Result<void>> Service::apply_with_grants(BoxPtr box, std::string policy, bool cut, const NewGrants& grants) {
  ISOLA_CO_TRY(Told told, co_await apply_terms(box, std::move(policy), cut));
  if (told.ungathered) co_return std::unexpected(*told.ungathered);
  for (const auto& binding : grants.now.bindings)
    if (auto found = told.missing.find(binding.id); found != told.missing.end())
      co_return fail(vault::is_refused_for_good(found->second) ? Code::invalid : Code::unavailable,
                     "secret " + binding.secret + ": " + found->second);
  warn_of_missing(*box, told.missing);
  co_return Result<void>();
}

// For a fork that keeps what its parent has: in the parent's order, and with values of its own where those are.
Task<Result<void>> Service::copy_grants(store::SandboxRecord from, BoxPtr to, Caller by) {
  ISOLA_CO_TRY(auto own, parts_.store.list_bindings(from.project, store::BindingScope::sandbox, from.id));
  auto ids = ids_in_order(own.size());
  const Millis now = now_millis();
  for (size_t i = 0; i < own.size(); ++i) {
    auto& binding = own[i];
    ISOLA_CO_TRY(auto secret, parts_.store.find_secret(binding.project, binding.secret));
    binding.id = ids[i];
    binding.subject = to->id();
    binding.created = now;
    if (!secret.sandbox.empty()) {
      secret.sandbox = to->id();
      secret.name = binding.secret = own_name(to->id(), binding.id);
      ISOLA_CO_CHECK(parts_.store.insert_secret(secret));
      ISOLA_CO_CHECK(co_await seal_again_if_rotated(secret));
    }
  }
  std::vector<ledger::Event> events;
  for (const auto& binding : own)
    events.push_back(grant_event(ledger::Kind::grant_created, binding, "copied from " + from.id, by));
  auto written = co_await record_durably(std::move(events));
  if (!written) {  // some of them may be there
    for (const auto& binding : own) record_grant(ledger::Kind::grant_revoked, binding, kNotGranted, by);
    co_return written;
  }
  for (size_t i = 0; i < own.size(); ++i) {
    auto kept = parts_.store.insert_binding(own[i]);
    if (kept) continue;
    for (; i < own.size(); ++i) record_grant(ledger::Kind::grant_revoked, own[i], kNotGranted, by);
    co_return kept;
  }
  co_return Result<void>();
}

}  // namespace isola::sandbox
