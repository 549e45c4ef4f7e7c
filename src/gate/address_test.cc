#include "gate/address.h"

#include <gtest/gtest.h>

#include "gate/test_address.h"

namespace isola::gate {
namespace {

Network net(std::string_view text) { return Network::parse(text).value(); }

TEST(Address, ReadsPlainNotationsOnly) {
  EXPECT_EQ(at("192.0.2.1").text(), "192.0.2.1");
  EXPECT_EQ(at("2001:DB8::1").text(), "2001:db8::1");
  for (const char* bad : {"127.1", "0x7f.0.0.1", "2130706433", "0177.0.0.1", "1.2.3.4.5", "", "fe80::1%lo", "[::1]"})
    EXPECT_FALSE(Address::parse(bad)) << bad;
  EXPECT_FALSE(Address::parse(std::string_view("1.2.3.4\0", 8)));
}

TEST(Address, MappedIsTheSameAsPlain) {
  EXPECT_EQ(at("::ffff:10.0.0.1"), at("10.0.0.1"));
  EXPECT_TRUE(at("::ffff:10.0.0.1").is_v4());
  EXPECT_TRUE(net("10.0.0.0/8").contains(at("::ffff:10.9.8.7")));
  auto socket = at("::ffff:10.0.0.1").with_port(80);
  EXPECT_EQ(socket.storage.ss_family, AF_INET);
  EXPECT_EQ(Address::of(socket.get()).value(), at("10.0.0.1"));
}

TEST(Network, ContainsByPrefix) {
  EXPECT_TRUE(net("192.0.2.0/23").contains(at("192.0.3.255")));
  EXPECT_TRUE(net("192.0.2.0/24").contains(at("192.0.2.255")));
  EXPECT_FALSE(net("192.0.2.0/24").contains(at("192.0.3.0")));
  EXPECT_TRUE(net("0.0.0.0/0").contains(at("8.8.8.8")));
  EXPECT_FALSE(net("0.0.0.0/0").contains(at("2001:db8::1")));
  EXPECT_TRUE(net("::/0").contains(at("2001:db8::1")));
  EXPECT_FALSE(net("::/0").contains(at("8.8.8.8")));
  EXPECT_TRUE(net("2001:db8::/33").contains(at("2001:db8:7fff::")));
  EXPECT_FALSE(net("2001:db8::/33").contains(at("2001:db8:8000::")));
  EXPECT_TRUE(net("1.2.3.4").contains(at("1.2.3.4")));
  EXPECT_TRUE(net("10.0.0.0/8").contains(net("10.2.0.0/16")));
  EXPECT_FALSE(net("10.2.0.0/16").contains(net("10.0.0.0/8")));
  EXPECT_EQ(net("10.0.0.0/8").text(), "10.0.0.0/8");
  EXPECT_EQ(net("2001:db8::/32").text(), "2001:db8::/32");
  for (const char* bad : {"10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/08", "::/129",
                          "2001:db8::1/64", "10.0.0.0/8/8", "10.0.0.0/ 8"})
    EXPECT_FALSE(Network::parse(bad)) << bad;
}

TEST(Place, NobodysInsideIsTakenForOpen) {
  struct {
    const char* address;
    Place place;
  } kCases[] = {
      {"8.8.8.8", Place::open},
      {"2606:4700::1111", Place::open},
      {"10.1.2.3", Place::local},
      {"172.31.255.255", Place::local},
      {"172.32.0.0", Place::open},
      {"192.168.0.1", Place::local},
      {"100.64.0.1", Place::local},
      {"100.128.0.1", Place::open},
      {"fc00::1", Place::local},
      {"fd12::1", Place::local},
      {"127.0.0.1", Place::loopback},
      {"127.255.255.254", Place::loopback},
      {"::1", Place::loopback},
      {"169.254.1.1", Place::link_local},
      {"fe80::1", Place::link_local},
      {"169.254.169.254", Place::metadata},
      {"100.100.100.200", Place::metadata},
      {"168.63.129.16", Place::metadata},
      {"fd00:ec2::254", Place::metadata},
      {"0.0.0.0", Place::unspecified},
      {"::", Place::unspecified},
      {"224.0.0.1", Place::multicast},
      {"ff02::1", Place::multicast},
      {"255.255.255.255", Place::multicast},
      {"198.18.0.1", Place::reserved},
      {"240.0.0.1", Place::reserved},
      // The same places, dressed up.
      {"::ffff:127.0.0.1", Place::loopback},
      {"::ffff:169.254.169.254", Place::metadata},
      {"::127.0.0.1", Place::loopback},
      {"64:ff9b::a9fe:a9fe", Place::metadata},
      {"64:ff9b::808:808", Place::open},
      {"2002:7f00:1::", Place::loopback},
      {"2002:a00:1::1", Place::local},
      {"2002:808:808::1", Place::open},
      {"::ffff:0:10.0.0.1", Place::local},
      {"2001:0:808:808::f5ff:fffe", Place::local},
      {"2001:db8::5efe:10.0.0.1", Place::local},
  };
  for (const auto& one : kCases) EXPECT_EQ(place_of(at(one.address)).place, one.place) << one.address;
}

}  // namespace
}  // namespace isola::gate
