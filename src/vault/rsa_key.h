// An RSA key that signs JSON Web Tokens (RS256), and what others need to check them.
//
//   ISOLA_TRY(RsaKey key, RsaKey::make());
//   ISOLA_TRY(Secret token, key.sign_token(R"({"iss":"https://isola.example","exp":1790000000})", key.id()));
//   publish(key.jwk());
//
// RS256, since it is the one algorithm that every verifier of OpenID tokens has to know.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "vault/seal.h"

struct evp_pkey_st;

namespace isola::vault {

class RsaKey {
 public:
  // 2048 bits; takes some tenths of a second.
  static Result<RsaKey> make();
  // PKCS #1 or PKCS #8, without a passphrase.
  static Result<RsaKey> from_pem(std::string_view pem);
  static Result<RsaKey> from_der(std::string_view der);
  Result<Secret> der() const;

  // The thumbprint of its public half (RFC 7638): the same for whoever computes it.
  const std::string& id() const { return id_; }
  // The public half as a member of a JSON Web Key Set.
  const std::string& jwk() const { return jwk_; }
  // `claims` is a JSON object. An empty `key_id` is left out of the token's head.
  Result<Secret> sign_token(std::string_view claims, std::string_view key_id) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };
  static Result<RsaKey> of(evp_pkey_st* key);

  std::unique_ptr<evp_pkey_st, Free> key_;
  std::string id_, jwk_;
};

// base64url without padding.
std::string to_base64url(std::string_view bytes);

}  // namespace isola::vault
