// Secrets: values come in and never out. Rules about a sandbox's network name them (rules.h).
#include "dialect/e2b/secrets.h"

#include <openssl/sha.h>

#include <algorithm>

#include "base/log.h"
#include "dialect/e2b/api.h"
#include "dialect/e2b/body.h"
#include "dialect/e2b/connect.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

constexpr size_t kSecretsPage = 100, kMostEntries = 32, kLongestEntryName = 128, kLongestEntry = 1024,
                 kMostMetadata = 8192;
constexpr size_t kMostBody = 128 << 10;
constexpr std::string_view kIdPrefix = "sec_";

json view(const store::SecretRecord& secret) {
  return {{"secretID", secret_id(secret)},
          {"name", secret.name},
          {"currentVersion", secret.version},
          {"metadata", secret.metadata},
          {"createdAt", dialect::when(secret.created)},
          {"updatedAt", dialect::when(secret.changed)}};
}

Result<std::optional<store::Labels>> metadata_of(const json& body) {
  if (!given(body, "metadata")) return std::nullopt;
  const json& given = body["metadata"];
  if (!given.is_object()) return fail(Code::invalid, "metadata: must be an object of strings");
  store::Labels labels;
  size_t bytes = 0;
  for (const auto& [key, value] : given.items()) {
    if (!value.is_string()) return fail(Code::invalid, "metadata: must be an object of strings");
    const auto& text = value.get_ref<const std::string&>();
    bytes += key.size() + text.size();
    if (key.empty() || key.size() > kLongestEntryName || text.size() > kLongestEntry)
      return fail(Code::invalid, "metadata: keys have 1 to 128 bytes, values at most 1024");
    labels[key] = text;
  }
  if (labels.size() > kMostEntries || bytes > kMostMetadata)
    return fail(Code::invalid, "metadata: has more than 32 entries, or 8192 bytes");
  return std::optional(std::move(labels));
}

// Whoever may say where a value goes can have it sent to himself: that is for admin keys, like bringing one in.
Result<void> may_decide(const http::Exchange& ex) {
  if (store::allows(dialect::scope_of(ex), store::Scope::admin)) return {};
  return fail(Code::denied, "secrets are for API keys of scope admin");
}

Task<Result<void>> put(sandbox::Service& service, http::Exchange& ex, bool replace) {
  ISOLA_CO_CHECK(may_decide(ex));
  ISOLA_CO_TRY(std::string text, co_await ex.read_all(kMostBody));
  auto body = parse_object(text);
  vault::wipe(text);
  if (!body) co_return std::unexpected(body.error());
  sandbox::SecretRequest request;
  request.project = dialect::project_of(ex);
  request.by = dialect::caller_of(ex);
  if (auto value = body->find("value"); value != body->end() && value->is_string()) {
    request.value = vault::Secret(value->get_ref<const std::string&>());
    vault::wipe(value->get_ref<std::string&>());
  }
  if (request.value.empty()) co_return fail(Code::invalid, "value: must be a string, and not empty");
  ISOLA_CO_TRY(request.metadata, metadata_of(*body));
  if (replace) {
    ISOLA_CO_TRY(auto secret, find_secret(service, request.project, std::string(ex.param("secret"))));
    request.name = secret.name;
  } else {
    ISOLA_CO_TRY(std::string name, e2b::text(*body, "name"));
    request.name = lower(std::move(name));
    if (request.name.starts_with(kIdPrefix))
      co_return fail(Code::invalid, "name: what begins with sec_ is an identifier");
  }
  ISOLA_CO_TRY(auto secret, co_await service.put_secret(std::move(request), replace));
  ex.reply(replace ? 200 : 201, dialect::dump(view(secret)));
  co_return Result<void>();
}

