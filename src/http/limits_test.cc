// What strangers send: shapes that two programs could read differently, floods, and clients that are slow on purpose.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "base/file.h"
#include "http/exchange.h"
#include "http/testing.h"

namespace isola::http {
namespace {

using namespace std::chrono_literals;

Task<void> greet(Exchange& ex) {
  ex.reply(200, "hello\n", "text/plain");
  co_return;
}
Task<void> count_bytes(Exchange& ex) {
  uint64_t n = 0;
  for (;;) {
    auto piece = co_await ex.read_some();
    if (!piece) co_return ex.fail(piece.error());
    if (piece->empty()) break;
    n += piece->size();
  }
  ex.reply(200, std::to_string(n), "text/plain");
}
Task<void> count_patiently(Exchange& ex) {
  ex.body_time(1h);
  co_await count_bytes(ex);
}
void limited_routes(Router& r) {
  r.add("POST", "/patient", count_patiently);
  r.add("GET", "/", greet);
  r.add("POST", "/", count_bytes).body_limit = Exchange::kNoLimit;
}

struct Shape {
  const char* name;
  std::string bytes;
};

TEST(Smuggling, ShapesAreRefusedAndTheConnectionEnds) {
  TestServer server(limited_routes);
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\n";
  const std::string next = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  std::vector<Shape> shapes = {
      {"both lengths", post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {"both lengths, the other way round", post + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"},
      {"two different lengths", post + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"},
      {"two equal lengths", post + "Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd"},
      {"a list of lengths", post + "Content-Length: 4, 4\r\n\r\nabcd"},
      {"a signed length", post + "Content-Length: +4\r\n\r\nabcd"},
      {"a negative length", post + "Content-Length: -4\r\n\r\nabcd"},
      {"a hexadecimal length", post + "Content-Length: 0x4\r\n\r\nabcd"},
      {"an empty length", post + "Content-Length: \r\n\r\nabcd"},
      {"a length beyond numbers", post + "Content-Length: 99999999999999999999\r\n\r\nabcd"},
      {"a coding twice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {"chunked twice", post + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"},
      {"chunked and then something", post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"},
      {"an unknown coding", post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
      {"a tab in the coding", post + "Transfer-Encoding:\x0b"
                                     "chunked\r\n\r\n0\r\n\r\n"},
      {"a quoted coding", post + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"},
      {"a coding in the old version", "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {"a space before the colon", post + "Content-Length : 4\r\n\r\nabcd"},
      {"a space before the coding's colon", post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"},
      {"a folded line", post + "X-A: b\r\n Content-Length: 4\r\n\r\nabcd"},
      {"a line folded by a tab", post + "X-A: b\r\n\tc\r\n\r\n"},
      {"a first line that is folded", "POST / HTTP/1.1\r\n Host: x\r\n\r\n"},
      {"bare line feeds", "GET / HTTP/1.1\nHost: x\n\n"},
      {"one bare line feed", "GET / HTTP/1.1\r\nHost: x\nX-A: b\r\n\r\n"},
      {"a bare line feed at the end", "GET / HTTP/1.1\r\nHost: x\r\n\n"},
      {"a bare carriage return", "GET / HTTP/1.1\r\nHost: x\r\nX-A: a\rX-B: b\r\n\r\n"},
      {"a NUL in a value", post + std::string("X-A: a\0b\r\n\r\n", 12)},
      {"a NUL in a name", post + std::string("X\0A: b\r\n\r\n", 10)},
      {"a field without a name", post + ": x\r\n\r\n"},
      {"a field without a colon", post + "X-A\r\n\r\n"},
      {"a method that is no token", "GE(T / HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"a method that is empty", " / HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"two spaces in the first line", "GET  / HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"a space in the target", "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"a control character in the target", "GET /a\x01 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"bytes above ASCII in the target", "GET /\xc3\xa4 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"a fragment in the target", "GET /#a HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"a target that is no path", "GET x HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"CONNECT", "CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n"},
      {"a target that names another host", "GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"no version", "GET /\r\nHost: x\r\n\r\n"},
      {"version 2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
      {"version 1.2", "GET / HTTP/1.2\r\nHost: x\r\n\r\n"},
      {"a lower-case version", "GET / http/1.1\r\nHost: x\r\n\r\n"},
      {"no host", "GET / HTTP/1.1\r\n\r\n"},
      {"two hosts", "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n"},
      {"a host with a path", "GET / HTTP/1.1\r\nHost: x/y\r\n\r\n"},
      {"a host with a user", "GET / HTTP/1.1\r\nHost: a@x\r\n\r\n"},
      {"a malformed escape in the query", "GET /?a=%zz HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"TLS where none is", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15)},
  };
  for (const Shape& shape : shapes) {
    RawClient client(server.port());
    client.send(shape.bytes + next);
    RawReply reply = client.reply();
    EXPECT_TRUE(reply.status == 400 || reply.status == 501) << shape.name << ": " << reply.status << "\n" << reply.body;
    EXPECT_EQ(reply.header("Connection"), "close") << shape.name;
    EXPECT_TRUE(client.at_end()) << shape.name << ": what followed was taken for another request";
  }
}

TEST(Smuggling, BadChunksAreRefusedAndTheConnectionEnds) {
  TestServer server(limited_routes);
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string next = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  std::vector<Shape> shapes = {
      {"no size", post + "\r\nabc\r\n0\r\n\r\n"},
      {"a size that is no number", post + "xyz\r\nabc\r\n0\r\n\r\n"},
      {"a size with a prefix", post + "0x3\r\nabc\r\n0\r\n\r\n"},
      {"a signed size", post + "+3\r\nabc\r\n0\r\n\r\n"},
      {"a negative size", post + "-3\r\nabc\r\n0\r\n\r\n"},
      {"a size with a space before", post + " 3\r\nabc\r\n0\r\n\r\n"},
      {"a size with a space behind", post + "3 \r\nabc\r\n0\r\n\r\n"},
      {"a size beyond numbers", post + "fffffffffffffffff\r\nabc\r\n0\r\n\r\n"},
      {"a size that wraps to three", post + "10000000000000003\r\nabc\r\n0\r\n\r\n"},
      {"a bare line feed after the size", post + "3\nabc\r\n0\r\n\r\n"},
      {"a chunk longer than its size", post + "3\r\nabcd\r\n0\r\n\r\n"},
      {"a chunk without its end", post + "3\r\nabc0\r\n\r\n"},
      {"a chunk that ends in a bare line feed", post + "3\r\nabc\n0\r\n\r\n"},
      {"an extension with a line feed", post + "3;a\nb\r\nabc\r\n0\r\n\r\n"},
      {"a malformed trailer", post + "0\r\nbad trailer\r\n\r\n"},
      {"a length in the trailer", post + "0\r\nContent-Length: 3\r\n\r\n"},
  };
  for (const Shape& shape : shapes) {
    RawClient client(server.port());
    client.send(shape.bytes + next);
    RawReply reply = client.reply();
    EXPECT_EQ(reply.status, 400) << shape.name << "\n" << reply.body;
    EXPECT_EQ(reply.header("Connection"), "close") << shape.name;
    EXPECT_TRUE(client.at_end()) << shape.name << ": what followed was taken for another request";
  }
}

TEST(Smuggling, TrailersDoNotBecomeHeaders) {
  TestServer server([](Router& r) {
    r.add("POST", "/", [](Exchange& ex) -> Task<void> {
      (void)co_await ex.read_all(100);
      ex.reply(200, "[" + std::string(ex.header("X-Secret")) + "]", "text/plain");
    });
  });
  RawClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Secret: 1\r\n\r\n");
  EXPECT_EQ(client.reply().body, "[]");
}

TEST(Limits, TooLargeAHeadIs431) {
  TestServer server(limited_routes);
  {
    RawClient client(server.port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\nX-Large: " + std::string(70'000, 'a') + "\r\n\r\n");
    EXPECT_EQ(client.reply().status, 431);
    EXPECT_TRUE(client.at_end());
  }
  {
    RawClient client(server.port());
    std::string many = "GET / HTTP/1.1\r\nHost: x\r\n";
    for (int i = 0; i < 300; i++) many += "X: y\r\n";
    client.send(many + "\r\n");
    EXPECT_EQ(client.reply().status, 431);
  }
  {
    RawClient client(server.port());  // a flood that never ends
    client.send("GET / HTTP/1.1\r\nHost: x\r\n");
    for (int i = 0; i < 1000 && client.send("X-Flood: " + std::string(1000, 'a') + "\r\n"); i++) {
    }
    EXPECT_EQ(client.reply().status, 431);
  }
  RawClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\nX-Large: " + std::string(60'000, 'a') + "\r\n\r\n");
  EXPECT_EQ(client.reply().status, 200);
}

TEST(Limits, ASlowHeadIs408AndAnIdleConnectionIsClosed) {
  ServerOptions options;
  options.limits.header_time = 50ms;
  options.limits.idle_time = 50ms;
  TestServer server(limited_routes, options);
  RawClient slow(server.port());
  slow.send("GET / HTTP/1.1\r\nHo");
  EXPECT_EQ(slow.reply().status, 408);
  EXPECT_TRUE(slow.at_end());
  RawClient idle(server.port());
  EXPECT_TRUE(idle.at_end());
  options.limits.idle_time = 1s;  // enough for a first request on a busy machine
  TestServer patient(limited_routes, options);
  RawClient kept(patient.port());
  EXPECT_EQ(kept.get("/").status, 200);
  EXPECT_TRUE(kept.at_end());
}

TEST(Limits, WhoeverAskedSomethingMayIdleForLonger) {
  ServerOptions options;
  options.limits.idle_time = 1h;
  options.limits.short_idle_time = 50ms;
  TestServer server(limited_routes, options);
  RawClient kept(server.port());
  EXPECT_EQ(kept.get("/").status, 200);
  {
    RawClient idle(server.port());
    EXPECT_TRUE(idle.at_end());
  }
  EXPECT_EQ(kept.get("/").status, 200);
  options.limits.connections = 1;  // one is more than half of them
  TestServer scarce(limited_routes, options);
  RawClient only(scarce.port());
  EXPECT_EQ(only.get("/").status, 200);
  EXPECT_TRUE(only.at_end());
}

TEST(Limits, AHeadThatDripsDoesNotGetMoreTime) {
  ServerOptions options;
  options.limits.header_time = 100ms;
  TestServer server(limited_routes, options);
  RawClient client(server.port());
  std::string head = "GET / HTTP/1.1\r\nHost: x\r\nX-Drip: ";
  client.send(head);
  pollfd p{client.fd(), POLLIN, 0};
  int drops = 0;
  while (::poll(&p, 1, 10) == 0 && drops < 1000) {  // a byte every 10 ms, for ten seconds at most
    client.send("x");
    drops++;
  }
  EXPECT_LT(drops, 1000);
  EXPECT_EQ(client.reply().status, 408);
}

TEST(Limits, ASlowBodyIs408) {
  ServerOptions options;
  options.limits.body_time = 50ms;
  TestServer server(limited_routes, options);
  RawClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  RawReply reply = client.reply();
  EXPECT_EQ(reply.status, 408);
  EXPECT_EQ(reply.header("Connection"), "close");
}

TEST(Limits, ARouteCanWaitLongerForABody) {
  ServerOptions options;
  options.limits.body_time = 50ms;
  TestServer server(limited_routes, options);
  RawClient patient(server.port()), other(server.port());
  patient.send("POST /patient HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nabc");
  other.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nabc");
  EXPECT_EQ(other.reply().status, 408);
  patient.send("def");
  EXPECT_EQ(patient.reply().body, "6");
}

TEST(Limits, AClientThatDoesNotReadIsCut) {
  std::atomic<uint64_t> written = 0;
  std::atomic<int> result = -1;
  ServerOptions options;
  options.limits.write_time = 100ms;
  TestServer server(
      [&](Router& r) {
        r.add("GET", "/", [&](Exchange& ex) -> Task<void> {
          std::string piece(256 << 10, 'x');
          ex.begin(200, "text/plain");
          for (;;) {
            auto sent = co_await ex.write(piece);
            if (!sent) {
              result = static_cast<int>(sent.error().code);
              co_return;
            }
            written += piece.size();
          }
        });
      },
      options);
  RawClient client(server.port(), 8 << 10);
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  while (server.server().connections() > 0 || result < 0) std::this_thread::yield();
  EXPECT_EQ(result, static_cast<int>(Code::timeout));
  EXPECT_LT(written, 8u << 20);  // what the kernel takes before the reader reads, and no more
}

TEST(Limits, AReaderForWhomAHandlerWaitsMayPause) {
  constexpr int kAll = 1000;
  std::atomic<int> patient = -1, usual = -1;
  auto flood = [](Exchange& ex, std::atomic<int>& result) -> Task<void> {
    std::string piece(256 << 10, 'x');
    ex.begin(200, "text/plain");
    for (int i = 0; i < 64; ++i) {
      auto sent = co_await ex.write(piece);
      if (sent) continue;
      result = static_cast<int>(sent.error().code);
      co_return;
    }
    result = kAll;
  };
  ServerOptions options;
  options.limits.write_time = 50ms;
  TestServer server(
      [&](Router& r) {
        r.add("GET", "/patient", [&](Exchange& ex) -> Task<void> {
          ex.write_time(1h);
          co_await flood(ex, patient);
        });
        r.add("GET", "/", [&](Exchange& ex) -> Task<void> { co_await flood(ex, usual); });
      },
      options);
  {
    RawClient first(server.port(), 8 << 10);
    first.send("GET /patient HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_FALSE(first.some().empty());
    // Another one begins later and is cut, and so would the first one have been.
    RawClient second(server.port(), 8 << 10);
    second.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    while (usual < 0) std::this_thread::yield();
    EXPECT_EQ(usual, static_cast<int>(Code::timeout));
    EXPECT_EQ(patient, -1);
    while (patient < 0) (void)first.some();
    EXPECT_EQ(patient, kAll);
  }
  // One that hangs up is noticed nevertheless.
  patient = usual = -1;
  RawClient third(server.port(), 8 << 10);
  third.send("GET /patient HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_FALSE(third.some().empty());
  third.close();
  while (patient < 0) std::this_thread::yield();
  EXPECT_EQ(patient, static_cast<int>(Code::unavailable));
}

TEST(Limits, WhoHangsUpBehindABodyThatNobodyReadsHasLeft) {
  std::atomic<int> read = 0, left = 0;
  TestServer server([&](Router& r) {
    r.add("POST", "/", [&](Exchange& ex) -> Task<void> {
       auto piece = co_await ex.read_some();
       if (!piece) co_return;
       ++read;
       co_await ex.left();
       ++left;
     }).body_limit = Exchange::kNoLimit;
  });
  const std::string body = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + std::string(100'000, 'x');
  RawClient stays(server.port());
  stays.send(body);
  while (read < 1) std::this_thread::yield();
  // The one has the rest of its body to send yet, and the other has sent its end.
  stays.shutdown_write();
  RawClient leaves(server.port());
  leaves.send(body);
  while (read < 2) std::this_thread::yield();
  leaves.close();
  while (left < 1) std::this_thread::yield();
  EXPECT_EQ(left, 1) << "who only ended its side is there";
  stays.close();
  while (left < 2) std::this_thread::yield();
}

TEST(Limits, AFullServerSays503) {
  ServerOptions options;
  options.limits.connections = 3;
  TestServer server(limited_routes, options);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; i++) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    EXPECT_EQ(clients.back()->get("/").status, 200);
  }
  RawClient more(server.port());
  RawReply reply = more.get("/");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.header("Retry-After"), "1");
  EXPECT_EQ(clients[0]->get("/").status, 200);
  more.close();
  clients.pop_back();
  while (server.server().connections() > 2) std::this_thread::yield();
  EXPECT_EQ(RawClient(server.port()).get("/").status, 200);
}

uint64_t resident_kib() {
  auto text = read_file("/proc/self/status");
  size_t at = text->find("VmRSS:");
  return std::strtoull(text->c_str() + at + 6, nullptr, 10);
}

TEST(Limits, ALargeUploadTakesLittleMemory) {
  TestServer server(limited_routes);
  RawClient client(server.port());
  const uint64_t size = 512ull << 20;
  std::string piece(256 << 10, 'x');
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(size) + "\r\n\r\n");
  client.send(piece);
  uint64_t before = resident_kib();
  uint64_t most = before;
  for (uint64_t sent = piece.size(); sent < size; sent += piece.size()) {
    ASSERT_TRUE(client.send(piece));
    if (sent % (16 << 20) == 0) most = std::max(most, resident_kib());
  }
  EXPECT_EQ(client.reply().body, std::to_string(size));
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer keeps what is freed: memory says nothing here";
#endif
  EXPECT_LT(most - before, 4096u);
}

// The clients live in a process of their own, so that each side has its own descriptors.
int be_many_clients(size_t count_bytes, int from_parent, int to_parent) {
  uint16_t port = 0;
  if (::read(from_parent, &port, sizeof port) != sizeof port) return 1;
  std::vector<std::unique_ptr<RawClient>> idle;
  for (size_t i = 0; i < count_bytes; i++) {
    idle.push_back(std::make_unique<RawClient>(port));
    if (idle.back()->get("/").status != 200) return 2;
  }
  char word = 'x';
  if (::write(to_parent, &word, 1) != 1 || ::read(from_parent, &word, 1) != 1) return 3;
  {
    RawClient another(port);
    if (another.get("/").status != 200) return 4;
    if (RawClient(port).get("/").status != 503) return 5;
  }
  if (idle.front()->get("/").status != 200 || idle.back()->get("/").status != 200) return 6;
  return 0;
}

TEST(Limits, ManyIdleConnectionsLeaveRoomForOthers) {
  const size_t count_bytes = std::getenv("ISOLA_TEST_FULL") ? 15'000 : 1'500;
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_max < count_bytes + 500)
    GTEST_SKIP() << "this process may have " << files.rlim_max << " descriptors only";
  rlimit more = files;
  more.rlim_cur = std::max<rlim_t>(files.rlim_cur, count_bytes + 500);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &more), 0);
  int down[2], up[2];
  ASSERT_EQ(::pipe2(down, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(up, O_CLOEXEC), 0);
  pid_t child = ::fork();  // before there are threads
  if (child == 0) {
    int code = 9;
    try {
      code = be_many_clients(count_bytes, down[0], up[1]);
    } catch (const std::exception&) {
    }
    ::_exit(code);
  }
  Fd from_child(up[0]), to_child(down[1]);
  ::close(up[1]);
  ::close(down[0]);
  {
    ServerOptions options;
    options.limits.connections = count_bytes + 1;
    TestServer server(limited_routes, options);
    uint64_t before = resident_kib();
    uint16_t port = server.port();
    ASSERT_EQ(::write(to_child.get(), &port, sizeof port), ssize_t{sizeof port});
    char word;
    if (::read(from_child.get(), &word, 1) == 1) {
      std::printf("[ %zu connections%s ] %.1f KiB each\n", count_bytes, count_bytes < 15'000 ? ", reduced" : "",
                  static_cast<double>(resident_kib() - before) / static_cast<double>(count_bytes));
      EXPECT_EQ(server.server().connections(), count_bytes);
      ASSERT_EQ(::write(to_child.get(), &word, 1), 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
  }
  ::setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace
}  // namespace isola::http
