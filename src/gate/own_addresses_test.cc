#include "gate/own_addresses.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "gate/outside.h"
#include "gate/test_address.h"

namespace isola::gate {
namespace {

using namespace std::string_literals;

// In a namespace with an address and a way out.
class OwnAddressesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    cable.emplace(Cable::make().value());
    in_netns(cable->gate, [&] { own.emplace(OwnAddresses::open().value()); });
  }
  void ip(const std::string& words) const {
    in_netns(cable->gate, [&] { ASSERT_EQ(std::system(("ip " + words).c_str()), 0) << words; });
  }
  std::optional<Cable> cable;
  std::optional<OwnAddresses> own;
};

TEST_F(OwnAddressesTest, WhatLeadsBackIsOwn) {
  // The kernel makes the route of a new IPv6 address a moment later, in a worker of its own.
  for (int i = 0; i < 500 && !own->contains(at("2001:db8:1::1")); ++i) ::usleep(10'000);
  for (const char* here : {"127.0.0.1", "127.9.9.9", "::1", "192.0.2.1", "2001:db8:1::1"})
    EXPECT_TRUE(own->contains(at(here))) << here;
  for (const char* there : {"203.0.113.10", "2001:db8:5::10", "192.0.2.2", "2001:db8:1::2"})
    EXPECT_FALSE(own->contains(at(there))) << there;
}

TEST_F(OwnAddressesTest, AnswersAreKeptOnlyUntilSomethingChanges) {
  auto is_own = [&](const char* address) {
    bool once = own->contains(at(address));
    // A busy machine may let a second pass in between, and then one more question is right.
    for (int i = 0; i < 3; ++i) {
      auto before = own->asked();
      EXPECT_EQ(own->contains(at(address)), once);
      if (own->asked() == before) return once ? "own" : "not";
    }
    return "asked each time";
  };
  const char* const four = "198.51.100.7";
  const char* const six = "2001:db8:77::5";
  EXPECT_STREQ(is_own(four), "not");
  EXPECT_STREQ(is_own(six), "not");
  ip("addr add 198.51.100.7/32 dev lo");
  EXPECT_STREQ(is_own(four), "own");
  ip("addr del 198.51.100.7/32 dev lo");
  EXPECT_STREQ(is_own(four), "not");
  ip("route add local 198.51.100.0/24 dev lo");
  EXPECT_STREQ(is_own(four), "own");
  EXPECT_STREQ(is_own(six), "not");
  ip("-6 route add local 2001:db8:77::/48 dev lo");
  EXPECT_STREQ(is_own(six), "own");
  ip("-6 route del local 2001:db8:77::/48 dev lo");
  ip("-6 route add local 2001:db8:77::/48 dev lo table 77");
  EXPECT_STREQ(is_own(six), "not");
  ip("-6 rule add to 2001:db8:77::/48 table 77");
  EXPECT_STREQ(is_own(six), "own");
  ip("route del local 198.51.100.0/24 dev lo");
  ip("route add local 198.51.100.0/24 dev lo table 77");
  EXPECT_STREQ(is_own(four), "not");
  ip("rule add to 198.51.100.0/24 table 77");
  EXPECT_STREQ(is_own(four), "own");
  ip("rule del to 198.51.100.0/24 table 77");
  EXPECT_STREQ(is_own(four), "not");
}

// The kernel does not tell of the routes themselves then.
TEST_F(OwnAddressesTest, RoutesThatGoWithALinkOrANexthop) {
  // Routes of IPv6 are told of one by one, and would give the link away.
  in_netns(cable->gate, [] { ASSERT_EQ(std::system("echo 1 >/proc/sys/net/ipv6/conf/g/disable_ipv6"), 0); });
  ip("route add local 198.51.100.0/24 dev lo");
  ip("nexthop add id 7 via 192.0.2.2 dev "s + kCableEnd);
  ip("route add 198.51.100.7/32 nhid 7");
  ip("route add 198.51.100.8/32 via 192.0.2.2");
  EXPECT_FALSE(own->contains(at("198.51.100.7")));
  EXPECT_FALSE(own->contains(at("198.51.100.8")));
  ip("nexthop del id 7");
  EXPECT_TRUE(own->contains(at("198.51.100.7")));
  EXPECT_FALSE(own->contains(at("198.51.100.8")));
  ip("link set down dev "s + kCableEnd);
  EXPECT_TRUE(own->contains(at("198.51.100.8")));
}

TEST_F(OwnAddressesTest, AnAddressOfManyIsOwn) {
  EXPECT_FALSE(own->contains(at("2001:db8:9::")));
  ip("-6 route add anycast 2001:db8:9::/128 dev lo table local");
  EXPECT_TRUE(own->contains(at("2001:db8:9::")));
}

TEST_F(OwnAddressesTest, NoRouteIsNobodysAndManyAnswersAreForgotten) {
  ip("route del default");
  EXPECT_FALSE(own->contains(at("203.0.113.10"))) << "connecting says so";
  for (uint32_t i = 0; i < 2 * OwnAddresses::kMost; ++i) ASSERT_FALSE(own->contains(Address::v4(0xcb000000 + i)));
  EXPECT_GE(own->asked(), 2 * OwnAddresses::kMost) << "each asked for once";
  EXPECT_LE(own->kept(), OwnAddresses::kMost);
}

}  // namespace
}  // namespace isola::gate
