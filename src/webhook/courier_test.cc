#include "webhook/courier.h"

#include <gtest/gtest.h>

#include <future>

#include "http/exchange.h"
#include "http/router.h"
#include "http/testing.h"
#include "sandbox/fake_launcher.h"

namespace isola::webhook {
namespace {

namespace net = boost::asio;
using namespace std::chrono_literals;

// A service that was never started has a ledger and news all the same, and that is all that a courier wants of it.
class CourierTest : public ::testing::Test {
 protected:
  CourierTest() : keep_(net::make_work_guard(io_)) {
    auto store = store::SqliteStore::open(folder_ / "store.db");
    EXPECT_TRUE(ledger::provide_key(folder_ / "ledger.db", folder_ / "ledger.key", ::getuid(), ::getgid()));
    auto ledger = ledger::Ledger::open(folder_ / "ledger.db");
    if (!store || !ledger) std::abort();
    store_ = std::move(*store);
    ledger_ = std::move(*ledger);
    if (!store_->insert_project({.id = "default", .name = "default", .created = 1})) std::abort();
    auto worker = [this]() -> net::io_context& { return io_; };
    link_ = sandbox::LauncherLink::make(io_, [this](bool) { return fake_.connect(); });
    service_ = std::make_shared<sandbox::Service>(sandbox::Service::Parts{.next_worker = worker,
                                                                          .launcher = link_,
                                                                          .store = *store_,
                                                                          .ledger = *ledger_,
                                                                          .cache_dir = folder_.path(),
                                                                          .registries = {},
                                                                          .settings = {}});
    courier_ = std::make_shared<Courier>(
        Courier::Parts{.next_worker = worker, .service = service_, .store = *store_, .stretch = kStretch});
    courier_->set_form([](const auto&, const ledger::Event& event) {
      return std::optional(Message{.headers = {}, .body = event.sandbox});
    });
    worker_ = std::thread([this] { io_.run(); });
  }
  ~CourierTest() override {
    courier_->stop();
    service_->stop();
    link_->stop();
    keep_.reset();
    io_.stop();
    worker_.join();
  }

  std::string add_webhook() {
    store::WebhookRecord webhook{.project = "default", .url = server_.url("/hook"), .enabled = true};
    auto added = courier_->add(webhook);
    EXPECT_TRUE(added) << added.error().message;
    return added ? added->id : std::string();
  }
  ledger::Event happens(ledger::Kind kind, const std::string& sandbox) {
    ledger::Event event{.project = "default", .sandbox = sandbox, .kind = kind};
    EXPECT_TRUE(ledger_->append(event));
    return event;
  }
  void ring() { service_->events().publish({.project = "default", .kind = ledger::Kind::command_started}); }
  // The next sandbox that the listener is told of.
  std::string next() {
    std::unique_lock lock(mutex_);
    if (!news_.wait_for(lock, 20s, [&] { return !told_.empty(); })) return "nothing";
    std::string first = std::move(told_.front());
    told_.pop_front();
    return first;
  }
  uint64_t noted(const std::string& id) {
    auto webhook = store_->find_webhook("default", id);
    return webhook ? webhook->told : 0;
  }

  static constexpr uint64_t kStretch = 100;
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::string> told_;
  http::TestServer server_{[this](http::Router& router) {
    router.group("/").add("POST", "/hook", [this](http::Exchange& ex) -> Task<void> {
      auto body = co_await ex.read_all(1 << 20);
      {
        std::lock_guard lock(mutex_);
        told_.push_back(body.value_or("unreadable"));
      }
      news_.notify_all();
      ex.reply(204);
    });
  }};
  store::TempFolder folder_;
  std::unique_ptr<store::SqliteStore> store_;
  std::unique_ptr<ledger::Ledger> ledger_;
  sandbox::FakeLauncher fake_;
  net::io_context io_;
  net::executor_work_guard<net::io_context::executor_type> keep_;
  std::shared_ptr<sandbox::LauncherLink> link_;
  std::shared_ptr<sandbox::Service> service_;
  std::shared_ptr<Courier> courier_;
  std::thread worker_;
};

// However much else is written, what was looked through is noted: nobody asks the ledger for it again, and no question
// gets longer and longer.
TEST_F(CourierTest, WhatIsNotForItIsLookedThroughOnce) {
  auto id = add_webhook();
  happens(ledger::Kind::sandbox_created, "first");
  ring();
  EXPECT_EQ(next(), "first");
  uint64_t most = 0;
  for (uint64_t i = 0; i < 3 * kStretch; ++i) happens(ledger::Kind::command_started, "first");
  ASSERT_TRUE(ledger_->flush());
  most = ledger_->head().seq;
  ring();
  for (auto end = std::chrono::steady_clock::now() + 20s; noted(id) + kStretch <= most;) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << noted(id) << " of " << most;
    std::this_thread::yield();
  }
  happens(ledger::Kind::sandbox_ended, "last");
  ring();
  EXPECT_EQ(next(), "last");
}

TEST_F(CourierTest, NothingIsMissedBehindManyOthers) {
  happens(ledger::Kind::sandbox_created, "before");
  ASSERT_TRUE(ledger_->flush());
  add_webhook();
  for (uint64_t i = 0; i < 2 * kStretch; ++i) happens(ledger::Kind::command_started, "x");
  happens(ledger::Kind::sandbox_created, "one");
  for (uint64_t i = 0; i < 2 * kStretch; ++i) happens(ledger::Kind::command_started, "x");
  happens(ledger::Kind::sandbox_ended, "two");
  ring();
  EXPECT_EQ(next(), "one");
  EXPECT_EQ(next(), "two");
}

}  // namespace
}  // namespace isola::webhook
