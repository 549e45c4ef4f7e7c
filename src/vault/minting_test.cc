#include "vault/minting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace isola::vault {
namespace {

using nlohmann::json;

constexpr int64_t kNow = 1'790'000'000'000;
constexpr const char* kIdentity =
    R"({"iss":"https://isola.example","project":"default","task":"t1","actor":"alice","template":"base","sub":"forged","sandbox":"forged"})";

json claims_of(std::string_view token) {
  auto first = token.find('.'), last = token.rfind('.');
  std::string text(token.substr(first + 1, last - first - 1));
  std::replace(text.begin(), text.end(), '-', '+');
  std::replace(text.begin(), text.end(), '_', '/');
  while (text.size() % 4) text += '=';
  return json::parse(from_base64(text).value());
}

Source jwt(const char* text = R"({"type":"jwt","audience":"https://a.example","lifetime":120})") {
  return parse_source(text).value();
}

TEST(Minting, ATokenSaysWhoTheSandboxIs) {
  auto key = RsaKey::make().value();
  Binding binding;
  binding.identity = kIdentity;
  auto made = make_identity_token(key, jwt(), binding, "i1234", kNow);
  ASSERT_TRUE(made) << made.error().message;
  auto claims = claims_of(made->value.view());
  EXPECT_EQ(claims.at("iss"), "https://isola.example");
  EXPECT_EQ(claims.at("aud"), "https://a.example");
  EXPECT_EQ(claims.at("sub"), "project:default:sandbox:i1234") << "what the server says of it does not count";
  EXPECT_EQ(claims.at("sandbox"), "i1234");
  EXPECT_EQ(claims.at("task"), "t1");
  EXPECT_EQ(claims.at("actor"), "alice");
  EXPECT_EQ(claims.at("exp").get<int64_t>() - claims.at("iat").get<int64_t>(), 120);
  EXPECT_EQ(claims.at("jti"), made->serial);
  EXPECT_LT(made->due, made->until);
  EXPECT_LT(made->until, kNow + 120'000);
  EXPECT_EQ(made->due, kNow + 90'000);
  EXPECT_NE(make_identity_token(key, jwt(), binding, "i1234", kNow)->serial, made->serial);
  binding.audience = "https://b.example";
  EXPECT_EQ(claims_of(make_identity_token(key, jwt(), binding, "i1234", kNow)->value.view()).at("aud"),
            "https://b.example");
}

TEST(Minting, NoTokenWithoutIssuerProjectOrAudience) {
  auto key = RsaKey::make().value();
  Binding binding;
  for (const char* identity : {"", "[]", R"({"project":"p"})", R"({"iss":"https://x"})", R"({"iss":"","project":"p"})",
                               R"({"iss":7,"project":"p"})"}) {
    binding.identity = identity;
    EXPECT_FALSE(make_identity_token(key, jwt(), binding, "i1", kNow)) << identity;
  }
  binding.identity = kIdentity;
  EXPECT_FALSE(make_identity_token(key, jwt(R"({"type":"jwt"})"), binding, "i1", kNow));
}

TEST(Minting, ReadsWhatGithubAnswers) {
  auto made = read_github_answer(R"({"token":"ghs_1","expires_at":"2026-09-21T15:13:20Z","permissions":{}})", kNow);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->value.view(), "ghs_1");
  EXPECT_GT(made->until, kNow);
  EXPECT_LE(made->until, kNow + 3'600'000) << "never longer than an hour";
  for (const char* odd : {"", "{}", "[]", R"({"token":"x"})", R"({"token":7,"expires_at":"2026-09-21T15:13:20Z"})",
                          R"({"token":"","expires_at":"2027-09-21T14:13:20Z"})", R"({"token":"x","expires_at":"soon"})",
                          R"({"token":"x","expires_at":"2001-09-21T14:13:20Z"})"})
    EXPECT_FALSE(read_github_answer(odd, kNow)) << odd;
}

TEST(Minting, AMarkChangesWithWhatATokenIsMadeOf) {
  Binding binding;
  binding.sealed = "a";
  auto mark = mark_of(binding, "k");
  EXPECT_EQ(mark_of(binding, "k"), mark);
  EXPECT_NE(mark_of(binding, "l"), mark);
  for (auto part : {&Binding::sealed, &Binding::audience, &Binding::identity}) {
    Binding other = binding;
    other.*part += "x";
    EXPECT_NE(mark_of(other, "k"), mark);
  }
}

}  // namespace
}  // namespace isola::vault
