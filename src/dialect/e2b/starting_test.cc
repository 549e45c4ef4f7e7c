// While the server does not know its sandboxes yet, nobody is told that one is gone: clients take that for final.
#include <gtest/gtest.h>

#include "dialect/e2b/api.h"
#include "http/testing.h"
#include "store/test_store.h"

namespace isola::e2b {
namespace {

TEST(Starting, TheDataPlanesSayComeAgain) {
  store::TempFolder folder;
  auto store = store::SqliteStore::open(folder / "store.db");
  auto ledger = ledger::Ledger::open(folder / "ledger.db");
  ASSERT_TRUE(store && ledger);
  boost::asio::io_context io;  // nobody runs it: this server never gets to know anything
  auto launcher =
      sandbox::LauncherLink::make(io, []() -> Result<Fd> { return fail(Code::unavailable, "there is none"); });
  auto service = std::make_shared<sandbox::Service>(
      sandbox::Service::Parts{.next_worker = [&]() -> boost::asio::io_context& { return io; },
                              .launcher = launcher,
                              .store = **store,
                              .ledger = **ledger,
                              .cache_dir = folder.path(),
                              .registries = {},
                              .settings = {}});
  auto keys = std::make_shared<store::KeyRing>(**store);
  Options options{.hosts = {}, .domain = "isola.test", .port = {}, .secret = "secret"};
  Api api(service, nullptr, keys, options);
  http::TestServer server([&](http::Router& router) { api.add_to(router); });
  const std::string id = "iabcdefghij0123456789";
  struct {
    const char* what;
    std::string target, headers;
  } kAsked[] = {
      {"envd by name", "/health", "Host: 49983-" + id + ".isola.test\r\n"},
      {"envd by headers", "/health", "Host: localhost\r\nE2b-Sandbox-Id: " + id + "\r\n"},
      {"a port by name", "/", "Host: 8000-" + id + ".isola.test\r\n"},
      {"a port by headers", "/", "Host: localhost\r\nE2b-Sandbox-Id: " + id + "\r\nE2b-Sandbox-Port: 8000\r\n"},
      {"a signed file", "/files?path=a&signature=v1_" + std::string(43, 'a'), "Host: localhost\r\n"},
  };
  for (const auto& asked : kAsked) {
    http::RawClient client(server.port());
    client.send("GET " + asked.target + " HTTP/1.1\r\n" + asked.headers + "\r\n");
    auto reply = client.reply();
    EXPECT_EQ(reply.status, 503) << asked.what;
    EXPECT_EQ(reply.header("Retry-After"), "1") << asked.what;
  }
  launcher->stop();
  io.poll();  // what waits there holds the link
}

}  // namespace
}  // namespace isola::e2b
