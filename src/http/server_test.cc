#include "http/server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "http/exchange.h"
#include "http/gzip.h"
#include "http/testing.h"

namespace isola::http {
namespace {

using namespace std::chrono_literals;

Task<void> hello(Exchange& ex) {
  ex.reply(200, "hello\n", "text/plain");
  co_return;
}
Task<void> echo(Exchange& ex) {
  auto body = co_await ex.read_all(1 << 20);
  if (!body) co_return ex.fail(body.error());
  ex.reply(200, std::move(*body), "application/octet-stream");
}
Task<void> count(Exchange& ex) {
  uint64_t n = 0;
  for (;;) {
    auto piece = co_await ex.read_some();
    if (!piece) co_return ex.fail(piece.error());
    if (piece->empty()) break;
    n += piece->size();
  }
  ex.reply(200, std::to_string(n), "text/plain");
}
void routes(Router& r) {
  r.add("GET", "/", hello);
  r.add("POST", "/echo", echo);
  r.add("POST", "/count", count).body_limit = Exchange::kNoLimit;
}

// Whoever passes a target on passes on what was checked: a path.
TEST(Server, ATargetWithAHostIsItsPath) {
  TestServer server([](Router& r) {
    r.add("GET", "/{path...}", [](Exchange& ex) -> Task<void> {
      ex.reply(200, std::string(ex.target()), "text/plain");
      co_return;
    });
  });
  RawClient client(server.port());
  for (auto [sent, seen] : {std::pair{"/a?b=c", "/a?b=c"}, std::pair{"HTTP://x/a?b=c", "/a?b=c"}}) {
    client.send(fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", sent));
    EXPECT_EQ(client.reply().body, seen) << sent;
  }
}

TEST(Server, AnswersAndKeepsTheConnection) {
  TestServer server(routes);
  RawClient client(server.port());
  for (int i = 0; i < 3; i++) {
    RawReply reply = client.get("/");
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "hello\n");
    EXPECT_EQ(reply.header("Content-Type"), "text/plain");
    EXPECT_EQ(reply.header("X-Request-Id").size(), 16u);
  }
  EXPECT_EQ(client.get("/", "X-Request-Id: my-own.1\r\n").header("X-Request-Id"), "my-own.1");
  EXPECT_EQ(client.get("/", "X-Request-Id: no\"good\r\n").header("X-Request-Id").size(), 16u);
  RawReply last = client.get("/", "Connection: close\r\n");
  EXPECT_EQ(last.header("Connection"), "close");
  EXPECT_TRUE(client.at_end());
}

TEST(Server, AnswersPipelinedRequestsInOrder) {
  TestServer server(routes);
  RawClient client(server.port());
  std::string all;
  for (int i = 0; i < 100; i++) {
    std::string body = std::to_string(i);
    all += "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  client.send(all);
  for (int i = 0; i < 100; i++) EXPECT_EQ(client.reply().body, std::to_string(i));
}

TEST(Server, SpeaksTheOldVersion) {
  TestServer server(routes);
  RawClient client(server.port());
  client.send("GET / HTTP/1.0\r\n\r\n");
  RawReply reply = client.reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("Connection"), "close");
  EXPECT_TRUE(client.at_end());
}

TEST(Server, HeadHasTheHeadOfGetAndNoBody) {
  TestServer server(routes);
  RawClient client(server.port());
  client.send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
  RawReply reply = client.reply(true);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("Content-Length"), "6");
  EXPECT_EQ(client.get("/").body, "hello\n");
}

TEST(Server, TakesChunksTornAnywhere) {
  TestServer server(routes);
  RawClient client(server.port());
  std::string request =
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;a=b\r\n!\r\n0\r\nX-Trail: "
      "1\r\n\r\n";
  for (char c : request) client.send({&c, 1});
  EXPECT_EQ(client.reply().body, "hello!");
  EXPECT_EQ(client.get("/").status, 200);
}

TEST(Server, SaysContinueWhenTheHandlerReads) {
  TestServer server(routes);
  RawClient client(server.port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  client.rest() = client.some();
  EXPECT_EQ(client.rest(), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_EQ(client.reply().body, "ok");
}

TEST(Server, DoesNotSayContinueWhenNobodyReads) {
  TestServer server([](Router& r) { r.add("POST", "/", hello); });
  RawClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  RawReply reply = client.reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(client.continues(), 0);
  EXPECT_EQ(reply.header("Connection"), "close");
}

TEST(Server, ReadsOverASmallBodyThatNobodyWanted) {
  TestServer server([](Router& r) { r.add("POST", "/", hello); });
  RawClient client(server.port());
  for (int i = 0; i < 2; i++) {
    client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + std::string(1000, 'x'));
    EXPECT_EQ(client.reply().status, 200);
  }
}

TEST(Server, TheReplyToAnUnwantedLargeBodyArrives) {
  TestServer server([](Router& r) { r.add("POST", "/", hello); });
  RawClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n");
  client.send(std::string(2000000, 'x'));
  RawReply reply = client.reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.whole);
  EXPECT_EQ(reply.header("Connection"), "close");
}

TEST(Server, BodiesAboveTheLimitAre413) {
  TestServer server(routes);
  for (std::string_view framing : {"Content-Length: 3000000", "Transfer-Encoding: chunked"}) {
    RawClient client(server.port());
    client.send("POST /echo HTTP/1.1\r\nHost: x\r\n" + std::string(framing) + "\r\n\r\n");
    if (framing.starts_with("Transfer")) client.send("2dc6c0\r\n");
    client.send(std::string(3000000, 'x'));
    RawReply reply = client.reply();
    EXPECT_EQ(reply.status, 413) << framing;
    EXPECT_NE(reply.body.find("\"too_large\""), reply.body.npos) << reply.body;
  }
}

TEST(Server, UnpacksCompressedBodies) {
  TestServer server(routes);
  RawClient client(server.port());
  std::string text;
  for (int i = 0; i < 50'000; i++) text += std::to_string(i) + "\n";
  std::string packed = *gzip(text) + *gzip("and more");  // members follow each other
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: " +
              std::to_string(packed.size()) + "\r\n\r\n" + packed);
  RawReply reply = client.reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, text + "and more");

  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 100\r\n\r\n" +
              packed.substr(0, 100));
  EXPECT_EQ(client.reply().status, 400);
}

