// A launch whose answer got lost leaves a sandbox that only the launcher knows. A launcher made of a thread plays it.
#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <condition_variable>
#include <set>
#include <thread>

#include "base/codec.h"
#include "kernel/process.h"
#include "sandbox/service.h"
#include "store/test_store.h"

namespace isola::sandbox {
namespace {

namespace net = boost::asio;
using launcher::Op;

class FakeLauncher {
 public:
  FakeLauncher() {
    auto ends = kernel::socket_pair();
    if (!ends) std::abort();
    near_ = std::move(ends->first);
    far_ = std::move(ends->second);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeLauncher() {
    ::shutdown(near_.get(), SHUT_RDWR);
    thread_.join();
  }
  Result<Fd> connect() { return std::move(far_); }

  void add(const std::string& id, bool ephemeral = false, bool parked = false) {
    std::lock_guard lock(mutex_);
    launcher::SandboxSummary one{.id = id};
    one.ephemeral = ephemeral;
    one.parked = parked;
    there_[id] = one;
  }
  // Waits until that many looks were taken after now.
  void wait_for_lists(int more) {
    std::unique_lock lock(mutex_);
    int until = lists_ + more;
    changed_.wait(lock, [&] { return lists_ >= until; });
  }
  std::set<std::string> left() {
    std::lock_guard lock(mutex_);
    std::set<std::string> ids;
    for (const auto& [id, summary] : there_) ids.insert(id);
    return ids;
  }

 private:
  void serve() {
    for (;;) {
      auto message = kernel::receive_message(near_.get());
      if (!message || message->bytes.empty()) return;
      Reader in(message->bytes);
      uint32_t tag = in.u32();
      auto op = static_cast<Op>(in.u8());
      if (op == Op::gate_events) continue;
      Writer out;
      out.u32(tag);
      std::lock_guard lock(mutex_);
      if (op == Op::list) {
        out.u8(0);
        out.u32(static_cast<uint32_t>(there_.size()));
        for (const auto& [id, summary] : there_) encode(out, summary);
        out.u8(0);
        ++lists_;
        changed_.notify_all();
      } else if (op == Op::kill) {
        std::string id = in.str();
        there_.erase(id);
        out.u8(0);
        launcher::Ended ended;
        ended.id = id;
        encode(out, ended);
      } else {
        out.u8(1);
        launcher::encode(out, Error{Code::not_found, "the fake launcher cannot do that"});
      }
      if (!kernel::send_message(near_.get(), out.data())) return;
    }
  }

  Fd near_, far_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, launcher::SandboxSummary> there_;
  int lists_ = 0;
  std::thread thread_;
};

TEST(Sweep, EndsWhatNobodyKnowsAndNothingElse) {
  store::TempFolder folder;
  auto store = store::SqliteStore::open(folder / "store.db");
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
    auto link = LauncherLink::start(io, [&] { return fake.connect(); });
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
