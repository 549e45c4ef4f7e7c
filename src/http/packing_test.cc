// Replies that go out compressed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "http/exchange.h"
#include "http/gzip.h"
#include "http/testing.h"

namespace isola::http {
namespace {

using namespace std::chrono_literals;

const std::string kAsks = "Accept-Encoding: gzip\r\n";

Handler says(const std::string& text, std::string type) {
  return [&text, type](Exchange& ex) -> Task<void> {
    ex.reply(200, text, type);
    co_return;
  };
}

TEST(Packing, LargeTextForThoseWhoAsk) {
  std::string large(10'000, 'a');
  TestServer server([&](Router& r) { r.add("GET", "/", says(large, "text/plain")); });
  RawClient client(server.port());
  RawReply plain = client.get("/");
  EXPECT_EQ(plain.body, large);
  EXPECT_EQ(client.get("/", "Accept-Encoding: gzip;q=0\r\n").body, large);
  RawReply packed = client.get("/", "Accept-Encoding: br, gzip\r\n");
  EXPECT_EQ(packed.header("Content-Encoding"), "gzip");
  EXPECT_LT(packed.body.size(), 1000u);
  EXPECT_EQ(unpacked(packed.body), large);
}

TEST(Packing, TheLargestInPieces) {
  std::string large;
  for (int i = 0; large.size() < (5u << 20); i++) large += fmt::format("{{\"line\":{}}}\n", i * 7919);
  TestServer server([&](Router& r) { r.add("GET", "/", says(large, "application/json")); });
  RawClient client(server.port());
  RawReply plain = client.get("/");
  EXPECT_EQ(plain.header("Content-Length"), std::to_string(large.size()));
  EXPECT_TRUE(plain.body == large);
  for (int i = 0; i < 2; i++) {  // the connection can be used again
    RawReply packed = client.get("/", kAsks);
    EXPECT_TRUE(packed.whole);
    EXPECT_EQ(packed.header("Content-Encoding"), "gzip");
    EXPECT_EQ(packed.header("Content-Length"), "");
    EXPECT_LT(packed.body.size(), large.size() / 2);
    EXPECT_TRUE(unpacked(packed.body) == large);
  }
  client.send("HEAD / HTTP/1.1\r\nHost: x\r\n" + kAsks + "\r\n");
  RawReply head = client.reply(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(client.get("/").body == large);
}

// Three lines, each when it is told to.
class Lines {
 public:
  Handler stream(std::string type, bool passed_on = false) {
    return [this, type, passed_on](Exchange& ex) -> Task<void> {
      std::vector<Field> fields = {{"Content-Type", type}};
      if (passed_on) {
        ex.begin_raw(200, "OK", fields, {});
      } else {
        ex.begin(200, type);
      }
      (void)co_await ex.write({});
      boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor);
      for (int i = 1; i <= 3; i++) {
        while (told < i) {
          timer.expires_after(1ms);
          co_await timer.async_wait(boost::asio::use_awaitable);
        }
        std::string text = line(i);
        (void)co_await ex.write(text);
      }
    };
  }
  static std::string line(int i) { return fmt::format("{{\"event\":{}}}\n", i); }
  std::atomic<int> told = 0;
};

// Unpacks what has come so far, as a client does that shows each event.
class Reader {
 public:
  Reader(uint16_t port, std::string_view path) : client_(port) {
    client_.send("GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n" + kAsks + "\r\n");
    HeadScanner scan;
    while (scan.feed(client_.rest()) != HeadScanner::State::complete) more();
    if (!parser.head(std::string_view(client_.rest()).substr(0, scan.size()))) throw std::runtime_error("bad head");
    client_.rest().erase(0, scan.size());
  }
  // False: nothing more came, and it was not there.
  bool read_until(std::string_view end) {
    while (!text.ends_with(end)) {
      if (!step()) return false;
    }
    return true;
  }
  bool read_to_end() {
    while (!parser.done()) {
      if (!step()) return false;
    }
    return inflater_.end().has_value();
  }
  ResponseParser parser;
  std::string text;

 private:
  bool more() {
    std::string bytes = client_.some();
    client_.rest() += bytes;
    return !bytes.empty();
  }
  bool step() {
    auto piece = parser.body(client_.rest());
    if (!piece) return false;
    for (std::string_view packed = piece->data; !packed.empty();) {
      auto out = inflater_.feed(packed);
      if (!out) return false;
      text += out->data;
      packed.remove_prefix(out->used);
    }
    client_.rest().erase(0, piece->used);
    return piece->used > 0 || more();
  }
  RawClient client_;
  Inflater inflater_;
};

TEST(Packing, AStreamHoldsNothingBack) {
  for (std::string type : {"application/x-ndjson", "text/event-stream"}) {
    Lines lines;
    TestServer server([&](Router& r) { r.add("GET", "/", lines.stream(type)); });
    Reader reader(server.port(), "/");
    EXPECT_EQ(find_field(reader.parser.fields, "Content-Encoding"), "gzip");
    EXPECT_EQ(find_field(reader.parser.fields, "Vary"), "Accept-Encoding");
    for (int i = 1; i <= 3; i++) {
      lines.told = i;
      ASSERT_TRUE(reader.read_until(Lines::line(i))) << "event " << i << " did not come by itself";
    }
    EXPECT_TRUE(reader.read_to_end());
    EXPECT_EQ(reader.text, Lines::line(1) + Lines::line(2) + Lines::line(3));
  }
}

TEST(Packing, WhatIsNotOursOrNoTextStaysAsItIs) {
  Lines lines;
  lines.told = 3;
  TestServer server([&](Router& r) {
    r.add("GET", "/bytes", lines.stream("application/octet-stream"));
    r.add("GET", "/passed-on", lines.stream("text/event-stream", true));
  });
  for (std::string_view path : {"/bytes", "/passed-on"}) {
    RawClient client(server.port());
    RawReply plain = client.get(path, kAsks);
    EXPECT_EQ(plain.header("Content-Encoding"), "") << path;
    EXPECT_EQ(plain.body, Lines::line(1) + Lines::line(2) + Lines::line(3)) << path;
  }
}

TEST(Packing, ACutStreamIsNotWhole) {
  TestServer server([&](Router& r) {
    r.add("GET", "/", [](Exchange& ex) -> Task<void> {
      ex.begin(200, "text/plain");
      (void)co_await ex.write("half");
      ex.abort();
    });
  });
  RawClient client(server.port());
  EXPECT_FALSE(client.get("/", kAsks).whole);
  EXPECT_TRUE(client.was_reset());
}

TEST(Packing, OldClientsGetTheirEndByTheConnections) {
  TestServer server([&](Router& r) {
    r.add("GET", "/", [](Exchange& ex) -> Task<void> {
      ex.begin(200, "text/plain");
      (void)co_await ex.write("one");
      (void)co_await ex.write("two");
    });
  });
  RawClient client(server.port());
  client.send("GET / HTTP/1.0\r\nHost: x\r\n" + kAsks + "\r\n");
  RawReply reply = client.reply();
  EXPECT_EQ(reply.header("Transfer-Encoding"), "");
  EXPECT_EQ(unpacked(reply.body), "onetwo");
}

}  // namespace
}  // namespace isola::http