TEST(Server, RefusesBombs) {
  TestServer server(routes);
  RawClient client(server.port());
  std::string packed = *gzip(std::string(64 << 20, '\0'), 9);
  client.send("POST /count HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: " +
              std::to_string(packed.size()) + "\r\n\r\n" + packed);
  EXPECT_EQ(client.reply().status, 400);
}

TEST(Server, StreamsEachPieceAtOnce) {
  std::atomic<bool> go = false;
  TestServer server([&](Router& r) {
    r.add("GET", "/", [&](Exchange& ex) -> Task<void> {
      ex.begin(200, "text/plain");
      (void)co_await ex.write("one");
      boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor);
      while (!go) {
        timer.expires_after(1ms);
        co_await timer.async_wait(boost::asio::use_awaitable);
      }
      (void)co_await ex.write("two");
    });
  });
  RawClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  while (client.rest().find("one") == std::string::npos) {
    std::string more = client.some();
    ASSERT_FALSE(more.empty());
    client.rest() += more;
  }
  go = true;
  RawReply reply = client.reply();
  EXPECT_EQ(reply.body, "onetwo");
  EXPECT_EQ(reply.header("Transfer-Encoding"), "chunked");
  EXPECT_TRUE(reply.whole);
}

TEST(Server, AStreamWithALengthKeepsItsWord) {
  TestServer server([&](Router& r) {
    auto stream = [](std::string_view text) {
      return [text](Exchange& ex) -> Task<void> {
        ex.begin(200, "text/plain", 5);
        (void)co_await ex.write(text);
      };
    };
    r.add("GET", "/right", stream("12345"));
    r.add("GET", "/short", stream("123"));
    r.add("GET", "/long", stream("123456"));
  });
  RawClient right(server.port());
  EXPECT_EQ(right.get("/right").body, "12345");
  EXPECT_TRUE(right.get("/right").whole);
  RawClient shorter(server.port());
  EXPECT_FALSE(shorter.get("/short").whole);
  EXPECT_TRUE(shorter.was_reset());
  RawClient longer(server.port());
  EXPECT_FALSE(longer.get("/long").whole);
}

