#include "dialect/e2b/network.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gate/policy.h"

namespace isola::e2b {
namespace {

using nlohmann::json;

std::string policy(const char* text) {
  auto network = read_network(json::parse(text));
  if (!network) return "refused: " + network.error().message;
  // Whatever comes out is a policy.
  EXPECT_TRUE(gate::parse_policy(network->policy)) << network->policy;
  return network->policy;
}

TEST(Network, TheInternetIsOpenUnlessSomethingIsSaid) {
  EXPECT_EQ(policy("{}"), "default allow\n");
  EXPECT_EQ(policy(R"({"allow_internet_access":true,"network":{}})"), "default allow\n");
  EXPECT_EQ(policy(R"({"allow_internet_access":false})"), "default deny\n");
}

TEST(Network, AnAllowWinsOverADeny) {
  EXPECT_EQ(policy(R"({"network":{"allowOut":["8.8.8.8"],"denyOut":["8.8.0.0/16"]}})"),
            "allow 8.8.8.8\ndeny 8.8.0.0/16\ndefault allow\n");
  EXPECT_EQ(policy(R"({"network":{"allowOut":["*.x.org","2001:db8::/32"],"denyOut":["0.0.0.0/0"]}})"),
            "allow *.x.org\nallow [2001:db8::/32]\ndeny *\ndefault allow\n");
  EXPECT_EQ(policy(R"({"allow_internet_access":false,"network":{"allowOut":["x.org"]}})"),
            "allow x.org\ndefault deny\n");
}

TEST(Network, RefusesWhatE2bRefuses) {
  EXPECT_TRUE(
      policy(R"({"network":{"allowOut":["x.org"]}})").starts_with("refused: "));  // without a deny it says nothing
  EXPECT_TRUE(policy(R"({"network":{"denyOut":["x.org"]}})").starts_with("refused: "));
  EXPECT_TRUE(policy(R"({"network":{"denyOut":["1.2.3.4/33"]}})").starts_with("refused: "));
  EXPECT_TRUE(policy(R"({"network":{"allowOut":"x"}})").starts_with("refused: "));
  EXPECT_TRUE(policy(R"({"network":{"maskRequestHost":"a\r\nb"}})").starts_with("refused: "));
}

TEST(Network, NothingCanBeSmuggledIntoThePolicy) {
  EXPECT_TRUE(policy(R"({"network":{"allowOut":["x\nallow *"],"denyOut":["0.0.0.0/0"]}})").starts_with("refused: "));
  EXPECT_TRUE(
      policy(R"({"network":{"allowOut":["x.org:22 local"],"denyOut":["0.0.0.0/0"]}})").starts_with("refused: "));
}

TEST(Network, SaysWhatIsNotThereYet) {
  auto rules = read_network(json::parse(R"({"network":{"rules":{"x.org":[{"transform":{"headers":{"a":"b"}}}]}}})"));
  ASSERT_FALSE(rules);
  EXPECT_EQ(rules.error().code, Code::unsupported);
}

TEST(Network, NotesComeBackAsTheyWereAndAreNeverShown) {
  auto network = read_network(json::parse(
      R"({"allow_internet_access":false,"network":{"maskRequestHost":"localhost:${PORT}","allowPublicTraffic":false}})"));
  ASSERT_TRUE(network);
  EXPECT_FALSE(network->public_ports);
  store::Labels labels = {{"a", "b"}, {kNotesLabel, network->notes.to_text()}};
  auto notes = Notes::of(labels);
  ASSERT_TRUE(notes);
  EXPECT_EQ(notes->internet, false);
  EXPECT_EQ(notes->mask_host, "localhost:${PORT}");
  EXPECT_EQ(json::parse(notes->network)["allowPublicTraffic"], false);
  EXPECT_EQ(without_notes(labels), (store::Labels{{"a", "b"}}));
  EXPECT_FALSE(Notes::of({{"a", "b"}}));
}

TEST(Network, AnUpdateReplacesTheRulesAndKeepsTheRest) {
  Notes before;
  before.network = R"({"allowOut":["1.1.1.1"],"maskRequestHost":"x"})";
  auto network = read_network_update(json::parse(R"({"denyOut":["2.2.2.2"]})"), before);
  ASSERT_TRUE(network);
  EXPECT_EQ(network->policy, "deny 2.2.2.2\ndefault allow\n");
  EXPECT_EQ(json::parse(network->notes.network), json::parse(R"({"denyOut":["2.2.2.2"],"maskRequestHost":"x"})"));
}

}  // namespace
}  // namespace isola::e2b
