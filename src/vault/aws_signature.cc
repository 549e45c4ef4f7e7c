#include "vault/aws_signature.h"

#include <sodium.h>

#include <array>

#include "vault/bytes.h"
#include "vault/seal.h"

namespace isola::vault {

namespace {

using Digest = std::array<unsigned char, crypto_auth_hmacsha256_BYTES>;
static_assert(crypto_hash_sha256_BYTES == crypto_auth_hmacsha256_BYTES);

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256", kEnd = "aws4_request";

std::string hex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned char byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Digest hmac(const unsigned char* key, size_t size, std::string_view text) {
  crypto_auth_hmacsha256_state state;
  Digest digest;
  ::crypto_auth_hmacsha256_init(&state, key, size);
  ::crypto_auth_hmacsha256_update(&state, bytes_of(text), text.size());
  ::crypto_auth_hmacsha256_final(&state, digest.data());
  ::sodium_memzero(&state, sizeof state);
  return digest;
}
Digest hmac(const Digest& key, std::string_view text) { return hmac(key.data(), key.size(), text); }

std::string text_of(const AwsScope& scope) {
  std::string text(scope.time.substr(0, 8));
  for (std::string_view part : {scope.region, scope.service, kEnd}) text.append("/").append(part);
  return text;
}

}  // namespace

std::string aws_hash(std::string_view text) {
  Digest digest;
  ::crypto_hash_sha256(digest.data(), bytes_of(text), text.size());
  return hex(digest);
}

std::string aws_signature(std::string_view secret_key, const AwsScope& scope, std::string_view canonical_request) {
  std::string to_sign(kAlgorithm);
  to_sign.append("\n").append(scope.time).append("\n").append(text_of(scope));
  to_sign.append("\n").append(aws_hash(canonical_request));
  std::string first = "AWS4" + std::string(secret_key);
  Digest key = hmac(bytes_of(first), first.size(), scope.time.substr(0, 8));
  wipe(first);
  for (std::string_view part : {scope.region, scope.service, kEnd}) key = hmac(key, part);
  std::string signature = hex(hmac(key, to_sign));
  ::sodium_memzero(key.data(), key.size());
  return signature;
}

std::string aws_authorization(std::string_view access_key, const AwsScope& scope, std::string_view names,
                              std::string_view signature) {
  std::string text(kAlgorithm);
  text.append(" Credential=").append(access_key).append("/").append(text_of(scope));
  return text.append(", SignedHeaders=").append(names).append(", Signature=").append(signature);
}

}  // namespace isola::vault
