#include "gate/policy.h"

#include <gtest/gtest.h>

#include "gate/test_address.h"

namespace isola::gate {
namespace {

Policy policy(std::string_view text) {
  auto read = parse_policy(text);
  EXPECT_TRUE(read) << read.error().message << "\n" << text;
  return read ? *read : Policy();
}
Egress egress(std::string_view text, std::optional<std::string_view> ceiling = std::nullopt) {
  return ceiling ? Egress(policy(text), policy(*ceiling)) : Egress(policy(text));
}
Reason by_name(const Egress& e, std::string_view name, uint16_t port) { return e.connect_name(name, port).reason; }
Reason by_address(const Egress& e, std::string_view address, uint16_t port, std::string_view name = "") {
  return e.connect_address(name, at(address), port).reason;
}

TEST(Policy, TextAndJsonSayTheSame) {
  const char* text =
      "allow api.example.org\n"
      "allow *.example.net:443\n"
      "allow db.corp.example:5432 local\n"
      "deny 203.0.113.0/24\n"
      "allow [2001:db8::/32]:80,8000-8100\n"
      "deny *:25\n"
      "allow api.example.org:443 methods GET,HEAD paths /repos/,/user\n"
      "allow *.example.net local methods M-SEARCH\n"
      "deny *.example.net paths /a%2Cb\n"
      "default allow\n"
      "limit connections 12\n"
      "limit connections-per-second 7\n"
      "limit bytes-per-second 1048576\n"
      "learn\n";
  EXPECT_EQ(to_text(policy(text)), text);
  auto again = parse_policy_json(to_json(policy(text)));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(*again, policy(text));
}

TEST(Policy, OddTextIsRefusedWithItsLine) {
  for (const char* bad : {"permit a",
                          "allow",
                          "allow a b",
                          "allow a local local",
                          "allow a:0",
                          "allow a:65536",
                          "allow a:",
                          "allow a:1-",
                          "allow a:9-2",
                          "allow a:1,,2",
                          "allow **.a",
                          "allow a.*",
                          "allow a*.b",
                          "allow 1.2.3.4/8",
                          "allow 127.1",
                          "allow [::1",
                          "allow [::1]80",
                          "deny a local",
                          "allow * local",
                          "allow 10.0.0.0/8 local",
                          "default",
                          "default x",
                          "limit x 1",
                          "limit connections",
                          "limit connections -1",
                          "limit connections 1x",
                          "learn now",
                          "allow ex\xc3\xa4mple",
                          "allow a..b",
                          "allow a: 80"}) {
    auto read = parse_policy(std::string("\n") + bad);
    ASSERT_FALSE(read) << bad;
    EXPECT_TRUE(read.error().message.starts_with("line 2")) << read.error().message;
  }
  EXPECT_FALSE(parse_policy(std::string(kMaxPolicyText + 1, '\n')));
  for (const char* bad : {"", "[]", "{\"x\":1}", "{\"default\":\"maybe\"}", "{\"rules\":{}}", "{\"rules\":[{}]}",
                          "{\"rules\":[{\"action\":\"allow\",\"to\":1}]}", "{\"limits\":{\"connections\":-1}}",
                          "{\"limits\":{\"connections\":4294967296}}", "{\"learn\":1}",
                          "{\"rules\":[{\"action\":\"allow\",\"to\":\"a\\u0000b\"}]}"})
    EXPECT_FALSE(parse_policy_json(bad)) << bad;
}

TEST(Policy, TheFirstMatchDecides) {
  auto e = egress("deny secret.example.net\nallow *.example.net:443\ndeny *:25\ndefault allow");
  EXPECT_EQ(by_name(e, "secret.example.net", 443), Reason::policy);
  EXPECT_EQ(by_name(e, "a.example.net", 443), Reason::allowed);
  EXPECT_EQ(by_name(e, "other.example", 25), Reason::policy);
  EXPECT_EQ(by_name(e, "other.example", 80), Reason::allowed);
  EXPECT_EQ(e.connect_name("secret.example.net", 1).rule, "deny secret.example.net");
  EXPECT_EQ(e.connect_name("x.example", 1).rule, "default allow");
}

TEST(Policy, NoneDeniesAndIsTheDefault) {
  Egress e{Policy::none()};
  EXPECT_EQ(by_name(e, "example.org", 443), Reason::policy);
  EXPECT_EQ(by_address(e, "8.8.8.8", 443), Reason::policy);
  EXPECT_FALSE(e.may_resolve("example.org").allowed());
  EXPECT_EQ(policy(""), Policy::none());
}

TEST(Policy, WildcardsMeanWholeLabelsBelow) {
  auto e = egress("allow *.example.net");
  EXPECT_EQ(by_name(e, "a.example.net", 1), Reason::allowed);
  EXPECT_EQ(by_name(e, "a.b.example.net", 1), Reason::allowed);
  for (const char* other : {"example.net", "evilexample.net", "example.net.evil.org", "a.example.net.evil", "net"})
    EXPECT_EQ(by_name(e, other, 1), Reason::policy) << other;
}

TEST(Policy, ANameIsLookedUpOnlyIfSomePortCouldBeReached) {
  auto e = egress("deny a.example:80\nallow a.example:443\nallow 10.0.0.0/8\ndefault deny");
  EXPECT_TRUE(e.may_resolve("a.example").allowed());
  EXPECT_FALSE(e.may_resolve("b.example").allowed()) << "a rule about addresses is no reason to look a name up";
  auto closed = egress("deny a.example\ndefault allow");
  EXPECT_FALSE(closed.may_resolve("a.example").allowed());
  EXPECT_TRUE(closed.may_resolve("b.example").allowed());
}

TEST(Policy, LiteralAddressesMatchOnlyRulesAboutAddresses) {
  auto e = egress("allow example.org\nallow 8.8.8.0/24:53\ndefault deny");
  EXPECT_EQ(by_address(e, "8.8.8.8", 53), Reason::allowed);
  EXPECT_EQ(by_address(e, "8.8.8.8", 443), Reason::policy);
  EXPECT_EQ(by_address(e, "93.184.216.34", 443), Reason::policy);
  EXPECT_EQ(by_address(e, "93.184.216.34", 443, "example.org"), Reason::allowed);
  EXPECT_EQ(by_address(e, "8.8.8.8", 53, "other.org"), Reason::allowed) << "the name was judged before";
  EXPECT_EQ(by_name(e, "other.org", 53), Reason::policy);
}

TEST(Policy, DeniedNetworksHoldForNamesToo) {
  auto e = egress("deny 203.0.113.0/24\nallow *\n");
  EXPECT_EQ(by_address(e, "203.0.113.9", 443, "a.example"), Reason::policy);
  EXPECT_EQ(by_address(e, "198.51.100.9", 443, "a.example"), Reason::allowed);
}

TEST(Policy, InsidePlacesAreRefusedUnlessARuleSpeaksOfThem) {
  const char* inside[] = {"10.0.0.1",        "192.168.1.1",   "172.16.0.1",      "100.64.0.1",   "127.0.0.1",
                          "169.254.169.254", "0.0.0.0",       "224.0.0.1",       "fd00::1",      "::1",
                          "fe80::1",         "fd00:ec2::254", "64:ff9b::7f00:1", "2002:a00:1::", "168.63.129.16"};
  for (const char* text : {"default allow", "allow *", "allow 0.0.0.0/0\nallow ::/0", "allow rebind.example",
                           "allow *.example\nallow rebind.example", "learn"})
    for (const char* address : inside) {
      EXPECT_EQ(by_address(egress(text), address, 80, "rebind.example"), Reason::place) << text << " " << address;
      auto literal = by_address(egress(text), address, 80);
      EXPECT_TRUE(literal == Reason::place || literal == Reason::policy) << text << " " << address;
    }
  EXPECT_EQ(by_address(egress("allow 10.1.0.0/16"), "10.1.2.3", 80), Reason::allowed);
  EXPECT_EQ(by_address(egress("allow 10.1.0.0/16"), "10.2.0.1", 80), Reason::policy);
  EXPECT_EQ(by_address(egress("default allow\nallow 10.1.0.0/16"), "10.2.0.1", 80), Reason::place);
  EXPECT_EQ(by_address(egress("allow 169.254.169.254"), "169.254.169.254", 80), Reason::allowed);
  EXPECT_EQ(by_address(egress("allow 169.254.0.0/16"), "169.254.169.254", 80), Reason::place)
      << "metadata must be named by itself";
  // Marked names reach private places, and nothing worse.
  auto marked = egress("allow db.corp.example local");
  EXPECT_EQ(by_address(marked, "10.0.0.1", 5432, "db.corp.example"), Reason::allowed);
  EXPECT_EQ(by_address(marked, "127.0.0.1", 5432, "db.corp.example"), Reason::place);
  EXPECT_EQ(by_address(marked, "169.254.169.254", 80, "db.corp.example"), Reason::place);
  // Name and network together.
  auto both = egress("allow db.corp.example\nallow 10.0.0.0/8");
  EXPECT_EQ(by_address(both, "10.0.0.1", 5432, "db.corp.example"), Reason::allowed);
  auto denied = egress("allow db.corp.example\ndeny 10.0.0.1\nallow 10.0.0.0/8");
  EXPECT_EQ(by_address(denied, "10.0.0.1", 5432, "db.corp.example"), Reason::place);
}

TEST(Policy, NothingExceedsTheCeiling) {
  auto e = egress("default allow\nlimit connections 5000\nlimit bytes-per-second 9000",
                  "allow *.example\nlimit connections 10\nlimit bytes-per-second 1000");
  EXPECT_EQ(by_name(e, "a.example", 443), Reason::allowed);
  EXPECT_EQ(by_name(e, "a.org", 443), Reason::ceiling);
  EXPECT_EQ(e.may_resolve("a.org").reason, Reason::ceiling);
  EXPECT_EQ(by_address(e, "8.8.8.8", 443), Reason::ceiling);
  EXPECT_EQ(e.limits().connections, 10U);
  EXPECT_EQ(e.limits().bytes_per_second, 1000U);
  EXPECT_TRUE(e.verifies_tls());
  auto inside = egress("allow 10.0.0.0/8", "allow *");
  EXPECT_EQ(by_address(inside, "10.0.0.1", 80), Reason::place) << "a ceiling with rules must speak of the place, too";
  EXPECT_EQ(by_address(egress("allow 10.0.0.0/8"), "10.0.0.1", 80), Reason::allowed);
  auto learnt = egress("learn", "allow *.example");
  EXPECT_EQ(by_name(learnt, "a.org", 443), Reason::ceiling);
  EXPECT_EQ(by_name(learnt, "a.example", 443), Reason::learnt);
}

TEST(Policy, ResolversOutsideMustBeNamedUnderAPolicyOfNames) {
  auto e = egress("allow dns.quad9.net:443,853\nallow *.google:443\nallow *:853\ndefault deny");
  EXPECT_EQ(by_name(e, "dns.google", 443), Reason::public_resolver);
  EXPECT_EQ(e.may_resolve("dns.google").reason, Reason::public_resolver);
  EXPECT_EQ(by_name(e, "dns.quad9.net", 443), Reason::allowed);
  EXPECT_EQ(by_name(e, "dns.quad9.net", 853), Reason::allowed);
  EXPECT_EQ(by_name(egress("allow a.example"), "a.example", 853), Reason::public_resolver);
  EXPECT_EQ(by_name(egress("allow a.example:853"), "a.example", 853), Reason::allowed);
  EXPECT_EQ(by_name(Egress(Policy::all()), "dns.google", 443), Reason::allowed);
  EXPECT_EQ(by_name(Egress(Policy::all()), "a.example", 853), Reason::allowed);
}

TEST(Policy, KnowsWhetherNamesMatter) {
  EXPECT_FALSE(Policy::all().restricts_names());
  EXPECT_FALSE(policy("deny 10.0.0.0/8\ndefault allow").restricts_names());
  EXPECT_FALSE(policy("allow *\ndeny a.example\ndefault deny").restricts_names());
  EXPECT_TRUE(policy("deny a.example\ndefault allow").restricts_names());
  EXPECT_TRUE(policy("allow *:443").restricts_names());
  EXPECT_TRUE(Policy::none().restricts_names());
  EXPECT_FALSE(policy("learn").restricts_names());
}

// What is written as a ceiling opens nothing inside unless it says so, however wide it is.
TEST(Policy, AWideCeilingOpensNoInsidePlace) {
  const char* wants = "allow 169.254.169.254\nallow 10.0.0.0/8\nallow 192.0.2.7\n";
  for (const char* ceiling : {"default allow", "default allow\nlimit bytes-per-second 10M", "allow *"}) {
    auto e = egress(wants, ceiling);
    EXPECT_EQ(by_address(e, "169.254.169.254", 80), Reason::place) << ceiling;
    EXPECT_EQ(by_address(e, "10.1.2.3", 80), Reason::place) << ceiling;
    EXPECT_EQ(by_address(e, "192.0.2.7", 80), Reason::allowed) << ceiling;
    EXPECT_FALSE(e.names_address(at("192.0.2.7"), 80)) << ceiling;
  }
  EXPECT_EQ(by_address(egress(wants), "169.254.169.254", 80), Reason::allowed);
  EXPECT_EQ(by_address(egress(wants, "allow 10.0.0.0/8"), "10.1.2.3", 80), Reason::allowed);
  EXPECT_TRUE(egress(wants).names_address(at("192.0.2.7"), 80));
}

// One service of the host is not the host.
TEST(Policy, APortOfAnOwnAddressIsThatPort) {
  auto e = egress("allow 192.0.2.7:8080\ndefault allow");
  EXPECT_TRUE(e.names_address(at("192.0.2.7"), 8080));
  EXPECT_FALSE(e.names_address(at("192.0.2.7"), 22));
  auto under = egress("allow 192.0.2.7", "allow 192.0.2.7:8080\ndefault allow");
  EXPECT_TRUE(under.names_address(at("192.0.2.7"), 8080));
  EXPECT_FALSE(under.names_address(at("192.0.2.7"), 22));
}

// "Everything but that name": a literal address is no way to a stranger's name server either.
TEST(Policy, LiteralAddressesOfNameServersUnderAPolicyOfNames) {
  auto e = egress("deny b.example\ndefault allow");
  EXPECT_EQ(by_address(e, "203.0.113.5", 853), Reason::public_resolver);
  EXPECT_EQ(by_address(e, "1.1.1.1", 443), Reason::public_resolver);
  EXPECT_EQ(by_address(e, "2606:4700:4700::1111", 443), Reason::public_resolver);
  EXPECT_EQ(by_address(e, "203.0.113.5", 443), Reason::allowed);
  EXPECT_FALSE(e.allows_network(at("203.0.113.5"), 443));
  auto named = egress("allow 1.1.1.1\nallow 203.0.113.0/24\ndeny b.example\ndefault allow");
  EXPECT_EQ(by_address(named, "1.1.1.1", 443), Reason::allowed);
  EXPECT_EQ(by_address(named, "203.0.113.5", 853), Reason::allowed);
  EXPECT_TRUE(named.allows_network(at("203.0.113.5"), 443));
  EXPECT_EQ(by_address(egress("default allow"), "1.1.1.1", 853), Reason::allowed) << "no names are restricted";
}

TEST(Policy, NetworksThatLieInside) {
  for (const char* inside : {"100.100.100.200/29", "10.0.0.0/8", "fd00:ec2::/31", "169.254.169.254", "127.0.0.1",
                             "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "::ffff:10.0.0.1"})
    EXPECT_TRUE(is_inside(Network::parse(inside).value())) << inside;
  for (const char* open : {"0.0.0.0/0", "203.0.113.0/24", "8.0.0.0/7", "::/0", "64:ff9b::808:808", "8.8.8.8"})
    EXPECT_FALSE(is_inside(Network::parse(open).value())) << open;
}

Reason request(const Egress& e, std::string_view name, std::string_view method, std::string_view path,
               std::string_view address = "203.0.113.10") {
  return e.request(name, at(address), 443, method, path).reason;
}

TEST(Policy, RulesAboutRequests) {
  auto e = egress(
      "deny api.example paths /admin\n"
      "allow api.example:443 methods GET,HEAD paths /repos/,/user\n"
      "allow api.example methods POST paths /user\n"
      "deny api.example\n"
      "deny 203.0.113.11\n"
      "allow other.example\n");
  // The connection may begin, and is looked into.
  EXPECT_EQ(by_name(e, "api.example", 443), Reason::allowed);
  EXPECT_EQ(by_address(e, "203.0.113.10", 443, "api.example"), Reason::allowed);
  EXPECT_EQ(e.may_resolve("api.example").reason, Reason::allowed);
  EXPECT_TRUE(e.inspects("api.example", 443));
  EXPECT_FALSE(e.inspects("other.example", 443));
  EXPECT_TRUE(e.verifies_tls());
  EXPECT_EQ(request(e, "api.example", "GET", "/repos/a"), Reason::allowed);
  EXPECT_EQ(request(e, "api.example", "HEAD", "/user"), Reason::allowed);
  EXPECT_EQ(request(e, "api.example", "POST", "/user/keys"), Reason::allowed);
  EXPECT_EQ(request(e, "api.example", "POST", "/repos/a"), Reason::request);
  EXPECT_EQ(request(e, "api.example", "GET", "/users"), Reason::request);
  EXPECT_EQ(request(e, "api.example", "GET", "/admin/x"), Reason::request);
  EXPECT_EQ(request(e, "other.example", "DELETE", "/"), Reason::allowed);
  EXPECT_EQ(request(e, "other.example", "DELETE", "/", "203.0.113.11"), Reason::request);
  EXPECT_EQ(e.request("api.example", at("203.0.113.10"), 443, "GET", "/x").rule, "deny api.example");
}

TEST(Policy, ADeniedRequestDeniesNoConnection) {
  auto e = egress("deny api.example methods DELETE\ndefault allow\n");
  EXPECT_EQ(by_name(e, "api.example", 443), Reason::allowed);
  EXPECT_EQ(e.may_resolve("api.example").reason, Reason::allowed);
  EXPECT_EQ(request(e, "api.example", "DELETE", "/"), Reason::request);
  EXPECT_EQ(request(e, "api.example", "GET", "/"), Reason::allowed);
  EXPECT_TRUE(e.verifies_tls()) << "or it could be asked for by its address";
  // Without a name there is no host to hold a request to.
  auto web = egress("allow * methods GET\n");
  EXPECT_EQ(by_name(web, "a.example", 443), Reason::allowed);
  EXPECT_EQ(by_address(web, "203.0.113.10", 443), Reason::policy);
  EXPECT_TRUE(web.verifies_tls());
  // What is decided before them, they do not change.
  EXPECT_FALSE(egress("allow api.example\nallow api.example methods GET\n").inspects("api.example", 443));
}

TEST(Policy, RequestsUnderACeiling) {
  auto e = egress("default allow\n", "allow api.example methods GET\nallow other.example\n");
  EXPECT_TRUE(e.inspects("api.example", 443));
  EXPECT_EQ(request(e, "api.example", "GET", "/"), Reason::allowed);
  EXPECT_EQ(request(e, "api.example", "PUT", "/"), Reason::request);
  EXPECT_EQ(request(egress("learn\nallow api.example methods GET\n"), "api.example", "PUT", "/"), Reason::learnt);
}

TEST(Policy, OddRequestsAreRefused) {
  for (const char* bad :
       {"allow a.example methods", "allow a.example methods get", "allow a.example methods GET,",
        "allow a.example paths x", "allow a.example paths /a/../b", "allow a.example paths /a//b",
        "allow a.example methods GET methods PUT", "allow a.example local local", "allow 203.0.113.0/24 methods GET",
        "allow a.example paths /a,", "allow a.example GET", "allow a.example paths /%2f"})
    EXPECT_FALSE(parse_policy(bad)) << bad;
  EXPECT_EQ(policy("allow a.example paths /%61\n"), policy("allow a.example paths /a\n"));
  EXPECT_FALSE(parse_policy_json(R"({"rules": [{"action": "allow", "to": "a.example", "methods": "GET"}]})"));
  EXPECT_FALSE(parse_policy_json(R"({"rules": [{"action": "allow", "to": "a.example", "paths": [1]}]})"));
  EXPECT_FALSE(parse_policy_json(R"({"rules": [{"action": "allow", "to": "a.example", "paths": ["/a,b"]}]})"));
}

}  // namespace
}  // namespace isola::gate