Result<void> list_secrets(sandbox::Service& service, http::Exchange& ex) {
  size_t limit = kSecretsPage;
  if (auto word = ex.query("limit"); word && !word->empty()) {
    std::string text(*word);
    char* end = nullptr;
    limit = std::strtoul(text.c_str(), &end, 10);
    if (*end || limit < 1 || limit > kSecretsPage) return fail(Code::invalid, "limit: must be between 1 and 100");
  }
  std::string after(ex.query("nextToken").value_or(""));
  ISOLA_TRY(auto secrets, service.store().list_secrets(dialect::project_of(ex)));  // by name
  json out = json::array();
  std::string last;
  for (const auto& secret : secrets) {
    if (!after.empty() && secret.name <= after) continue;
    if (out.size() == limit) {
      ex.set_header("X-Next-Token", last);
      break;
    }
    out.push_back(view(secret));
    last = secret.name;
  }
  ex.reply(200, dialect::dump(out));
  return {};
}

Task<Result<void>> remove_secret(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_CHECK(may_decide(ex));
  std::string project = dialect::project_of(ex);
  ISOLA_CO_TRY(auto secret, find_secret(service, project, std::string(ex.param("secret"))));
  sandbox::Caller by = dialect::caller_of(ex);
  ISOLA_CO_CHECK(co_await service.remove_secret(std::move(project), secret.name, std::move(by)));
  ex.reply(204);
  co_return Result<void>();
}

}  // namespace

std::string secret_id(const store::SecretRecord& secret) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::string text = secret.project + '\0' + secret.name + '\0' + std::to_string(secret.created);
  unsigned char hash[SHA256_DIGEST_LENGTH];
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash);
  std::string id(kIdPrefix);
  for (size_t i = 0; i < 20; ++i) id += kLetters[hash[i] % kLetters.size()];
  return id;
}

Result<store::SecretRecord> find_secret(sandbox::Service& service, const std::string& project,
                                        const std::string& word) {
  if (word.starts_with(kIdPrefix)) {
    ISOLA_TRY(auto secrets, service.store().list_secrets(project));
    for (auto& secret : secrets)
      if (secret_id(secret) == word) return std::move(secret);
    return fail(Code::not_found, "there is no secret " + log::quoted(word));
  }
  auto exact = service.find_secret(project, word);
  if (exact || exact.error().code != Code::not_found) return exact;
  return service.find_secret(project, lower(word));
}

Result<void> find_secrets(sandbox::Service& service, const http::Exchange& ex, Rules& rules) {
  if (!rules.name_secrets()) return {};
  if (auto may = may_decide(ex); !may)
    return fail(Code::denied, "network.rules: only API keys of scope admin may name secrets and tokens");
  for (auto& grant : rules.grants) {
    if (grant.value || grant.identity) continue;
    auto secret = find_secret(service, dialect::project_of(ex), grant.binding.secret);
    if (!secret && secret.error().code != Code::not_found) return std::unexpected(secret.error());
    if (!secret) return fail(Code::invalid, "network.rules: there is no secret " + log::quoted(grant.binding.secret));
    grant.binding.secret = secret->name;
  }
  return {};
}

void Api::add_secrets(http::Router& router) {
  auto service = service_;
  auto& all = group(router, "/secrets");
  all.add("GET", "/secrets",
          handled([service](http::Exchange& ex) -> Task<Result<void>> { co_return list_secrets(*service, ex); }));
  all.add("POST", "/secrets", handled([service](http::Exchange& ex) { return put(*service, ex, false); }));
  all.add("GET", "/secrets/{secret}", handled([service](http::Exchange& ex) -> Task<Result<void>> {
            ISOLA_CO_TRY(auto secret, find_secret(*service, dialect::project_of(ex), std::string(ex.param("secret"))));
            ex.reply(200, dialect::dump(view(secret)));
            co_return Result<void>();
          }));
  all.add("POST", "/secrets/{secret}", handled([service](http::Exchange& ex) { return put(*service, ex, true); }));
  all.add("DELETE", "/secrets/{secret}",
          handled([service](http::Exchange& ex) { return remove_secret(*service, ex); }));
}

}  // namespace isola::e2b
