#include <gtest/gtest.h>

#include <atomic>

#include "http/client.h"
#include "http/exchange.h"
#include "http/ndjson.h"
#include "http/sse.h"
#include "http/testing.h"
#include "http/websocket.h"
#include "http/websocket_client.h"

namespace isola::http {
namespace {

using namespace std::chrono_literals;

Task<void> echo_socket(Exchange& ex) {
  WebSocketOptions options{.subprotocols = {"v2.echo", "v1.echo"}, .max_message = 100'000};
  auto socket = co_await ex.upgrade(options);
  if (!socket) co_return ex.fail(socket.error());
  for (;;) {
    auto message = co_await (*socket)->read();
    if (!message || !*message) co_return;
    if ((*message)->data == "bye") {
      (void)co_await (*socket)->close(4001, "as you wish");
      co_return;
    }
    auto sent = co_await (*socket)->write((*message)->data, (*message)->text);
    if (!sent) co_return;
  }
}
void upgrade_routes(Router& r) { r.add("GET", "/ws", echo_socket); }

Result<std::unique_ptr<WebSocketClient>> open(TestServer& server, std::vector<std::string> subprotocols = {}) {
  return WebSocketClient::connect(*parse_url(server.url("/ws")), {}, subprotocols);
}

TEST(WebSocket, EchoesTextAndBytesOfAnySize) {
  TestServer server(upgrade_routes);
  auto socket = open(server);
  ASSERT_TRUE(socket) << socket.error().text();
  for (size_t size : {0, 1, 125, 126, 65535, 65536, 100'000}) {
    for (bool text : {true, false}) {
      std::string data(size, 'x');
      ASSERT_TRUE((*socket)->write(data, text));
      auto event = (*socket)->next(10s);
      ASSERT_TRUE(event);
      EXPECT_EQ(event->kind, WebSocketEvent::message);
      EXPECT_EQ(event->data, data);
      EXPECT_EQ(event->text, text);
    }
  }
  EXPECT_EQ((*socket)->next(0ms)->kind, WebSocketEvent::nothing);
}

TEST(WebSocket, ChoosesTheFirstCommonSubprotocol) {
  TestServer server(upgrade_routes);
  EXPECT_EQ((*open(server, {"other", "v1.echo", "v2.echo"}))->subprotocol(), "v1.echo");
  EXPECT_EQ((*open(server, {"other"}))->subprotocol(), "");
}

TEST(WebSocket, ClosesWithACode) {
  TestServer server(upgrade_routes);
  auto socket = open(server);
  ASSERT_TRUE((*socket)->write("bye", true));
  auto event = (*socket)->next(10s);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, WebSocketEvent::closed);
  EXPECT_EQ(event->code, 4001);
}

TEST(WebSocket, TheServerNoticesAClose) {
  TestServer server(upgrade_routes);
  {
    auto socket = open(server);
    ASSERT_TRUE((*socket)->close(1000));
    EXPECT_EQ((*socket)->next(10s)->kind, WebSocketEvent::closed);
  }
  auto dropped = open(server);
  dropped->reset();
  while (server.server().connections() > 0) std::this_thread::yield();
}

TEST(WebSocket, RefusesAMessageThatIsTooLarge) {
  TestServer server(upgrade_routes);
  auto socket = open(server);
  ASSERT_TRUE((*socket)->write(std::string(100'001, 'x'), false));
  auto event = (*socket)->next(10s);
  EXPECT_TRUE(!event || event->kind == WebSocketEvent::closed);
}

TEST(WebSocket, RequestsThatAreNoneGetAnError) {
  TestServer server(upgrade_routes);
  RawClient client(server.port());
  EXPECT_EQ(client.get("/ws").status, 400);
  EXPECT_EQ(client
                .get("/ws",
                     "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\n"
                     "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n")
                .status,
            400);
  EXPECT_EQ(client.get("/ws", "Connection: Upgrade\r\nUpgrade: h2c\r\n").status, 400);
  EXPECT_EQ(client
                .get("/ws",
                     "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                     "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\n")
                .status,
            400);
}

TEST(WebSocket, TheAnswerHasTheHandlersHeaders) {
  TestServer server([&](Router& r) {
    r.add("GET", "/ws", [](Exchange& ex) -> Task<void> {
      ex.set_header("X-Of-Ours", "yes: it is");
      co_await echo_socket(ex);
    });
  });
  RawClient client(server.port());
  // A browser's cookies make a handshake long.
  RawReply reply = client.get("/ws",
                              "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                              "X-Request-Id: mine\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nCookie: " +
                                  std::string(8000, 'c') + "\r\n");
  EXPECT_EQ(reply.status, 101);
  EXPECT_EQ(reply.header("X-Of-Ours"), "yes: it is");
  EXPECT_EQ(reply.header("X-Request-Id"), "mine");
}

TEST(WebSocket, ASilentPeerIsPingedAndThenCut) {
  std::atomic<int> code = -1;
  TestServer server([&](Router& r) {
    r.add("GET", "/ws", [&](Exchange& ex) -> Task<void> {
      WebSocketOptions options{.silence = 1s};
      auto socket = co_await ex.upgrade(options);
      if (!socket) co_return;
      auto message = co_await (*socket)->read();
      code = message ? -2 : static_cast<int>(message.error().code);
    });
  });
  RawClient client(server.port());
  client.send(
      "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
      "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n");
  std::string all;
  for (std::string more = client.some(); !more.empty(); more = client.some()) all += more;
  EXPECT_NE(all.find("101"), all.npos);
  EXPECT_TRUE(all.ends_with(std::string("\x89\x00", 2))) << "no ping";
  while (code == -1) std::this_thread::yield();
  EXPECT_EQ(code, static_cast<int>(Code::timeout));
}

TEST(TakeOver, CarriesBytesBothWaysWithHalfCloses) {
  std::string head;
  TestServer server([&](Router& r) {
    r.add("GET", "/raw", [&](Exchange& ex) -> Task<void> {
      head = ex.raw_head();
      auto stream = ex.take_over();
      if (!stream) co_return ex.fail(stream.error());
      (void)co_await (*stream)->write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
      for (;;) {
        auto bytes = co_await (*stream)->read_some();
        if (!bytes) co_return;
        if (bytes->empty()) break;
        std::string copy(*bytes);
        (void)co_await (*stream)->write(copy);
      }
      (void)co_await (*stream)->write("END");  // the other way is still open
      (void)co_await (*stream)->shutdown_write();
    });
  });
  RawClient client(server.port());
  std::string request = "GET /raw HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
  client.send(request + "early");
  client.send("late");
  client.shutdown_write();
  std::string all;
  for (std::string more = client.some(); !more.empty(); more = client.some()) all += more;
  EXPECT_TRUE(all.ends_with("\r\n\r\nearlylateEND")) << all;
  EXPECT_EQ(head, request);
}

TEST(Sse, EventsCannotForgeEachOther) {
  EXPECT_EQ(sse_text({.event = "a\nb", .data = "one\ntwo\r\nthree\rfour", .id = "7"}),
            "id: 7\nevent: a b\ndata: one\ndata: two\ndata: three\ndata: four\n\n");
  EXPECT_EQ(sse_text({.data = ""}), "data: \n\n");
}

TEST(Streams, EventsAndLines) {
  TestServer server([](Router& r) {
    r.add("GET", "/sse", [](Exchange& ex) -> Task<void> {
      SseWriter events(ex);
      (void)co_await events.open();
      (void)co_await events.keep_alive();
      SseEvent event{.event = "exit", .data = "{}"};
      (void)co_await events.send(event);
    });
    r.add("GET", "/lines", [](Exchange& ex) -> Task<void> {
      NdjsonWriter lines(ex);
      (void)co_await lines.open();
      (void)co_await lines.send("{\"a\":1}");
      (void)co_await lines.keep_alive();
      (void)co_await lines.send("{\"a\":2}");
    });
  });
  RawClient client(server.port());
  RawReply sse = client.get("/sse");
  EXPECT_EQ(sse.header("Content-Type"), "text/event-stream");
  EXPECT_EQ(sse.body, ":\n\nevent: exit\ndata: {}\n\n");
  EXPECT_EQ(client.get("/lines").body, "{\"a\":1}\n\n{\"a\":2}\n");
}

}  // namespace
}  // namespace isola::http
