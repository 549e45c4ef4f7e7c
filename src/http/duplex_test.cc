// Both ways at once, as a proxied connection uses them: each has a deadline of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <optional>
#include <thread>

#include "http/exchange.h"
#include "http/testing.h"

namespace isola::http {
namespace {

using namespace std::chrono_literals;
using namespace boost::asio::experimental::awaitable_operators;
namespace asio = boost::asio;

struct Seen {
  std::atomic<uint64_t> read = 0;
  std::atomic<int> read_end = -1, write_end = -1;  // 0: well; else 100 + the code
};

int end_of(const Error& error) { return 100 + static_cast<int>(error.code); }
constexpr int kLate = 100 + static_cast<int>(Code::timeout);

Task<void> take_body(Exchange& ex, Seen& seen) {
  for (;;) {
    auto piece = co_await ex.read_some();
    if (!piece) seen.read_end = end_of(piece.error());
    if (!piece) co_return;
    if (piece->empty()) break;
    seen.read += piece->size();
  }
  seen.read_end = 0;
}

Task<void> say(Exchange& ex, Seen& seen, int pieces, std::chrono::milliseconds pause) {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  ex.begin(200, "text/plain");
  for (int i = 0; i < pieces; i++) {
    timer.expires_after(pause);
    co_await timer.async_wait(asio::use_awaitable);
    auto sent = co_await ex.write("x");
    if (!sent) seen.write_end = end_of(sent.error());
    if (!sent) co_return;
  }
  seen.write_end = 0;
}

constexpr std::string_view kHalf = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\na";

TEST(Duplex, WhoeverTakesALongAnswerNeedNotSendMeanwhile) {
  Seen seen;
  ServerOptions options;
  options.limits.body_time = 1s;
  TestServer server(
      [&](Router& r) {
        r.add("POST", "/", [&](Exchange& ex) -> Task<void> {
          co_await (take_body(ex, seen) && say(ex, seen, 16, 100ms));
          (void)co_await ex.finish();
        });
      },
      options);
  RawClient client(server.port());
  client.send(kHalf);
  std::string got;
  while (std::count(got.begin(), got.end(), 'x') < 16) {  // longer than the time that a body has
    std::string more = client.some();
    ASSERT_FALSE(more.empty()) << "cut after " << got;
    if (auto end = more.find("\r\n\r\n"); got.empty() && end != more.npos) more.erase(0, end);
    got += more;
  }
  client.send("bcd");
  while (!got.ends_with("0\r\n\r\n")) {
    std::string more = client.some();
    ASSERT_FALSE(more.empty()) << got;
    got += more;
  }
  EXPECT_EQ(seen.read, 4u);
  EXPECT_EQ(seen.read_end, 0);
  EXPECT_EQ(seen.write_end, 0);
}

TEST(Duplex, WhereNothingMovesTheRestOfABodyIsLate) {
  Seen seen;
  ServerOptions options;
  options.limits.body_time = 50ms;
  TestServer server(
      [&](Router& r) {
        r.add("POST", "/", [&](Exchange& ex) -> Task<void> {
          co_await (take_body(ex, seen) && say(ex, seen, 3, 1ms));
          ex.abort();
        });
      },
      options);
  RawClient client(server.port());
  client.send(kHalf);
  while (seen.read_end < 0) std::this_thread::yield();
  EXPECT_EQ(seen.read_end, kLate);
  EXPECT_EQ(seen.write_end, 0);
}

Task<void> take_raw(RawStream& stream, Seen& seen) {
  auto piece = co_await stream.read_some();
  seen.read_end = piece ? 0 : end_of(piece.error());
}

Task<void> flood(RawStream& stream, Seen& seen) {
  std::string piece(256 << 10, 'x');
  for (;;) {
    auto sent = co_await stream.write(piece);
    if (!sent) seen.write_end = end_of(sent.error());
    if (!sent) co_return;
  }
}

TEST(Duplex, WhoeverTakesNothingIsNotReadFromEither) {
  Seen seen;
  ServerOptions options;
  options.limits.write_time = 50ms;
  TestServer server(
      [&](Router& r) {
        r.add("GET", "/", [&](Exchange& ex) -> Task<void> {
          auto stream = ex.take_over();
          if (!stream) co_return;
          co_await (take_raw(**stream, seen) && flood(**stream, seen));
        });
      },
      options);
  RawClient client(server.port(), 8 << 10);
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  while (seen.read_end < 0 || seen.write_end < 0) std::this_thread::yield();
  EXPECT_EQ(seen.write_end, kLate);
  EXPECT_EQ(seen.read_end, kLate);
}

}  // namespace
}  // namespace isola::http
