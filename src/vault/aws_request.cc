#include "vault/aws_request.h"

#include <sodium.h>

#include <array>
#include <nlohmann/json.hpp>

namespace isola::vault {

namespace {

using Digest = std::array<unsigned char, crypto_auth_hmacsha256_BYTES>;
static_assert(crypto_hash_sha256_BYTES == crypto_auth_hmacsha256_BYTES);

constexpr const char* kService = "secretsmanager";

std::string hex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned char byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

std::string sha256(std::string_view text) {
  Digest digest;
  ::crypto_hash_sha256(digest.data(), bytes_of(text), text.size());
  return hex(digest);
}

Digest hmac(const unsigned char* key, size_t size, std::string_view text) {
  crypto_auth_hmacsha256_state state;
  Digest digest;
  ::crypto_auth_hmacsha256_init(&state, key, size);
  ::crypto_auth_hmacsha256_update(&state, bytes_of(text), text.size());
  ::crypto_auth_hmacsha256_final(&state, digest.data());
  return digest;
}
Digest hmac(const Digest& key, std::string_view text) { return hmac(key.data(), key.size(), text); }

std::string scope_of(const std::string& region, const std::string& service, const std::string& time) {
  return time.substr(0, 8) + "/" + region + "/" + service + "/aws4_request";
}

}  // namespace

std::string aws_signature(const std::string& secret_key, const std::string& region, const std::string& service,
                          const std::string& time, const std::string& canonical_request) {
  std::string to_sign =
      "AWS4-HMAC-SHA256\n" + time + "\n" + scope_of(region, service, time) + "\n" + sha256(canonical_request);
  std::string first = "AWS4" + secret_key;
  Digest key = hmac(bytes_of(first), first.size(), time.substr(0, 8));
  wipe(first);
  for (std::string_view part : {std::string_view(region), std::string_view(service), std::string_view("aws4_request")})
    key = hmac(key, part);
  std::string signature = hex(hmac(key, to_sign));
  ::sodium_memzero(key.data(), key.size());
  return signature;
}

AwsRequest get_secret_value(const Source& source, const std::string& host, const std::string& time) {
  AwsRequest request;
  request.body = nlohmann::json{{"SecretId", source.secret_id}}.dump();
  // Signed in the order of their names.
  std::vector<std::pair<std::string, std::string>> sent = {
      {"content-type", "application/x-amz-json-1.1"}, {"host", host}, {"x-amz-date", time}};
  if (!source.session_token.empty()) sent.emplace_back("x-amz-security-token", source.session_token);
  sent.emplace_back("x-amz-target", "secretsmanager.GetSecretValue");
  std::string canonical = "POST\n/\n\n", names;
  for (const auto& [name, value] : sent) {
    canonical += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  canonical += "\n" + names + "\n" + sha256(request.body);
  std::string signature = aws_signature(source.secret_access_key, source.region, kService, time, canonical);
  for (auto& header : sent)
    if (header.first != "host" && header.first != "content-type") request.headers.push_back(std::move(header));
  request.headers.emplace_back("authorization", "AWS4-HMAC-SHA256 Credential=" + source.access_key_id + "/" +
                                                    scope_of(source.region, kService, time) +
                                                    ", SignedHeaders=" + names + ", Signature=" + signature);
  return request;
}

}  // namespace isola::vault
