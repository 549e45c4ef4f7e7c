#include "dialect/e2b/rules.h"

#include <gtest/gtest.h>

namespace isola::e2b {
namespace {

using nlohmann::json;

Result<Rules> rules(const char* text) { return read_rules(json::parse(text)); }

std::string refusal(const char* text) {
  auto read = rules(text);
  return read ? "taken" : read.error().message;
}

TEST(Rules, AHeaderNamesASecretOrBringsAValue) {
  auto read = rules(R"({"API.x.org": [{"transform": {"headers": {
    "Authorization": "Bearer ${e2b.secrets.key}", "X-Key": "${e2b.secrets.other}", "X-Mine": "written out"}}}]})");
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->grants.size(), 3u);
  const auto& bearer = read->grants[0];
  EXPECT_EQ(bearer.binding.names, std::vector<std::string>{"api.x.org"});
  EXPECT_EQ(bearer.binding.place, vault::Place::header);
  EXPECT_EQ(bearer.binding.field, "Authorization");
  EXPECT_EQ(bearer.binding.format, "Bearer {}");
  EXPECT_EQ(bearer.binding.secret, "key");
  EXPECT_FALSE(bearer.value);
  EXPECT_EQ(read->grants[1].binding.format, "");
  EXPECT_EQ(read->grants[1].binding.secret, "other");
  ASSERT_TRUE(read->grants[2].value);
  EXPECT_EQ(read->grants[2].value->view(), "written out");
  EXPECT_TRUE(read->name_secrets());
  EXPECT_EQ(read->shown["api.x.org"][0]["transform"]["headers"],
            json::parse(R"({"Authorization": "Bearer ${e2b.secrets.key}", "X-Key": "${e2b.secrets.other}",
                            "X-Mine": "***"})"));
}

TEST(Rules, AHeaderNamesATokenOfTheSandboxesIdentity) {
  auto identities = read_identities(json::parse(R"({"tokens": {
    "aws": {"audience": "sts.example", "tokenType": "JWT-SVID"}}})"));
  ASSERT_TRUE(identities) << identities.error().message;
  const json with = json::parse(R"({"x.org": [{"transform": {"headers": {
    "Authorization": "Bearer ${e2b.identity.tokens.aws}"}}}]})");
  auto read = read_rules(with, *identities);
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->grants.size(), 1u);
  EXPECT_TRUE(read->grants[0].identity);
  EXPECT_EQ(read->grants[0].binding.audience, "sts.example");
  EXPECT_EQ(read->grants[0].binding.format, "Bearer {}");
  EXPECT_TRUE(read->name_secrets()) << "who may decide where it goes is asked";
  EXPECT_FALSE(read_rules(with)) << "a token that nobody named";
  for (const char* odd : {R"([])", R"({"tokens": []})", R"({"tokens": {"a": 1}})", R"({"tokens": {"": {}}})",
                          R"({"tokens": {"a}": {"audience": "x", "tokenType": "JWT-SVID"}}})",
                          R"({"tokens": {"a": {"audience": "", "tokenType": "JWT-SVID"}}})",
                          R"({"tokens": {"a": {"audience": "x\ny", "tokenType": "JWT-SVID"}}})",
                          R"({"tokens": {"a": {"audience": "x", "tokenType": "X509-SVID"}}})"})
    EXPECT_FALSE(read_identities(json::parse(odd))) << odd;
}

TEST(Rules, ANameOfTheProjectsIsAskedForOnlyWhereThereIsOne) {
  EXPECT_FALSE(rules(R"({"x.org": [{"transform": {"headers": {"A": "plain ${HOME}"}}}]})")->name_secrets());
  auto empty = rules(R"({"x.org": [{}], "y.org": [{"transform": {}}], "z.org": []})");
  ASSERT_TRUE(empty) << empty.error().message;
  EXPECT_TRUE(empty->grants.empty());
}