TEST(Server, AbortResets) {
  TestServer server([&](Router& r) {
    r.add("GET", "/", [&](Exchange& ex) -> Task<void> {
      ex.begin(200, "text/plain");
      (void)co_await ex.write("half");
      ex.abort();
    });
  });
  RawClient client(server.port());
  RawReply reply = client.get("/");
  EXPECT_FALSE(reply.whole);
  EXPECT_TRUE(client.was_reset());
}

TEST(Server, GoneTellsOfAClientThatHungUp) {
  std::atomic<int> gone = 0, started = 0;
  TestServer server([&](Router& r) {
    r.add("GET", "/", [&](Exchange& ex) -> Task<void> {
      using namespace boost::asio::experimental::awaitable_operators;
      ex.begin(200, "text/plain");
      (void)co_await ex.write("x");
      started++;
      boost::asio::steady_timer forever(co_await boost::asio::this_coro::executor, 1h);
      co_await (ex.gone() || forever.async_wait(boost::asio::use_awaitable));
      gone++;
    });
  });
  RawClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_FALSE(client.some().empty());
  client.send("GET / HTTP/1.1\r\n");  // a next request, early, is no end
  client.close();
  while (server.server().connections() > 0) std::this_thread::yield();
  EXPECT_EQ(gone, 1);
}

// `printf … | nc -N`: it has said all, and waits for the answer.
TEST(Server, AClientThatOnlyEndedItsSideIsNotCutOff) {
  std::atomic<int> cut_off = 0;
  std::atomic<bool> seen = false;
  TestServer server([&](Router& r) {
    r.add("GET", "/wait", [&](Exchange& ex) -> Task<void> {
      using namespace boost::asio::experimental::awaitable_operators;
      ex.begin(200, "text/plain");
      (void)co_await ex.write("x");
      boost::asio::steady_timer forever(co_await boost::asio::this_coro::executor, 1h);
      co_await (ex.cut_off() || forever.async_wait(boost::asio::use_awaitable));
      cut_off++;
    });
    r.add("GET", "/answer", [&](Exchange& ex) -> Task<void> {
      using namespace boost::asio::experimental::awaitable_operators;
      co_await ex.gone();  // its end has come
      boost::asio::steady_timer soon(co_await boost::asio::this_coro::executor, 5ms);
      auto first = co_await (ex.cut_off() || soon.async_wait(boost::asio::use_awaitable));
      ex.reply(first.index() == 1 ? 200 : 500);
    });
    r.add("GET", "/seen", [&](Exchange& ex) -> Task<void> {
      seen = true;
      ex.reply(200);
      co_return;
    });
  });
  RawClient patient(server.port());
  patient.send("GET /answer HTTP/1.1\r\nHost: x\r\n\r\n");
  patient.shutdown_write();
  EXPECT_EQ(patient.reply().status, 200);
  EXPECT_TRUE(patient.at_end());
  // What came before the end is answered, too.
  RawClient quick(server.port());
  quick.send("GET /answer HTTP/1.1\r\nHost: x\r\n\r\nGET /seen HTTP/1.1\r\nHost: x\r\n\r\n");
  quick.shutdown_write();
  EXPECT_EQ(quick.reply().status, 200);
  EXPECT_EQ(quick.reply().status, 200);
  EXPECT_TRUE(seen);
  RawClient broken(server.port());
  broken.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_FALSE(broken.some().empty());
  linger reset{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(broken.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  broken.close();
  while (cut_off == 0) std::this_thread::yield();
}

TEST(Server, ABodyThatNobodyWantedHasItsTime) {
  ServerOptions options;
  options.limits.drain_time = 50ms;
  TestServer server(
      [&](Router& r) {
        r.add("POST", "/", [](Exchange& ex) -> Task<void> {
          ex.reply(200, "done", "text/plain");
          co_return;
        });
      },
      options);
  RawClient client(server.port());
  constexpr size_t kBody = 60'000;
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(kBody) + "\r\n\r\n");
  EXPECT_EQ(client.reply().body, "done");
  // Byte by byte, each in time for itself: the end comes before the body's.
  size_t sent = 0;
  for (pollfd p{client.fd(), POLLIN, 0}; sent < kBody && ::poll(&p, 1, 1) == 0; ++sent)
    if (!client.send("x")) break;
  EXPECT_LT(sent, kBody);
}

TEST(Server, WhoOnlyEndedItsSideHasNotLeft) {
  std::atomic<int> left = 0, began = 0;
  std::atomic<bool> go_on = false;
  TestServer server([&](Router& r) {
    r.add("GET", "/", [&](Exchange& ex) -> Task<void> {
      using namespace boost::asio::experimental::awaitable_operators;
      boost::asio::steady_timer look(co_await boost::asio::this_coro::executor);
      began++;
      auto until = [&]() -> Task<void> {
        while (!go_on) {
          look.expires_after(1ms);
          co_await look.async_wait(boost::asio::use_awaitable);
        }
      };
      auto first = co_await (ex.left() || until());
      if (first.index() == 0) left++;
      ex.reply(200, "there", "text/plain");
    });
  });
  RawClient patient(server.port());
  patient.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  patient.shutdown_write();
  // Asked, and there.
  while (patient.rest().find("100 Continue") == std::string::npos) {
    std::string more = patient.some();
    ASSERT_FALSE(more.empty());
    patient.rest() += more;
  }
  {
    RawClient deserter(server.port());
    deserter.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    while (began < 2) std::this_thread::yield();
  }
  RawClient old(server.port());
  old.send("GET / HTTP/1.0\r\nHost: x\r\n\r\n");
  old.shutdown_write();
  while (left < 2) std::this_thread::yield();
  go_on = true;
  EXPECT_EQ(patient.reply().body, "there");
  EXPECT_EQ(patient.continues(), 1);
  EXPECT_EQ(left, 2);
}

TEST(Server, AWaitThatEndsBeforeTheClientDoesKeepsTheConnection) {
  TestServer server([&](Router& r) {
    r.add("GET", "/", [&](Exchange& ex) -> Task<void> {
      using namespace boost::asio::experimental::awaitable_operators;
      boost::asio::steady_timer soon(co_await boost::asio::this_coro::executor, 5ms);
      co_await (ex.gone() || soon.async_wait(boost::asio::use_awaitable));
      ex.reply(200, "x", "text/plain");
    });
  });
  RawClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.reply().status, 200);
  EXPECT_EQ(client.reply().status, 200);
  EXPECT_EQ(client.get("/").status, 200);
}

