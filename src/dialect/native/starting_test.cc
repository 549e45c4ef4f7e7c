// While the server does not know its sandboxes yet, nobody is told that one is gone: clients take that for final.
#include <gtest/gtest.h>

#include "dialect/native/api.h"
#include "http/testing.h"
#include "store/test_store.h"

namespace isola::native {
namespace {

TEST(Starting, PortsSayComeAgain) {
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
  Options options{.hosts = {}, .domain = "isola.test", .url_secret = "secret", .port = {}};
  Api api(service, nullptr, keys, options);
  http::TestServer server([&](http::Router& router) { api.add_to(router); });
  const std::string id = "iabcdefghij0123456789";
  struct {
    const char* what;
    std::string target, headers;
  } kAsked[] = {
      {"by name", "/", "Host: 8000-" + id + ".isola.test\r\n"},
      {"by headers", "/", "Host: localhost\r\nX-Isola-Sandbox: " + id + "\r\nX-Isola-Port: 8000\r\n"},
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
}  // namespace isola::native
