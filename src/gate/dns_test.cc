#include "gate/dns.h"

#include <gtest/gtest.h>

namespace isola::gate {
namespace {

using namespace std::string_literals;

// id 0x1234, RD; one question.
std::string query(const std::string& labels, uint16_t type, const std::string& extra = "", char extras = 0) {
  std::string out = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00"s;
  out.push_back(extras);
  out += labels + '\0';
  out += {static_cast<char>(type >> 8), static_cast<char>(type), 0, 1};
  return out + extra;
}
const std::string kOpt = "\0\0\x29\x04\xd0\0\0\0\0\0\0"s;

TEST(Dns, ReadsAPlainQuestion) {
  DnsQuestion q;
  ASSERT_EQ(parse_query(query("\x03"s
                              "WWW"
                              "\x07"s
                              "example"
                              "\x03"s
                              "org",
                              28, kOpt, 1),
                        q),
            QueryState::good);
  EXPECT_EQ(q.name, "www.example.org");
  EXPECT_TRUE(q.is_name);
  EXPECT_EQ(q.type, 28);
  EXPECT_EQ(q.id, 0x1234);
  EXPECT_TRUE(q.edns);
  EXPECT_TRUE(q.recursion_desired);
}

TEST(Dns, OddNamesAreNoNames) {
  DnsQuestion q;
  for (const auto& labels : {"\x03"s
                             "a.b",
                             "\x02"s
                             "a\0"s,
                             "\x01"s
                             "\xff",
                             ""s,
                             "\x03"s
                             "127"
                             "\x01"s
                             "1"}) {
    ASSERT_EQ(parse_query(query(labels, 1), q), QueryState::good);
    EXPECT_FALSE(q.is_name);
    EXPECT_EQ(build_reply(q, {.code = DnsCode::no_such_name}).size(), 12 + q.raw.size());
  }
}

TEST(Dns, WhatIsNoQuestionIsNotAnswered) {
  DnsQuestion q;
  auto good = query(
      "\x01"s
      "a",
      1);
  EXPECT_EQ(parse_query("", q), QueryState::ignore);
  EXPECT_EQ(parse_query(good.substr(0, 11), q), QueryState::ignore);
  auto reply = good;
  reply[2] = '\x81';
  EXPECT_EQ(parse_query(reply, q), QueryState::ignore);
}

TEST(Dns, BrokenQuestionsAreErrors) {
  DnsQuestion q;
  auto good = query(
      "\x01"s
      "a",
      1);
  for (size_t i = 12; i < good.size(); ++i) EXPECT_EQ(parse_query(good.substr(0, i), q), QueryState::answer_error) << i;
  EXPECT_EQ(parse_query(good + "x", q), QueryState::answer_error) << "bytes behind";
  EXPECT_EQ(parse_query(query("\xc0\x0c"s, 1), q), QueryState::answer_error) << "compression";
  EXPECT_EQ(parse_query(query("\x40"s + std::string(64, 'a'), 1), q), QueryState::answer_error);
  std::string too_long;
  for (int i = 0; i < 5; ++i) too_long += "\x3f"s + std::string(63, 'a');
  EXPECT_EQ(parse_query(query(too_long, 1), q), QueryState::answer_error);
  auto two = good;
  two[5] = 2;
  EXPECT_EQ(parse_query(two, q), QueryState::answer_error);
  auto update = good;
  update[2] = '\x28';
  EXPECT_EQ(parse_query(update, q), QueryState::answer_error);
  EXPECT_EQ(q.problem, DnsCode::not_implemented);
  auto chaos = good;
  chaos.back() = 3;
  EXPECT_EQ(parse_query(chaos, q), QueryState::answer_error);
  EXPECT_EQ(q.problem, DnsCode::not_implemented);
}

TEST(Dns, MessagesAreBounded) {
  DnsQuestion q;
  auto with_option = [](size_t size) {
    std::string opt = "\0\0\x29\x04\xd0\0\0\0\0"s + static_cast<char>(size >> 8) + static_cast<char>(size);
    return query("\x01"s + "a", 1, opt + std::string(size, 'o'), 1);
  };
  size_t head = with_option(0).size();
  EXPECT_EQ(parse_query(with_option(kMaxDnsMessage - head), q), QueryState::good);
  EXPECT_EQ(parse_query(with_option(kMaxDnsMessage - head + 1), q), QueryState::answer_error);
  std::string longest = "\x3d"s + std::string(61, 'a');  // 255 bytes with the zero at its end
  for (int i = 0; i < 3; ++i) longest += "\x3f"s + std::string(63, 'a');
  EXPECT_EQ(parse_query(query(longest, 1), q), QueryState::good);
  EXPECT_EQ(parse_query(query("\x3e"s + "a" + longest.substr(1), 1), q), QueryState::answer_error);
  std::string stream = framed(std::string(kMaxDnsMessage, 'x'));
  EXPECT_EQ(take_framed(stream).value().value().size(), kMaxDnsMessage);
  stream = framed(std::string(kMaxDnsMessage + 1, 'x'));
  EXPECT_FALSE(take_framed(stream));
}

TEST(Dns, RepliesCarryTheAnswer) {
  DnsQuestion q;
  auto asked = query(
      "\x01"s
      "a",
      1);
  ASSERT_EQ(parse_query(asked, q), QueryState::good);
  EXPECT_EQ(build_reply(q, {.address = Address::parse("198.18.0.1").value(), .ttl = 30}),
            "\x12\x34\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00"s + asked.substr(12) +
                "\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x1e\x00\x04\xc6\x12\x00\x01"s);
  EXPECT_EQ(build_reply(q, {.code = DnsCode::refused}),
            "\x12\x34\x81\x85\x00\x01\x00\x00\x00\x00\x00\x00"s + asked.substr(12));
  ASSERT_EQ(parse_query(query("\x01"s
                              "a",
                              1, kOpt, 1),
                        q),
            QueryState::good);
  auto told = build_reply(q, {.code = DnsCode::no_such_name, .why = "not allowed"});
  EXPECT_NE(told.find("not allowed"), std::string::npos);
  EXPECT_LE(build_reply(q, {.code = DnsCode::no_such_name, .why = std::string(5000, 'w')}).size(), 512U);
}

TEST(Dns, Pointers) {
  EXPECT_EQ(address_of_pointer("1.0.18.198.in-addr.arpa")->text(), "198.18.0.1");
  EXPECT_FALSE(address_of_pointer("1.0.18.in-addr.arpa"));
  EXPECT_FALSE(address_of_pointer("x.0.18.198.in-addr.arpa"));
  std::string six = "1";
  for (int i = 0; i < 29; ++i) six += ".0";
  EXPECT_EQ(address_of_pointer(six + ".d.f.ip6.arpa")->text(), "fd00::1");
  EXPECT_FALSE(address_of_pointer(six + ".ip6.arpa"));
}

TEST(Dns, TcpFraming) {
  std::string stream = framed("hello") + framed("") + framed("x").substr(0, 2);
  EXPECT_EQ(take_framed(stream).value().value(), "hello");
  EXPECT_EQ(take_framed(stream).value().value(), "");
  EXPECT_FALSE(take_framed(stream).value());
  stream += "x";
  EXPECT_EQ(take_framed(stream).value().value(), "x");
  stream = "\xff\xff"s;
  EXPECT_FALSE(take_framed(stream));
}

}  // namespace
}  // namespace isola::gate