TEST(Server, ExceptionsAndSilenceBecome500) {
  TestServer server([&](Router& r) {
    r.add("GET", "/throw", [](Exchange&) -> Task<void> {
      throw std::runtime_error("secret detail");
      co_return;
    });
    r.add("GET", "/silent", [](Exchange&) -> Task<void> { co_return; });
  });
  RawClient client(server.port());
  RawReply threw = client.get("/throw");
  EXPECT_EQ(threw.status, 500);
  EXPECT_EQ(threw.body.find("secret"), threw.body.npos);
  EXPECT_EQ(client.get("/silent").status, 500);
}

TEST(Server, HeaderValuesCannotBecomeLines) {
  TestServer server([&](Router& r) {
    r.add("GET", "/", [](Exchange& ex) -> Task<void> {
      ex.set_header("X-Name", "a\r\nSet-Cookie: evil");
      ex.set_header("Bad Name", "x");
      ex.reply(200);
      co_return;
    });
  });
  RawClient client(server.port());
  RawReply reply = client.get("/");
  EXPECT_EQ(reply.header("Set-Cookie"), "");
  EXPECT_EQ(reply.header("X-Name"), "a  Set-Cookie: evil");
}

TEST(Server, PassesOnAForeignHeadAndAnEncodedBody) {
  TestServer server([&](Router& r) {
    r.add("POST", "/", [](Exchange& ex) -> Task<void> {
      ex.keep_encoding();
      auto body = co_await ex.read_all(1000);
      if (!body) co_return ex.fail(body.error());
      std::vector<Field> fields = {{"X-Theirs", "a\r\nb"},   {"Connection", "close, X-Hop"},
                                   {"X-Hop", "1"},           {"Transfer-Encoding", "chunked"},
                                   {"Content-Length", "99"}, {"Set-Cookie", "c"}};
      ex.begin_raw(299, "Fine\r\nX: y", fields, body->size());
      (void)co_await ex.write(*body);
    });
  });
  RawClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nContent-Length: 5\r\n\r\n12345");
  RawReply reply = client.reply();
  EXPECT_EQ(reply.status, 299);
  EXPECT_EQ(reply.body, "12345");
  EXPECT_EQ(reply.header("X-Theirs"), "a  b");
  EXPECT_EQ(reply.header("Set-Cookie"), "c");
  EXPECT_EQ(reply.header("Content-Length"), "5");
  for (std::string_view gone : {"X-Hop", "Connection", "X"}) EXPECT_EQ(reply.header(gone), "") << gone;
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1");
  EXPECT_EQ(client.reply().status, 299);
}

