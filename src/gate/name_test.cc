#include "gate/name.h"

#include <gtest/gtest.h>

namespace isola::gate {
namespace {

TEST(Name, HasOneSpelling) {
  EXPECT_EQ(normal_name("Example.ORG.").value(), "example.org");
  EXPECT_EQ(normal_name("xn--bcher-kva.example").value(), "xn--bcher-kva.example");
  EXPECT_EQ(normal_name("_dmarc.a-b.example").value(), "_dmarc.a-b.example");
  EXPECT_EQ(normal_name("4chan.example").value(), "4chan.example");
}

TEST(Name, OddOnesAreRefused) {
  using namespace std::string_view_literals;
  for (auto bad : {""sv,
                   "."sv,
                   "a..b"sv,
                   ".a"sv,
                   "a.."sv,
                   "a b.example"sv,
                   "a\0.example"sv,
                   "example.org\0"sv,
                   "\0"sv,
                   "b\xc3\xbc.example"sv,
                   "a/b"sv,
                   "a:1"sv,
                   "-a.example"sv,
                   "a-.example"sv,
                   "a@b"sv,
                   "*.a"sv,
                   "a%00.b"sv,
                   "\xe3\x80\x82.a"sv,
                   "a\n.b"sv,
                   "a\\.b"sv})
    EXPECT_FALSE(normal_name(bad)) << bad;
  EXPECT_FALSE(normal_name(std::string(64, 'a') + ".example"));
  EXPECT_TRUE(normal_name(std::string(63, 'a') + ".example"));
  std::string longest;
  while (longest.size() < 250) longest += "ab.";
  EXPECT_TRUE(normal_name(longest + "c"));
  EXPECT_FALSE(normal_name(longest + "cdef"));
}

TEST(Name, AddressesInAnyNotationAreNotNames) {
  for (const char* bad : {"127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "1.2.3.0x",
                          "example.1", "0X7F.1", "127.0.0.1."})
    EXPECT_FALSE(normal_name(bad)) << bad;
}

TEST(Name, BelowMeansWholeLabels) {
  EXPECT_TRUE(is_below("a.example", "example"));
  EXPECT_TRUE(is_below("a.b.example", "example"));
  EXPECT_FALSE(is_below("example", "example"));
  EXPECT_FALSE(is_below("notexample", "example"));
  EXPECT_FALSE(is_below(".example", "example"));
  EXPECT_FALSE(is_below("a.example.evil", "example"));
  EXPECT_EQ(tail_of("a.b.example", 2), "b.example");
  EXPECT_EQ(tail_of("a.b.example", 1), "example");
  EXPECT_EQ(tail_of("example", 2), "example");
  EXPECT_EQ(tail_of("b.example", 2), "b.example");
}

TEST(Name, PublicResolversAreKnown) {
  EXPECT_TRUE(is_public_resolver("dns.google"));
  EXPECT_TRUE(is_public_resolver("mozilla.cloudflare-dns.com"));
  EXPECT_TRUE(is_public_resolver("abc123.dns.nextdns.io")) << "one's own profile there";
  EXPECT_FALSE(is_public_resolver("notdns.google"));
  EXPECT_FALSE(is_public_resolver("example.org"));
}

}  // namespace
}  // namespace isola::gate
