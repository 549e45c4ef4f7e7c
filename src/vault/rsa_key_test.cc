#include "vault/rsa_key.h"

#include <gtest/gtest.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/rsa.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

namespace isola::vault {
namespace {

using nlohmann::json;

std::string from_base64url(std::string text) {
  std::replace(text.begin(), text.end(), '-', '+');
  std::replace(text.begin(), text.end(), '_', '/');
  while (text.size() % 4) text += '=';
  return from_base64(text).value();
}

// With what is published alone.
bool is_signed_by(std::string_view token, const std::string& jwk) {
  json key = json::parse(jwk);
  auto number = [&](const char* name) {
    auto bytes = from_base64url(key.at(name).get<std::string>());
    return BN_bin2bn(reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()), nullptr);
  };
  std::unique_ptr<BIGNUM, void (*)(BIGNUM*)> n(number("n"), BN_free), e(number("e"), BN_free);
  std::unique_ptr<OSSL_PARAM_BLD, void (*)(OSSL_PARAM_BLD*)> build(OSSL_PARAM_BLD_new(), OSSL_PARAM_BLD_free);
  OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_RSA_N, n.get());
  OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_RSA_E, e.get());
  std::unique_ptr<OSSL_PARAM, void (*)(OSSL_PARAM*)> parts(OSSL_PARAM_BLD_to_param(build.get()), OSSL_PARAM_free);
  std::unique_ptr<EVP_PKEY_CTX, void (*)(EVP_PKEY_CTX*)> context(EVP_PKEY_CTX_new_from_name(nullptr, "RSA", nullptr),
                                                                 EVP_PKEY_CTX_free);
  EVP_PKEY* raw = nullptr;
  EVP_PKEY_fromdata_init(context.get());
  EVP_PKEY_fromdata(context.get(), &raw, EVP_PKEY_PUBLIC_KEY, parts.get());
  std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> open(raw, EVP_PKEY_free);
  auto dot = token.rfind('.');
  auto signature = from_base64url(std::string(token.substr(dot + 1)));
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> check(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  return EVP_DigestVerifyInit(check.get(), nullptr, EVP_sha256(), nullptr, open.get()) == 1 &&
         EVP_DigestVerify(check.get(), reinterpret_cast<const unsigned char*>(signature.data()), signature.size(),
                          reinterpret_cast<const unsigned char*>(token.data()), dot) == 1;
}

TEST(RsaKey, SignsWhatThePublishedHalfChecks) {
  auto key = RsaKey::make().value(), other = RsaKey::make().value();
  auto token = key.sign_token(R"({"sub":"me"})", key.id()).value();
  std::string text(token.view());
  EXPECT_TRUE(is_signed_by(text, key.jwk()));
  EXPECT_FALSE(is_signed_by(text, other.jwk()));
  EXPECT_FALSE(is_signed_by("x" + text, key.jwk()));
  auto head = json::parse(from_base64url(text.substr(0, text.find('.'))));
  EXPECT_EQ(head, (json{{"alg", "RS256"}, {"typ", "JWT"}, {"kid", key.id()}}));
  EXPECT_NE(key.id(), other.id());
  EXPECT_EQ(json::parse(key.jwk()).at("kid"), key.id());
  EXPECT_FALSE(json::parse(key.jwk()).contains("d")) << "the private half is published";
}

TEST(RsaKey, ComesBackFromWhatIsKept) {
  auto key = RsaKey::make().value();
  auto again = RsaKey::from_der(key.der().value().view());
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->id(), key.id());
}

TEST(RsaKey, Base64OfUrlsHasItsOwnLettersAndNoPadding) {
  EXPECT_EQ(to_base64url(std::string("\xfb\xff\xfe", 3)), "-__-");
  EXPECT_EQ(to_base64url("a"), "YQ");
}

TEST(RsaKey, RefusesWhatIsNone) {
  for (const char* odd : {"", "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n", "hello"})
    EXPECT_FALSE(RsaKey::from_pem(odd)) << odd;
  EXPECT_FALSE(RsaKey::from_der("hello"));
  std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> small(EVP_RSA_gen(1024), EVP_PKEY_free);
  std::vector<unsigned char> der(static_cast<size_t>(i2d_PrivateKey(small.get(), nullptr)));
  auto* at = der.data();
  i2d_PrivateKey(small.get(), &at);
  EXPECT_FALSE(RsaKey::from_der({reinterpret_cast<const char*>(der.data()), der.size()})) << "1024 bits are too few";
}

}  // namespace
}  // namespace isola::vault