TEST(Server, AnUnknownEncodingIs415) {
  TestServer server(routes);
  RawClient client(server.port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nContent-Length: 5\r\n\r\n12345");
  EXPECT_EQ(client.reply().status, 415);
}

TEST(Server, LogsEachRequest) {
  std::mutex mutex;
  std::vector<std::string> lines;
  ServerOptions options;
  options.access_log = [&](std::span<const AccessEntry> entries) {
    std::lock_guard lock(mutex);
    for (const auto& entry : entries)
      lines.push_back(
          fmt::format("{} {} {} {} {}", entry.method, entry.path, entry.status, entry.bytes_in, entry.bytes_out));
  };
  {
    TestServer server(routes, options);
    RawClient client(server.port());
    client.get("/?a=b");
    client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc");
    client.reply();
    client.get("/nowhere");
  }
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "GET / 200 0 6");
  EXPECT_EQ(lines[1], "POST /echo 200 3 3");
  EXPECT_TRUE(lines[2].starts_with("GET /nowhere 404 0 "));
}

TEST(Server, StopsGracefully) {
  std::atomic<bool> started = false, go = false;
  auto server = std::make_unique<TestServer>([&](Router& r) {
    r.add("GET", "/", hello);
    r.add("GET", "/slow", [&](Exchange& ex) -> Task<void> {
      started = true;
      boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor);
      while (!go) {
        timer.expires_after(1ms);
        co_await timer.async_wait(boost::asio::use_awaitable);
      }
      ex.reply(200, "done", "text/plain");
    });
  });
  RawClient idle(server->port()), busy(server->port());
  EXPECT_EQ(idle.get("/").status, 200);
  busy.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
  while (!started) std::this_thread::yield();
  std::thread stopper([&] { server->server().stop(30s); });
  EXPECT_TRUE(idle.at_end());
  uint16_t port = server->port();
  go = true;
  RawReply reply = busy.reply();
  EXPECT_EQ(reply.body, "done");
  EXPECT_EQ(reply.header("Connection"), "close");
  stopper.join();
  EXPECT_THROW(RawClient{port}, std::runtime_error);
}

TEST(Server, StopCutsWhatDoesNotEnd) {
  auto server = std::make_unique<TestServer>([&](Router& r) {
    r.add("GET", "/", [&](Exchange& ex) -> Task<void> {
      ex.begin(200, "text/plain");
      (void)co_await ex.write("x");
      co_await ex.gone();
    });
  });
  RawClient client(server->port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_FALSE(client.some().empty());
  server->server().stop(0ms);
  EXPECT_EQ(server->server().connections(), 0u);
  EXPECT_TRUE(client.at_end());
}

TEST(Server, NoticesAPortInUse) {
  TestServer first(routes);
  Workers workers(1);
  Server second(workers, {.listen = {"127.0.0.1:" + std::to_string(first.port())}}, Router());
  auto started = second.start();
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().sys_errno, EADDRINUSE) << started.error().text();
  auto free = may_listen({"127.0.0.1:0"}), taken = may_listen({"127.0.0.1:" + std::to_string(first.port())});
  EXPECT_TRUE(free) << free.error().text();
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().sys_errno, EADDRINUSE) << taken.error().text();
}

TEST(Server, ListensOnSeveralAddresses) {
  TestServer server(routes, {.listen = {"127.0.0.1:0", "[::1]:0"}});
  auto addresses = server.server().addresses();
  ASSERT_EQ(addresses.size(), 2u);
  EXPECT_TRUE(addresses[0].starts_with("127.0.0.1:"));
  EXPECT_TRUE(addresses[1].starts_with("[::1]:"));
}

}  // namespace
}  // namespace isola::http
