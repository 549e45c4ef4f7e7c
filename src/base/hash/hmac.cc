#include "base/hash/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace isola {

Result<std::string> hmac_sha256(std::string_view key, std::string_view bytes) {
  unsigned char raw[EVP_MAX_MD_SIZE];
  unsigned int n = 0;
  if (!::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
              reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), raw, &n))
    return fail(Code::internal, "the crypto library refuses HMAC-SHA-256");
  std::string out(reinterpret_cast<const char*>(raw), n);
  ::OPENSSL_cleanse(raw, sizeof raw);
  return out;
}

std::string to_hex(std::string_view bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (char c : bytes) {
    auto byte = static_cast<unsigned char>(c);
    out.push_back(kHex[byte >> 4]);
    out.push_back(kHex[byte & 15]);
  }
  return out;
}

Result<std::string> from_hex(std::string_view digits) {
  auto number = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  std::string out;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    int high = number(digits[i]), low = number(digits[i + 1]);
    if (high < 0 || low < 0) return fail(Code::invalid, "these are not hex digits");
    out.push_back(static_cast<char>(high << 4 | low));
  }
  if (digits.size() % 2) return fail(Code::invalid, "these are not hex digits");
  return out;
}

void wipe(std::string& secret) {
  if (!secret.empty()) ::OPENSSL_cleanse(secret.data(), secret.size());
  secret.clear();
}

}  // namespace isola