TEST(Rules, TheNarrowestComesFirst) {
  auto read = rules(R"({"*.x.org": [{"transform": {"headers": {"A": "1"}}}],
                        "*.y.x.org": [{"transform": {"headers": {"a": "2", "B": "2"}}}],
                        "api.y.x.org": [{"transform": {"headers": {"A": "3", "b": "3"}}}]})");
  ASSERT_TRUE(read) << read.error().message;
  std::string order;
  for (const auto& grant : read->grants) order += grant.value->view();
  EXPECT_EQ(order, "33221");
}

TEST(Rules, WhatWouldBeMergedIsRefused) {
  const char* both = R"({"*.x.org": [{"transform": {"headers": {"A": "1", "B": "1"}}}],
                         "api.x.org": [{"transform": {"headers": {"A": "2"}}}]})";
  EXPECT_NE(refusal(both).find("also meant by"), std::string::npos) << refusal(both);
  // The name itself is not below its wildcard.
  EXPECT_EQ(refusal(R"({"*.x.org": [{"transform": {"headers": {"A": "1"}}}],
                        "x.org": [{"transform": {"headers": {"B": "2"}}}]})"),
            "taken");
}

TEST(Rules, RefusesWhatCannotBeARule) {
  for (const char* odd :
       {R"([])", R"({"x.org": {}})", R"({"x.org": [1]})", R"({"x.org": [{}, {}]})", R"({"x.org": [{"transform": 1}]})",
        R"({"x.org": [{"transform": {"headers": ["a"]}}]})", R"({"x.org": [{"transform": {"headers": {"A": 1}}}]})",
        R"({"x.org": [{"transform": {"headers": {"A": ""}}}]})",
        R"({"x.org": [{"transform": {"headers": {"A": "a\r\nB: c"}}}]})",
        R"({"x.org": [{"transform": {"headers": {"A b": "c"}}}]})",
        R"({"x.org": [{"transform": {"headers": {"Host": "y.org"}}}]})",
        R"({"x.org": [{"transform": {"headers": {"A": "1", "a": "2"}}}]})",
        R"({"*": [{"transform": {"headers": {"A": "b"}}}]})",
        R"({"x.*.org": [{"transform": {"headers": {"A": "b"}}}]})",
        R"({"x.org": [{"transform": {"headers": {"A": "${e2b.secrets.x"}}}]})",
        R"({"x.org": [{"transform": {"headers": {"A": "${e2b.other.x}"}}}]})",
        R"({"x.org": [{"transform": {"headers": {"A": "${e2b.identity.tokens.aws}"}}}]})",
        R"({"x.org": [{"transform": {"headers": {"A": "${e2b.secrets.x}${e2b.secrets.y}"}}}]})",
        R"({"x.org": [{"transform": {"headers": {"A": "{} ${e2b.secrets.x}"}}}]})"})
    EXPECT_NE(refusal(odd), "taken") << odd;
  json many = json::object();
  for (int i = 0; i < 11; ++i) many["x" + std::to_string(i) + ".org"] = json::array();
  EXPECT_FALSE(read_rules(many));
  json headers = json::object();
  for (int i = 0; i < 21; ++i) headers["X-" + std::to_string(i)] = "a";
  EXPECT_FALSE(read_rules({{"x.org", json::array({{{"transform", {{"headers", headers}}}}})}}));
  headers.clear();
  for (int i = 0; i < 9; ++i) headers["X-" + std::to_string(i)] = std::string(2048, 'a');
  EXPECT_FALSE(read_rules({{"x.org", json::array({{{"transform", {{"headers", headers}}}}})}}));
  headers.erase("X-8");
  EXPECT_TRUE(read_rules({{"x.org", json::array({{{"transform", {{"headers", headers}}}}})}}));
  headers = {{"A", std::string(2049, 'a')}};
  EXPECT_FALSE(read_rules({{"x.org", json::array({{{"transform", {{"headers", headers}}}}})}}));
}

}  // namespace
}  // namespace isola::e2b
