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

TEST(Network, SaysWhatIsNotThere) {
  for (const char* text :
       {R"({"network":{"egressProxy":{"address":"p.example:1080"}}})", R"({"network":{"dnsServers":["1.1.1.1"]}})"}) {
    auto network = read_network(json::parse(text));
    ASSERT_FALSE(network) << text;
    EXPECT_EQ(network.error().code, Code::unsupported);
  }
}

TEST(Network, PortsThatSpeakTlsAreRemembered) {
  auto network = read_network(json::parse(R"({"network":{"httpsPorts":[8443,1,65535]}})"));
  ASSERT_TRUE(network) << network.error().message;
  EXPECT_EQ(network->policy, "default allow\n");
  const std::vector<uint16_t> wanted{8443, 1, 65535};
  EXPECT_EQ(Notes::of({{kNotesLabel, network->notes.to_text()}})->https_ports, wanted);
  // An update speaks of what leaves the sandbox.
  auto later = read_network_update(json::parse(R"({"denyOut":["1.2.3.4"]})"), network->notes);
  ASSERT_TRUE(later);
  EXPECT_EQ(later->notes.https_ports, wanted);
  for (const char* wrong : {"[0]", "[65536]", "[-1]", "[\"443\"]", "[1.5]", "443", "{\"a\":1}"})
    EXPECT_EQ(read_network(json::parse(std::string(R"({"network":{"httpsPorts":)") + wrong + "}}")).error().code,
              Code::invalid)
        << wrong;
}

TEST(Network, RulesOpenNothingAndTheirValuesAreNotKept) {
  auto network = read_network(json::parse(
      R"({"network":{"rules":{"x.org":[{"transform":{"headers":{"A":"hunter2","B":"${e2b.secrets.s}"}}}]}}})"));
  ASSERT_TRUE(network) << network.error().message;
  EXPECT_EQ(network->policy, "default allow\n");
  ASSERT_EQ(network->rules.grants.size(), 2u);
  EXPECT_TRUE(network->notes.have_rules());
  EXPECT_EQ(network->notes.to_text().find("hunter2"), std::string::npos);
  EXPECT_NE(network->notes.to_text().find("${e2b.secrets.s}"), std::string::npos);
  auto none = read_network_update(json::parse("{}"), network->notes);
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->rules.grants.empty());
  EXPECT_FALSE(none->notes.have_rules());
  auto others = read_network_update(json::parse(R"({"rules":{"y.org":[{"transform":{"headers":{"A":"hunter3"}}}]}})"),
                                    network->notes);
  ASSERT_TRUE(others);
  EXPECT_EQ(others->rules.grants.size(), 1u);
  EXPECT_EQ(others->notes.network.find("hunter3"), std::string::npos);
  EXPECT_EQ(others->notes.network.find("x.org"), std::string::npos);
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

TEST(Network, AnUpdateThatDoesNotSpeakOfTheInternetOpensIt) {
  Notes before;
  before.internet = false;
  auto open = read_network_update(json::parse("{}"), before);
  ASSERT_TRUE(open);
  EXPECT_EQ(open->policy, "default allow\n");
  EXPECT_FALSE(open->notes.internet) << "it says what no longer holds";
  auto closed = read_network_update(json::parse(R"({"allow_internet_access":false})"), open->notes);
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->policy, "default deny\n");
  EXPECT_EQ(closed->notes.internet, false);
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
