// For tests of dialects: a server that is just starting and never gets to know its sandboxes. While that is so, nobody
// may be told that one is gone: clients take that for final.
//
//   StartingServer starting;
//   Api api(starting.service(), nullptr, starting.keys(), options);
//   starting.expect_come_again([&](http::Router& r) { api.add_to(r); }, {{"by name", "/", "Host: 8000-…\r\n"}});
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include "http/testing.h"
#include "sandbox/service.h"
#include "store/key_ring.h"
#include "store/test_store.h"

namespace isola::dialect {

class StartingServer {
 public:
  static constexpr const char* kSandbox = "iabcdefghij0123456789";
  struct Asked {
    const char* what;
    std::string target, headers;
  };

  StartingServer() {
    auto store = store::SqliteStore::open(folder_ / "store.db");
    (void)ledger::provide_key(folder_ / "ledger.db", folder_ / "ledger.key", ::getuid(), ::getgid());
    auto ledger = ledger::Ledger::open(folder_ / "ledger.db");
    if (!store || !ledger) throw std::runtime_error("no store or no ledger");
    store_ = std::move(*store);
    ledger_ = std::move(*ledger);
    launcher_ =
        sandbox::LauncherLink::make(io_, [](bool) -> Result<Fd> { return fail(Code::unavailable, "there is none"); });
    service_ = std::make_shared<sandbox::Service>(
        sandbox::Service::Parts{.next_worker = [this]() -> boost::asio::io_context& { return io_; },
                                .launcher = launcher_,
                                .store = *store_,
                                .ledger = *ledger_,
                                .cache_dir = folder_.path(),
                                .registries = {},
                                .settings = {}});
    keys_ = std::make_shared<store::KeyRing>(*store_);
  }
  ~StartingServer() {
    launcher_->stop();
    io_.poll();  // what waits there holds the link
  }

  const std::shared_ptr<sandbox::Service>& service() { return service_; }
  const std::shared_ptr<store::KeyRing>& keys() { return keys_; }

  void expect_come_again(const std::function<void(http::Router&)>& routes, const std::vector<Asked>& all) {
    http::TestServer server(routes);
    for (const Asked& asked : all) {
      http::RawClient client(server.port());
      client.send("GET " + asked.target + " HTTP/1.1\r\n" + asked.headers + "\r\n");
      auto reply = client.reply();
      EXPECT_EQ(reply.status, 503) << asked.what;
      EXPECT_EQ(reply.header("Retry-After"), "1") << asked.what;
    }
  }

 private:
  store::TempFolder folder_;
  boost::asio::io_context io_;  // nobody runs it
  std::unique_ptr<store::SqliteStore> store_;
  std::unique_ptr<ledger::Ledger> ledger_;
  std::shared_ptr<sandbox::LauncherLink> launcher_;
  std::shared_ptr<sandbox::Service> service_;
  std::shared_ptr<store::KeyRing> keys_;
};

}  // namespace isola::dialect
