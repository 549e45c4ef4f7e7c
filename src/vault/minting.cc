#include "vault/minting.h"

#include <sodium.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/codec.h"
#include "base/ids.h"
#include "base/json_bound.h"
#include "vault/signing_keys.h"

namespace isola::vault {

using nlohmann::json;

namespace {

constexpr int64_t kBackdated = 30;           // seconds: clocks differ
constexpr int64_t kSpare = 10'000;           // before its end it is not used any more
constexpr int64_t kAppLife = 9 * 60;         // GitHub takes at most ten minutes
constexpr int64_t kShortestAnswer = 15'000;  // of a token that somebody else made
constexpr size_t kMostClaim = 1024;

// Another is due when three quarters of its life are over.
Made made_of(Secret value, int64_t now, int64_t end, std::string serial) {
  const int64_t until = end - kSpare;
  return {std::move(value), until, std::min(until, now + (end - now) * 3 / 4), std::move(serial)};
}

}  // namespace

Result<Made> make_identity_token(const RsaKey& key, const Source& source, const Binding& binding,
                                 const std::string& sandbox, int64_t now) {
  const std::string& audience = binding.audience.empty() ? source.audience : binding.audience;
  if (audience.empty()) return fail(Code::invalid, "a token needs an audience: of the binding, or of its secret");
  json said = json::parse(binding.identity, nullptr, false);
  if (!said.is_object()) return fail(Code::corrupt, "the server did not say whose token it is to be");
  json claims = json::object();
  for (const char* name : {"iss", "project", "task", "actor", "template"}) {
    auto it = said.find(name);
    if (it == said.end()) continue;
    if (!it->is_string() || it->get_ref<const std::string&>().size() > kMostClaim)
      return fail(Code::corrupt, std::string("the server's word for \"") + name + "\" is none");
    if (!it->get_ref<const std::string&>().empty()) claims[name] = *it;
  }
  if (!claims.contains("iss") || !claims.contains("project"))
    return fail(Code::invalid, "a token needs an issuer (the setting `issuer`) and a project");
  const int64_t seconds = now / 1000, end = seconds + source.lifetime;
  const std::string serial = new_token().substr(0, 24);
  claims["sub"] = "project:" + claims["project"].get<std::string>() + ":sandbox:" + sandbox;
  claims["sandbox"] = sandbox;
  claims["aud"] = audience;
  claims["iat"] = seconds;
  claims["nbf"] = seconds - kBackdated;
  claims["exp"] = end;
  claims["jti"] = serial;
  ISOLA_TRY(Secret token, key.sign_token(claims.dump(-1, ' ', false, json::error_handler_t::replace), key.id()));
  return made_of(std::move(token), now, end * 1000, serial);
}

Result<GithubRequest> github_exchange(const Source& source, int64_t now) {
  ISOLA_TRY(RsaKey key, RsaKey::from_pem(source.private_key));
  const int64_t seconds = now / 1000;
  json claims = {{"iss", source.app_id}, {"iat", seconds - kBackdated}, {"exp", seconds + kAppLife}};
  ISOLA_TRY(Secret token, key.sign_token(claims.dump(), ""));
  GithubRequest request;
  request.target = "/app/installations/" + source.installation_id + "/access_tokens";
  request.headers = {{"Authorization", "Bearer " + std::string(token.view())},
                     {"Accept", "application/vnd.github+json"},
                     {"X-GitHub-Api-Version", "2022-11-28"},
                     {"User-Agent", "isola"}};
  json body = json::object();
  if (!source.repositories.empty()) body["repositories"] = source.repositories;
  if (!source.permissions.empty()) body["permissions"] = source.permissions;
  request.body = body.dump();
  return request;
}

Result<Made> read_github_answer(std::string_view answer, int64_t now) {
  ISOLA_CHECK(check_json_bound(answer));
  json in = json::parse(answer, nullptr, false);
  if (!in.is_object() || !in.contains("token") || !in["token"].is_string() || !in.contains("expires_at") ||
      !in["expires_at"].is_string())
    return fail(Code::corrupt, "the answer has no \"token\" and \"expires_at\"");
  tm parts{};
  const auto& when = in["expires_at"].get_ref<const std::string&>();
  const char* rest = ::strptime(when.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (!rest || *rest) return fail(Code::corrupt, "\"expires_at\" is no time");
  int64_t end = int64_t{::timegm(&parts)} * 1000;
  if (end < now + kShortestAnswer) return fail(Code::invalid, "the token that came is over already");
  // One that claims to live for ever is fetched again all the same.
  end = std::min(end, now + kLongestLife * 1000);
  const auto& text = in["token"].get_ref<const std::string&>();
  if (text.empty() || text.size() > kMaxValue) return fail(Code::invalid, "the token is empty, or larger than 16 KiB");
  return made_of(Secret(text), now, end, "");
}

std::string mark_of(const Binding& binding, std::string_view key_id) {
  Writer out;
  for (std::string_view part : {std::string_view(binding.sealed), std::string_view(binding.audience),
                                std::string_view(binding.identity), key_id})
    out.str(part);
  std::string digest(crypto_generichash_BYTES, '\0');
  ::crypto_generichash(reinterpret_cast<unsigned char*>(digest.data()), digest.size(),
                       reinterpret_cast<const unsigned char*>(out.data().data()), out.data().size(), nullptr, 0);
  return to_base64url(digest);
}

}  // namespace isola::vault
