// A service with a store and a ledger of its own, on a launcher that is made up (fake_launcher.h).
#pragma once

#include "ledger/schema.h"
#include "sandbox/fake_launcher.h"
#include "store/sqlite_schema.h"

namespace isola::sandbox {

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() : keep_(net::make_work_guard(io_)), other_keep_(net::make_work_guard(other_io_)) {
    auto store = store::SqliteStore::open(folder_ / "store.db");
    EXPECT_TRUE(ledger::provide_key(folder_ / "ledger.db", folder_ / "ledger.key", ::getuid(), ::getgid()));
    auto ledger = ledger::Ledger::open(folder_ / "ledger.db");
    if (!store || !ledger) std::abort();
    store_ = std::move(*store);
    ledger_ = std::move(*ledger);
    if (!store_->insert_project({.id = "default", .name = "default", .created = 1})) std::abort();
    worker_ = std::thread([this] { io_.run(); });
    other_worker_ = std::thread([this] { other_io_.run(); });
  }
  ~ServiceTest() override {
    if (service_) service_->stop();
    if (link_) link_->stop();
    keep_.reset();
    other_keep_.reset();
    io_.stop();
    other_io_.stop();
    worker_.join();
    other_worker_.join();
    service_.reset();
    link_.reset();
    ledger_.reset();
  }

  // A sandbox that an earlier server left behind.
  std::string left(State state, const std::function<void(store::SandboxRecord&)>& change = {}) {
    auto record = store::example();
    record.state = state;
    record.created = record.last_active = now_millis();
    if (change) change(record);
    EXPECT_TRUE(store_->insert_sandbox(record));
    fake_.add(record.id);
    return record.id;
  }
  Result<void> start(const Settings& settings = {}, std::optional<uint64_t> ledger_before = {}) {
    link_ = LauncherLink::make(io_, [this](bool) { return fake_.connect(); });
    service_ = std::make_shared<Service>(Service::Parts{.next_worker = [this]() -> net::io_context& { return io_; },
                                                        .launcher = link_,
                                                        .store = *store_,
                                                        .ledger = *ledger_,
                                                        .cache_dir = folder_.path(),
                                                        .registries = {},
                                                        .settings = settings,
                                                        .ledger_before = ledger_before});
    return wait(service_->start());
  }
  BoxPtr adopted(const std::string& id) {
    auto box = service_->find("default", id);
    return box ? *box : nullptr;
  }
  template <typename T>
  std::future<T> begin(Task<T> task) {
    return net::co_spawn(io_, std::move(task), net::use_future);
  }
  template <typename T>
  T wait(Task<T> task) {
    return begin(std::move(task)).get();
  }
  // Everything that was begun before has gone as far as it can without an answer that is held back.
  void settle(const BoxPtr& box) {
    for (int i = 0; i < 20; ++i) (void)wait(service_->stats(box));
  }
  store::SandboxRecord stored(const std::string& id) {
    return store_->find_sandbox(id).value_or(store::SandboxRecord());
  }
  std::vector<ledger::Event> events(const std::string& id, ledger::Kind kind) {
    ledger::EventFilter filter{.sandbox = id, .kind_prefix = std::string(to_string(kind))};
    return ledger_->query(filter).value_or(std::vector<ledger::Event>());
  }
  // A create that has nothing to wait for but the gate; of a snapshot, since there are no templates here.
  CreateRequest reaching_out() {
    store::ImageRecord image{.id = "m12345678901234567890", .project = "default", .name = "kept"};
    (void)store_->insert_snapshot(image);
    CreateRequest request{.project = "default"};
    request.snapshot = "kept";
    request.network = "all";
    return request;
  }
  std::vector<State> states() {
    std::vector<State> all;
    auto page = store_->list_sandboxes({.project = "default"}, "", 10);
    if (!page) return all;
    for (const auto& one : page->sandboxes) all.push_back(one.state);
    return all;
  }
  // From now on the store cannot change what it knows of sandboxes, as if its disk were full.
  void fill_disk() { run_sql("CREATE TRIGGER full BEFORE UPDATE ON sandboxes BEGIN SELECT RAISE(ABORT, 'full'); END"); }
  void empty_disk() { run_sql("DROP TRIGGER full"); }
  void run_sql(const std::string& sql) {
    auto db = sqlite::Database::open(folder_ / "store.db", store::kStoreSchema, sqlite::Sync::normal);
    ASSERT_TRUE(db);
    auto done = db->run(sql);
    ASSERT_TRUE(done) << done.error().message;
  }
  void on_ledger(const std::string& sql) {
    auto db = sqlite::Database::open(folder_ / "ledger.db", ledger::kLedgerSchema, sqlite::Sync::normal);
    ASSERT_TRUE(db);
    ASSERT_TRUE(db->run(sql));
  }

  store::TempFolder folder_;
  std::unique_ptr<store::SqliteStore> store_;
  std::unique_ptr<ledger::Ledger> ledger_;
  FakeLauncher fake_;
  net::io_context io_, other_io_;
  net::executor_work_guard<net::io_context::executor_type> keep_, other_keep_;
  std::thread worker_, other_worker_;
  std::shared_ptr<LauncherLink> link_;
  std::shared_ptr<Service> service_;
};

}  // namespace isola::sandbox
