#include "http/access_log.h"

#include <gtest/gtest.h>

namespace isola::http {
namespace {

struct AccessLogTest : testing::Test {
  boost::asio::io_context io;
  std::vector<std::vector<std::string>> told;
  AccessSink sink = [this](std::span<const AccessEntry> entries) {
    auto& group = told.emplace_back();
    for (const auto& entry : entries) group.push_back(entry.path);
  };
  using Groups = std::vector<std::vector<std::string>>;
};

TEST_F(AccessLogTest, TellsSomeAtOnceAndALittleLater) {
  AccessLog log(io, sink);
  log.add({.path = "/a"});
  log.add({.path = "/b"});
  EXPECT_TRUE(told.empty());
  io.run();
  EXPECT_EQ(told, (Groups{{"/a", "/b"}}));
  log.add({.path = "/c"});
  io.restart();
  io.run();
  EXPECT_EQ(told.back(), (std::vector<std::string>{"/c"}));
}

TEST_F(AccessLogTest, AFloodIsToldBeforeItsTime) {
  AccessLog log(io, sink);
  for (int i = 0; i < 1000; ++i) log.add({.path = "/"});
  EXPECT_GE(told.size(), 3u);
  io.run();
  size_t all = 0;
  for (const auto& group : told) all += group.size();
  EXPECT_EQ(all, 1000u);
}

TEST_F(AccessLogTest, NothingIsLeftWhenItStops) {
  {
    AccessLog log(io, sink);
    log.add({.path = "/a"});
    log.stop();
    EXPECT_EQ(told, (Groups{{"/a"}}));
    log.add({.path = "/b"});  // a connection that ends late
    EXPECT_EQ(told, (Groups{{"/a"}, {"/b"}}));
  }
  io.run();
  EXPECT_EQ(told.size(), 2u);
}

}  // namespace
}  // namespace isola::http
