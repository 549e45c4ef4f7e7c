#include "vault/source.h"

#include <gtest/gtest.h>

namespace isola::vault {
namespace {

constexpr const char* kKv =
    R"({"type":"vault-kv","url":"https://v.example:8200","path":"secret/app/github","field":"token","token":"hvs.deep","ttl":60})";
constexpr const char* kAws =
    R"({"type":"aws","region":"eu-central-1","secret_id":"prod/github","field":"pat","access_key_id":"AKIA1","secret_access_key":"verydeep","session_token":"alsodeep"})";

constexpr const char* kGithub =
    R"({"type":"github-app","app_id":"Iv1.abc","installation_id":"42","private_key":"-----BEGIN verydeep","repositories":["site"],"permissions":{"contents":"read"},"url":"https://github.example/api/v3"})";

TEST(Source, ComesBackAsItWasAndIsShownWithoutItsCredentials) {
  for (const char* text : {R"({"type":"file","path":"/run/keys/x"})", R"({"type":"command","argv":["/bin/pass","x"]})",
                           R"({"type":"env","name":"TOKEN"})", kKv, kAws, kGithub,
                           R"({"type":"jwt","audience":"https://x.example","lifetime":60})"}) {
    auto source = parse_source(text);
    ASSERT_TRUE(source) << source.error().message;
    EXPECT_EQ(to_json(parse_source(to_json(*source)).value()), to_json(*source));
    auto shown = shown_source(*source);
    EXPECT_EQ(shown.find("deep"), std::string::npos) << shown;
    EXPECT_NE(to_json(*source).size(), 0u);
  }
  EXPECT_NE(to_json(parse_source(kKv).value()).find("hvs.deep"), std::string::npos);
  EXPECT_TRUE(is_of_machine(parse_source(R"({"type":"env","name":"T"})").value()));
  EXPECT_FALSE(is_of_machine(parse_source(kKv).value()));
}

TEST(Source, RefusesWhatIsOdd) {
  for (
      const char* odd :
      {"",
       "[]",
       "{}",
       R"({"type":"gopher"})",
       R"({"type":"file","path":"keys"})",
       R"({"type":"file"})",
       R"({"type":"file","path":"/x","name":"y"})",
       R"({"type":"command","argv":[]})",
       R"({"type":"command","argv":["pass"]})",
       R"({"type":"command","argv":"pass"})",
       R"({"type":"env","name":"A=B"})",
       R"({"type":"env","name":"A","ttl":1})",
       R"({"type":"env","name":"A","ttl":"60"})",
       R"({"type":"vault-kv","url":"ftp://x","path":"a/b","field":"f","token":"t"})",
       R"({"type":"vault-kv","url":"http://x/admin?a=","path":"a/b","field":"f","token":"t"})",
       R"({"type":"vault-kv","url":"http://x/admin#","path":"a/b","field":"f","token":"t"})",
       R"({"type":"vault-kv","url":"https://x","path":"a/b","field":"f","token":"t","inside":true})",
       R"({"type":"aws","url":"http://x/?","region":"eu","secret_id":"x","access_key_id":"k","secret_access_key":"s"})",
       R"({"type":"vault-kv","url":"https://x","path":"a/../b","field":"f","token":"t"})",
       R"({"type":"vault-kv","url":"https://x","path":"a/b?c","field":"f","token":"t"})",
       R"({"type":"vault-kv","url":"https://x","path":"a/b","field":"f","token":"t\r\nX: y"})",
       R"({"type":"vault-kv","url":"https://x","path":"a/b","field":"f"})",
       R"({"type":"vault-kv","url":"https://x","path":"a/b","field":"f","token":"t","kv_version":3})",
       R"({"type":"jwt","lifetime":59})",
       R"({"type":"jwt","lifetime":3601})",
       R"({"type":"jwt","ttl":60})",
       R"({"type":"jwt","iss":"https://x"})",
       R"({"type":"github-app","app_id":"1","installation_id":"2"})",
       R"({"type":"github-app","app_id":"1","installation_id":"2/../3","private_key":"-----BEGIN x"})",
       R"({"type":"github-app","app_id":"1","installation_id":"2","private_key":"-----BEGIN x","ttl":60})",
       R"({"type":"github-app","app_id":"1","installation_id":"2","private_key":"-----BEGIN x","repositories":["a/b"]})",
       R"({"type":"github-app","app_id":"1","installation_id":"2","private_key":"-----BEGIN x","permissions":["a"]})",
       R"({"type":"aws","region":"eu","secret_id":"x","access_key_id":"k"})",
       R"({"type":"aws","region":"eu.evil.example/","secret_id":"x","access_key_id":"k","secret_access_key":"s"})"})
    EXPECT_FALSE(parse_source(odd)) << odd;
}

TEST(Source, WhatIsSealedSaysWhatItIs) {
  auto pair = KeyPair::make().value();
  auto value = open_kept(pair, seal_value(pair.open_key(), "hunter2").value()).value();
  EXPECT_FALSE(value.source);
  EXPECT_EQ(value.value.view(), "hunter2");
  auto source = open_kept(pair, seal_source(pair.open_key(), parse_source(kKv).value()).value()).value();
  ASSERT_TRUE(source.source);
  EXPECT_EQ(source.source->token, "hvs.deep");
  EXPECT_FALSE(source.source->inside);
  auto operators = parse_source(kKv).value();
  operators.inside = true;
  EXPECT_TRUE(open_kept(pair, seal_source(pair.open_key(), operators).value()).value().source->inside);
  EXPECT_TRUE(parse_kept(to_kept(operators)).value().inside);
  EXPECT_FALSE(parse_kept(to_json(operators))) << "what JSON says is not enough";
  // A value that looks like a source is a value.
  auto tricky = std::string("s") + R"({"type":"env","name":"A"})";
  EXPECT_EQ(open_kept(pair, seal_value(pair.open_key(), tricky).value()).value().value.view(), tricky);
  EXPECT_FALSE(seal_value(pair.open_key(), ""));
  EXPECT_FALSE(seal_value(pair.open_key(), std::string(kMaxValue + 1, 'x')));
  EXPECT_FALSE(open_kept(pair, seal(pair.open_key(), "xyz").value()));
}

TEST(Source, TheValueIsFoundInTheAnswer) {
  auto kv = parse_source(kKv).value();
  EXPECT_EQ(value_in(kv, R"({"data":{"data":{"token":"t1","other":"o"},"metadata":{}}})").value().view(), "t1");
  EXPECT_FALSE(value_in(kv, R"({"data":{"data":{"other":"o"}}})"));
  EXPECT_FALSE(value_in(kv, R"({"errors":[]})"));
  EXPECT_FALSE(value_in(kv, "<html>"));
  kv.kv_version = 1;
  EXPECT_EQ(value_in(kv, R"({"data":{"token":"t1"}})").value().view(), "t1");
  auto aws = parse_source(kAws).value();
  EXPECT_EQ(value_in(aws, R"({"SecretString":"{\"pat\":\"p1\"}"})").value().view(), "p1");
  EXPECT_FALSE(value_in(aws, R"({"SecretString":"plain"})"));
  aws.field.clear();
  EXPECT_EQ(value_in(aws, R"({"SecretString":"plain"})").value().view(), "plain");
  EXPECT_EQ(value_in(aws, R"({"SecretBinary":"cGxhaW4="})").value().view(), "plain");
  auto file = parse_source(R"({"type":"file","path":"/x"})").value();
  EXPECT_EQ(value_in(file, "one\ntwo\n").value().view(), "one\ntwo");
  EXPECT_FALSE(value_in(file, "\n"));
}

}  // namespace
}  // namespace isola::vault
