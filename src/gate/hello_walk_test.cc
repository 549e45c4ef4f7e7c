#include "gate/hello_walk.h"

#include <gtest/gtest.h>

#include "gate/outside.h"
#include "hostile/dialog.h"

namespace isola::gate {
namespace {

using namespace std::string_literals;
using hostile::tls_hello;
using Problem = HelloWalk::Problem;

std::string record(char kind, const std::string& body) {
  return std::string{kind, 3, 3, static_cast<char>(body.size() >> 8), static_cast<char>(body.size())} + body;
}
std::string server_hello() { return record(22, "\x02\0\0\x48\x03\x03"s + std::string(70, 'r')); }

TEST(HelloWalk, EndsWhenTheServerTakesTheFirst) {
  HelloWalk walk("a.example");
  EXPECT_FALSE(walk.over());
  walk.client(record(20, "\1"s) + record(23, std::string(100, 'd')));  // early data
  EXPECT_FALSE(walk.over());
  walk.server(server_hello().substr(0, 20));
  EXPECT_FALSE(walk.server_known());
  walk.server(server_hello());
  EXPECT_TRUE(walk.over());
  walk.client("anything");
  EXPECT_EQ(walk.problem(), Problem::none);
}

TEST(HelloWalk, AnAlertOrAnotherProtocolEndsItToo) {
  for (const auto& said : {record(21, "\2\x28"s), "HTTP/1.1 400 Bad Request"s, record(22, "\x0b\0\0\1x"s)}) {
    HelloWalk walk("a.example");
    walk.server(said);
    EXPECT_TRUE(walk.over());
  }
  HelloWalk cut("a.example");
  cut.server(server_hello().substr(0, 9), true);
  EXPECT_TRUE(cut.over()) << "nothing more comes from there";
}

TEST(HelloWalk, ASecondHelloNamesTheSameServer) {
  for (size_t piece : {1UL, 7UL, 4096UL}) {
    HelloWalk walk("a.example");
    walk.server(retry_request());
    EXPECT_TRUE(walk.server_known());
    EXPECT_FALSE(walk.over());
    auto second = record(20, "\1"s) + tls_hello("a.example");
    for (size_t at = 0; at < second.size(); at += piece) {
      EXPECT_FALSE(walk.over());
      walk.client(std::string_view(second).substr(at, piece));
    }
    EXPECT_TRUE(walk.over()) << piece;
  }
}

TEST(HelloWalk, AndNoOther) {
  for (bool waits : {true, false})
    for (size_t piece : {1UL, 4096UL}) {
      HelloWalk walk("a.example");
      if (waits) walk.server(retry_request());
      auto second = record(23, "early") + tls_hello("b.example");
      for (size_t at = 0; at < second.size(); at += piece) walk.client(std::string_view(second).substr(at, piece));
      EXPECT_EQ(walk.problem(), Problem::differs);
      EXPECT_EQ(walk.detail(), "b.example");
      EXPECT_FALSE(walk.over());
    }
  HelloWalk hidden("a.example");
  hidden.client(tls_hello("a.example", "\xfe\x0d\0\1x"s));
  EXPECT_EQ(hidden.problem(), Problem::hidden);
  HelloWalk none("a.example");
  none.client(tls_hello(""));
  EXPECT_EQ(none.problem(), Problem::differs);
}

TEST(HelloWalk, WhatIsNoRecordIsRefused) {
  for (const auto& sent : {"GET / HTTP/1.1"s, "\x17\x02"s, record(22, "\x10\0\0\1x"s), "\x80\x2e\x01\x03\x01"s,
                           "\x17\x03\x03\xff\xff"s, "\x18\x03\x03\0\1x"s}) {
    HelloWalk walk("a.example");
    walk.client(sent);
    EXPECT_EQ(walk.problem(), Problem::bad) << sent;
  }
  HelloWalk pieces("a.example");
  pieces.server(record(22, "\x02\0\0\x48\x03\x03"s));
  EXPECT_EQ(pieces.problem(), Problem::bad) << "a server that cuts its hello up";
}

TEST(HelloWalk, WhateverIsInTheRecordsBeforeIt) {
  // Lengths and bodies that look like the beginning of a handshake, and an alert.
  const auto before = record(23, std::string(22, 22)) + record(21, "\1\0"s) + record(23, std::string(0x1616, 22));
  for (size_t piece : {1UL, 4096UL}) {
    HelloWalk walk("a.example");
    const auto all = before + tls_hello("b.example");
    for (size_t at = 0; at < all.size(); at += piece) walk.client(std::string_view(all).substr(at, piece));
    EXPECT_EQ(walk.problem(), Problem::differs) << piece;
    EXPECT_EQ(walk.detail(), "b.example");
  }
}

TEST(HelloWalk, AServerThatNeverSpokeAsksForNothing) {
  HelloWalk walk("a.example");
  walk.server("");
  EXPECT_FALSE(walk.over());
  walk.server("", true);
  EXPECT_TRUE(walk.over());
}

}  // namespace
}  // namespace isola::gate
