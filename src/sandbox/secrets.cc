// Secrets: values that come in are sealed at once, and never read back here (docs/vault.md).
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "sandbox/service.h"
#include "vault/minting.h"

namespace isola::sandbox {

using nlohmann::json;

Result<vault::PublicKey> Service::vault_key(const launcher::VaultState& state) {
  if (!state.trouble.empty()) return fail(Code::unavailable, "there is no vault: " + state.trouble);
  vault::PublicKey key;
  if (state.open_key.size() != key.size()) return fail(Code::corrupt, "the launcher sent no key of a vault");
  std::copy(state.open_key.begin(), state.open_key.end(), key.begin());
  return key;
}

Result<store::SecretRecord> Service::find_secret(const std::string& project, const std::string& name) {
  ISOLA_TRY(auto secret, parts_.store.find_secret(project, name));
  if (!secret.sandbox.empty()) return fail(Code::not_found, "there is no secret " + name);
  return secret;
}

void Service::record_secret(ledger::Kind kind, const store::SecretRecord& secret, const Caller& by) {
  json data = {{"secret", secret.name}, {"version", secret.version}};
  if (!secret.source.empty()) data["source"] = json::parse(secret.source, nullptr, false).value("type", "");
  ledger::Event event;
  event.time = now_millis();
  event.project = secret.project;
  event.key = by.key;
  event.actor = by.actor.empty() ? by.key : by.actor;
  event.kind = kind;
  event.data = data.dump(-1, ' ', false, json::error_handler_t::replace);
  events_.publish(event);
  (void)append(event);
}

Task<Result<store::SecretRecord>> Service::put_secret(SecretRequest request, bool replace) {
  auto self = shared_from_this();
  if (!vault::is_secret_name(request.name))
    co_return fail(Code::invalid,
                   "name: use 1 to 63 of letters, digits, '-', '_' and '.', starting with a letter or digit");
  if (request.value.empty() == request.source.empty())
    co_return fail(Code::invalid, "a secret has either a value or a source");
  store::SecretRecord secret{.project = request.project, .name = request.name};
  if (replace) {
    ISOLA_CO_TRY(auto kept, find_secret(request.project, request.name));
    secret.created = kept.created;
    secret.metadata = std::move(kept.metadata);
  }
  if (request.metadata) secret.metadata = *request.metadata;
  ISOLA_CO_TRY(auto state, co_await parts_.launcher->vault_state());
  ISOLA_CO_TRY(auto key, vault_key(state));
  if (!request.source.empty()) {
    auto source = vault::parse_source(request.source);
    vault::wipe(request.source);
    if (!source) co_return std::unexpected(source.error());
    if (vault::is_of_machine(*source) && !request.operators)
      co_return fail(Code::denied,
                     "source: files, commands and variables of this machine are for admin keys of the project default");
    // What is inside is the operator's: a tenant's source would be a way to ask it something.
    source->inside = request.project == "default";
    if (source->type == vault::Source::Type::github_app) ISOLA_CO_CHECK(vault::RsaKey::from_pem(source->private_key));
    if (source->type == vault::Source::Type::jwt) {
      if (settings().issuer.empty())
        co_return fail(Code::unsupported, "source: tokens of identity need the setting `issuer` of the server");
      ISOLA_CO_CHECK(co_await parts_.launcher->signing_keys());  // the first is made now
    }
    secret.source = vault::shown_source(*source);
    ISOLA_CO_TRY(secret.sealed, vault::seal_source(key, *source));
    for (auto* credential : {&source->token, &source->secret_access_key, &source->session_token, &source->private_key})
      vault::wipe(*credential);
  } else {
    ISOLA_CO_TRY(secret.sealed, vault::seal_value(key, request.value.view()));
    request.value = vault::Secret();
  }
  secret.changed = now_millis();
  secret.actor = request.by.actor.empty() ? request.by.key : request.by.actor;
  secret.made_by = request.by.key;
  if (replace) {
    ISOLA_CO_TRY(secret.version, parts_.store.change_secret(secret));
  } else {
    secret.created = secret.changed;
    ISOLA_CO_CHECK(parts_.store.insert_secret(secret));
  }
  record_secret(replace ? ledger::Kind::secret_rotated : ledger::Kind::secret_created, secret, request.by);
  ISOLA_CO_CHECK(co_await seal_again_if_rotated(secret));
  if (replace) {
    // Whoever has it granted uses the new value from the next request on.
    std::vector<BoxPtr> boxes;
    for (const auto& box : boxes_of(request.project)) {
      auto grants = grants_of(box->record());
      if (grants && std::ranges::any_of(*grants, [&](const auto& one) { return one.secret == request.name; }))
        boxes.push_back(box);
    }
    ISOLA_CO_CHECK(co_await tell_grants(std::move(boxes)));
  }
  // Whoever is told so finds it in the ledger, whatever dies in this moment.
  ISOLA_CO_CHECK(co_await flush_ledger());
  co_return secret;
}

// The key may have been changed between the question for it and the insert: then whoever rotates has not seen this one.
Task<Result<void>> Service::seal_again_if_rotated(store::SecretRecord secret) {
  ISOLA_CO_TRY(auto state, co_await parts_.launcher->vault_state());
  ISOLA_CO_TRY(auto key, vault_key(state));
  if (vault::is_sealed_to(key, secret.sealed) || state.locked) co_return Result<void>();
  std::vector<std::string> sealed(1, secret.sealed);
  ISOLA_CO_TRY(auto fresh, co_await parts_.launcher->reseal(std::move(sealed)));
  auto kept = parts_.store.reseal_secret(secret.project, secret.name, secret.sealed, fresh.at(0));
  if (!kept && kept.error().code != Code::not_found) co_return kept;  // not_found: another was quicker
  co_return Result<void>();
}

Task<Result<std::string>> Service::token_keys() {
  auto self = shared_from_this();
  const Millis now = now_millis();
  {
    std::lock_guard lock(token_keys_mutex_);
    if (!token_keys_.empty() && now - token_keys_read_ < 1000) co_return token_keys_;
  }
  ISOLA_CO_TRY(std::string keys, co_await parts_.launcher->signing_keys());
  std::lock_guard lock(token_keys_mutex_);
  token_keys_ = keys;
  token_keys_read_ = now;
  co_return keys;
}

Task<Result<void>> Service::remove_secret(std::string project, std::string name, Caller by) {
  auto self = shared_from_this();
  ISOLA_CO_TRY(auto secret, find_secret(project, name));
  ISOLA_CO_TRY(auto gone, parts_.store.remove_secret(project, name));
  for (const auto& binding : gone) record_grant(ledger::Kind::grant_revoked, binding, "its secret was deleted", by);
  record_secret(ledger::Kind::secret_deleted, secret, by);
  auto told = co_await tell_revoked(std::move(gone));
  ISOLA_CO_CHECK(co_await flush_ledger());
  co_return told;
}

}  // namespace isola::sandbox
