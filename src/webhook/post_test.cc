#include "webhook/post.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>

#include "http/exchange.h"
#include "http/router.h"
#include "http/testing.h"

namespace isola::webhook {
namespace {

Result<int> send(Post one) {
  boost::asio::io_context io;
  auto answer = boost::asio::co_spawn(io, post(std::move(one)), boost::asio::use_future);
  io.run();
  return answer.get();
}

class PostTest : public testing::Test {
 protected:
  std::string body_, header_;
  int status_ = 204;
  http::TestServer server_{[this](http::Router& router) {
    router.group("/").add("POST", "/hook", [this](http::Exchange& ex) -> Task<void> {
      header_ = ex.header("x-test");
      auto body = co_await ex.read_all(1 << 20);
      body_ = body.value_or("");
      ex.set_header("Location", "/elsewhere");
      ex.reply(status_, "");
      co_return;
    });
  }};
  Post one(std::string host = "127.0.0.1") {
    return {.url = {.tls = false, .host = std::move(host), .port = server_.port(), .target = "/hook"},
            .headers = {{"X-Test", "yes"}},
            .body = "{\"a\":1}",
            .inside = true};
  }
};

TEST_F(PostTest, WhatIsSentArrives) {
  auto status = send(one());
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(*status, 204);
  EXPECT_EQ(body_, "{\"a\":1}");
  EXPECT_EQ(header_, "yes");
}

TEST_F(PostTest, NobodyIsFollowed) {
  status_ = 302;
  EXPECT_EQ(send(one()).value_or(0), 302);
}

TEST_F(PostTest, InsideIsClosedUnlessSaid) {
  for (const char* host : {"127.0.0.1", "localhost", "::1", "::ffff:127.0.0.1"}) {
    auto sent = one(host);
    sent.inside = false;
    auto status = send(sent);
    ASSERT_FALSE(status) << host;
    EXPECT_EQ(status.error().code, Code::denied) << host << ": " << status.error().message;
  }
  EXPECT_EQ(body_, "");
  auto metadata = one("169.254.169.254");
  auto status = send(metadata);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::denied) << "not even with inside";
}

TEST_F(PostTest, NobodyThereAndSilenceAreErrors) {
  auto nobody = one();
  nobody.url.port = 1;
  EXPECT_EQ(send(nobody).error().code, Code::unavailable);
  // Takes the connection, and says nothing.
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  auto silent = one();
  silent.url.port = ntohs(address.sin_port);
  silent.time = std::chrono::milliseconds(50);
  EXPECT_EQ(send(silent).error().code, Code::timeout);
}

TEST_F(PostTest, WhoeverIsNotWhoTheySayIsNotTold) {
  auto plain = one();
  plain.url.tls = true;
  auto status = send(plain);
  ASSERT_FALSE(status) << "there is no TLS there at all";
  EXPECT_EQ(body_, "");
}

}  // namespace
}  // namespace isola::webhook
