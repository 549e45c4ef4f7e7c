// A launch whose answer got lost leaves a sandbox that only the launcher knows.
#include "sandbox/fake_launcher.h"

namespace isola::sandbox {
namespace {

TEST(Sweep, EndsWhatNobodyKnowsAndNothingElse) {
  store::TempFolder folder;
  auto store = store::SqliteStore::open(folder / "store.db");
  EXPECT_TRUE(ledger::provide_key(folder / "ledger.db", folder / "ledger.key", ::getuid(), ::getgid()));
  auto ledger = ledger::Ledger::open(folder / "ledger.db");
  ASSERT_TRUE(store && ledger);
  ASSERT_TRUE((*store)->insert_project({.id = "default", .name = "default", .created = 1}));

  net::io_context io;
  auto keep = net::make_work_guard(io);
  std::thread worker([&] { io.run(); });
  FakeLauncher fake;
  fake.add("iparked", false, true);
  fake.add("iephemeral", true);
  {
    auto link = LauncherLink::make(io, [&](bool) { return fake.connect(); });
    auto service = std::make_shared<Service>(Service::Parts{.next_worker = [&]() -> net::io_context& { return io; },
                                                            .launcher = link,
                                                            .store = **store,
                                                            .ledger = **ledger,
                                                            .cache_dir = folder.path(),
                                                            .registries = {},
                                                            .settings = {.sweep = std::chrono::milliseconds(10)}});
    // The link connects on the worker: asked too early, it says that there is no launcher yet.
    Result<void> started;
    for (int i = 0; i < 1000; ++i) {
      started = net::co_spawn(io, service->start(), net::use_future).get();
      if (started || started.error().code != Code::unavailable) break;
      std::this_thread::yield();
    }
    ASSERT_TRUE(started) << started.error().message;
    fake.add("istranger");
    fake.wait_for_lists(4);
    EXPECT_EQ(fake.left(), (std::set<std::string>{"iparked", "iephemeral"}));
    service->stop();
    link->stop();
  }
  keep.reset();
  io.stop();
  worker.join();
}

}  // namespace
}  // namespace isola::sandbox
