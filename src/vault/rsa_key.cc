#include "vault/rsa_key.h"

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "vault/bytes.h"

namespace isola::vault {

namespace {

using nlohmann::json;

constexpr unsigned kBits = 2048;
constexpr int kFewestBits = 2048, kMostBits = 8192;

struct Freer {
  void operator()(BIO* bio) const { ::BIO_free(bio); }
  void operator()(BIGNUM* number) const { ::BN_free(number); }
  void operator()(EVP_MD_CTX* context) const { ::EVP_MD_CTX_free(context); }
};

// OpenSSL would ask a terminal for it.
int no_passphrase(char*, int, int, void*) { return 0; }

std::unexpected<Error> no_key() {
  ::ERR_clear_error();
  return fail(Code::invalid, "that is no RSA key of 2048 bits or more without a passphrase (PEM)");
}

Result<std::string> number_of(EVP_PKEY* key, const char* name) {
  BIGNUM* raw = nullptr;
  if (::EVP_PKEY_get_bn_param(key, name, &raw) != 1) return no_key();
  std::unique_ptr<BIGNUM, Freer> number(raw);
  std::string bytes(static_cast<size_t>(BN_num_bytes(raw)), '\0');
  ::BN_bn2bin(raw, reinterpret_cast<unsigned char*>(bytes.data()));
  return to_base64url(bytes);
}

}  // namespace

std::string to_base64url(std::string_view bytes) {
  std::string text = to_base64(bytes);
  while (text.ends_with('=')) text.pop_back();
  std::replace(text.begin(), text.end(), '+', '-');
  std::replace(text.begin(), text.end(), '/', '_');
  return text;
}

void RsaKey::Free::operator()(evp_pkey_st* key) const { ::EVP_PKEY_free(key); }

Result<RsaKey> RsaKey::of(evp_pkey_st* raw) {
  RsaKey key;
  key.key_.reset(raw);
  if (!raw || ::EVP_PKEY_get_base_id(raw) != EVP_PKEY_RSA || ::EVP_PKEY_get_bits(raw) < kFewestBits ||
      ::EVP_PKEY_get_bits(raw) > kMostBits)
    return no_key();
  ISOLA_TRY(std::string modulus, number_of(raw, OSSL_PKEY_PARAM_RSA_N));
  ISOLA_TRY(std::string exponent, number_of(raw, OSSL_PKEY_PARAM_RSA_E));
  // The thumbprint is of exactly these members, in this order.
  std::string print = R"({"e":")" + exponent + R"(","kty":"RSA","n":")" + modulus + R"("})";
  std::string digest(32, '\0');
  unsigned size = 0;
  if (::EVP_Digest(print.data(), print.size(), reinterpret_cast<unsigned char*>(digest.data()), &size, EVP_sha256(),
                   nullptr) != 1)
    return no_key();
  key.id_ = to_base64url(digest);
  key.jwk_ =
      json{{"kty", "RSA"}, {"use", "sig"}, {"alg", "RS256"}, {"kid", key.id_}, {"n", modulus}, {"e", exponent}}.dump();
  return key;
}

Result<RsaKey> RsaKey::make() { return of(::EVP_RSA_gen(kBits)); }

Result<RsaKey> RsaKey::from_pem(std::string_view pem) {
  std::unique_ptr<BIO, Freer> bio(::BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  if (!bio) return fail(Code::exhausted, "no memory for a key");
  return of(::PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
}

Result<RsaKey> RsaKey::from_der(std::string_view der) {
  const unsigned char* at = bytes_of(der);
  return of(::d2i_AutoPrivateKey(nullptr, &at, static_cast<long>(der.size())));
}

Result<Secret> RsaKey::der() const {
  int size = ::i2d_PrivateKey(key_.get(), nullptr);
  if (size <= 0) return no_key();
  Secret out = Secret::of_size(static_cast<size_t>(size));
  auto* at = reinterpret_cast<unsigned char*>(out.data());
  if (::i2d_PrivateKey(key_.get(), &at) != size) return no_key();
  return out;
}

Result<Secret> RsaKey::sign_token(std::string_view claims, std::string_view key_id) const {
  json head = {{"alg", "RS256"}, {"typ", "JWT"}};
  if (!key_id.empty()) head["kid"] = key_id;
  std::string text = to_base64url(head.dump()) + "." + to_base64url(claims);
  std::unique_ptr<EVP_MD_CTX, Freer> context(::EVP_MD_CTX_new());
  size_t size = 0;
  if (!context || ::EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key_.get()) != 1 ||
      ::EVP_DigestSign(context.get(), nullptr, &size, bytes_of(text), text.size()) != 1)
    return fail(Code::internal, "a token cannot be signed");
  std::string signature(size, '\0');
  if (::EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size, bytes_of(text),
                       text.size()) != 1)
    return fail(Code::internal, "a token cannot be signed");
  signature.resize(size);
  text += "." + to_base64url(signature);
  Secret token(text);
  wipe(text);
  return token;
}

}  // namespace isola::vault
