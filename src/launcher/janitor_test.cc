#include "launcher/janitor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "kernel/fault.h"

namespace isola::launcher {
namespace {

// Layers are folders; destroying one that has a file "busy" waits until the file is gone.
class FakeStore : public image::LayerStore {
 public:
  explicit FakeStore(std::string folder) : folder_(std::move(folder)) {}
  std::string_view name() const override { return "fake"; }
  bool enforces() const override { return true; }
  const std::string& place() const override { return folder_; }
  bool slow_destroy() const override { return true; }
  Result<std::string> create(const std::string& id, const image::LayerLimits&,
                             const std::vector<std::string>& = {}) override {
    ISOLA_CHECK(make_dirs(folder_ + "/" + id));
    return folder_ + "/" + id;
  }
  Result<std::string> path(const std::string& id) override { return folder_ + "/" + id; }
  Result<void> resize(const std::string&, const image::LayerLimits&) override { return {}; }
  Result<uint64_t> limit(const std::string&) override { return 0; }
  Result<image::LayerUsage> usage(const std::string&) override { return image::LayerUsage{}; }
  Result<void> destroy(const std::string& id) override {
    while (std::filesystem::exists(folder_ + "/" + id + "/busy")) ::usleep(1000);
    std::filesystem::remove_all(folder_ + "/" + id);
    return {};
  }
  Result<std::vector<std::string>> list() override { return std::vector<std::string>{}; }
  Result<void> copy(const std::string&, const std::string&) override { return {}; }
  image::Sharing sharing() const override { return image::Sharing::copies; }

 private:
  std::string folder_;
};

class JanitorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-janitor-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
    store_ = std::make_unique<FakeStore>(folder_);
    auto tree = kernel::CgroupTree::detect({.parent = "isola-janitor-" + std::to_string(::getpid())});
    ASSERT_TRUE(tree);
    tree_ = std::make_unique<kernel::CgroupTree>(*tree);
    janitor_ = std::make_unique<Janitor>(*tree_, *store_);
    ASSERT_TRUE(janitor_->start());
  }
  void TearDown() override {
    janitor_.reset();
    std::filesystem::remove_all(folder_);
    for (const auto& folder : tree_->layout().folders()) ::rmdir(folder.c_str());
    ::rmdir(tree_->layout().io.c_str());
  }

  std::string id(int n) {
    std::string digits = std::to_string(n);
    return "i" + std::string(20 - digits.size(), 'a') + digits;
  }
  // Until everything is done, each job told exactly once.
  void drain(std::set<std::string> expected) {
    while (!expected.empty()) {
      pollfd ready{janitor_->fd(), POLLIN, 0};
      ASSERT_EQ(::poll(&ready, 1, 30000), 1) << expected.size() << " jobs are never finished";
      auto collected = janitor_->collect(
          [&](const Janitor::Job& job, bool) { EXPECT_EQ(expected.erase(Janitor::sandbox_of(job)), 1u) << job; });
      if (!collected) {  // it died
        ASSERT_EQ(collected.error().code, Code::unavailable) << collected.error().message;
        ASSERT_TRUE(janitor_->start());
      }
    }
    EXPECT_EQ(janitor_->pending(), 0u);
  }

  std::string folder_;
  std::unique_ptr<FakeStore> store_;
  std::unique_ptr<kernel::CgroupTree> tree_;
  std::unique_ptr<Janitor> janitor_;
};

TEST_F(JanitorTest, RemovesGroupAndLayer) {
  ASSERT_TRUE(store_->create(id(1), {}));
  auto group = tree_->create(id(1), {.memory = 64 << 20});
  ASSERT_TRUE(group) << group.error().message;
  group->release();
  ASSERT_TRUE(janitor_->clear(id(1)));
  ASSERT_TRUE(janitor_->clear(id(2)));  // never existed
  drain({id(1), id(2)});
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/" + id(1)));
  EXPECT_TRUE(tree_->list().empty());
}

TEST_F(JanitorTest, ManyJobsAtOnceDoNotDeadlock) {
  std::set<std::string> all;
  for (int i = 0; i < 3000; ++i) {
    ASSERT_TRUE(janitor_->clear(id(i)));
    all.insert(id(i));
  }
  EXPECT_EQ(janitor_->pending(), 3000u);
  drain(all);
}

TEST_F(JanitorTest, TheSameJobTwiceIsOneJob) {
  ASSERT_TRUE(janitor_->clear(id(1)));
  ASSERT_TRUE(janitor_->clear(id(1)));
  EXPECT_EQ(janitor_->pending(), 1u);
  drain({id(1)});
}

// What takes long holds up nobody else: all but a few are done while it is still at work.
TEST_F(JanitorTest, OneThatTakesLongHoldsUpNobody) {
  ASSERT_TRUE(store_->create(id(1000), {}));
  ASSERT_TRUE(Fd(::open((folder_ + "/" + id(1000) + "/busy").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)));
  ASSERT_TRUE(janitor_->clear(id(1000)));
  std::set<std::string> others;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(janitor_->clear(id(i)));
    others.insert(id(i));
  }
  // One more may have been given to the same hand.
  for (size_t finished = 0; finished < others.size() - 1;) {
    pollfd ready{janitor_->fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 30000), 1) << finished << " of " << others.size();
    ASSERT_TRUE(janitor_->collect([&](const Janitor::Job&, bool) { ++finished; }));
  }
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/" + id(1000)));
  ASSERT_EQ(::unlink((folder_ + "/" + id(1000) + "/busy").c_str()), 0);
  while (janitor_->pending()) {
    pollfd ready{janitor_->fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 30000), 1);
    ASSERT_TRUE(janitor_->collect([](const Janitor::Job&, bool) {}));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/" + id(1000)));
}

TEST_F(JanitorTest, TheDeadAreReplacedAndTheirJobsRepeated) {
  for (int round = 0; round < 5; ++round) {
    auto first = janitor_->pids();
    ASSERT_EQ(first.size(), 3u);
    for (pid_t pid : first) ::kill(pid, SIGSTOP);  // so that nothing is done yet
    std::set<std::string> all;
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(store_->create(id(i), {}));
      ASSERT_TRUE(janitor_->clear(id(i)));
      all.insert(id(i));
    }
    // In turn all of them, and one alone.
    for (pid_t pid : first) ::kill(pid, round % 2 == 0 || pid == first[0] ? SIGKILL : SIGCONT);
    drain(all);
    ASSERT_TRUE(janitor_->start());
    EXPECT_EQ(std::ranges::count(janitor_->pids(), first[0]), 0);
    for (const auto& one : all) EXPECT_FALSE(std::filesystem::exists(folder_ + "/" + one));
  }
}

TEST_F(JanitorTest, DyingWithoutJobsIsNoticed) {
  auto first = janitor_->pids();
  ::kill(first[0], SIGKILL);
  pollfd ready{janitor_->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 30000), 1);
  auto collected = janitor_->collect([](const std::string&, bool) { ADD_FAILURE(); });
  ASSERT_FALSE(collected);
  EXPECT_EQ(collected.error().code, Code::unavailable);
  EXPECT_EQ(janitor_->pids().size(), 2u);
  ASSERT_TRUE(janitor_->start());
  EXPECT_EQ(janitor_->pids().size(), 3u);
  ASSERT_TRUE(janitor_->clear(id(1)));
  drain({id(1)});
}

TEST_F(JanitorTest, OneThatCannotBeConfinedIsAnError) {
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  Janitor other(*tree_, *store_);
  ASSERT_TRUE(kernel::fault::arm("capbset_drop:1:12"));
  auto started = other.start();
  kernel::fault::disarm();
  ASSERT_FALSE(started);
  EXPECT_NE(started.error().message.find("capabilities"), std::string::npos) << started.error().message;
}

// Confined: only what its work needs.
TEST_F(JanitorTest, HoldsNothingElse) {
  Fd secret(::open("/etc/passwd", O_RDONLY));  // not even close-on-exec
  janitor_ = std::make_unique<Janitor>(*tree_, *store_);
  ASSERT_TRUE(janitor_->start());
  ASSERT_TRUE(janitor_->clear(id(1)));
  drain({id(1)});
  std::string proc = "/proc/" + std::to_string(janitor_->pids().front());
  for (const auto& fd : std::filesystem::directory_iterator(proc + "/fd"))
    EXPECT_NE(std::filesystem::read_symlink(fd.path()), "/etc/passwd");
  auto status = read_file(proc + "/status");
  ASSERT_TRUE(status);
  EXPECT_NE(status->find("NoNewPrivs:\t1"), std::string::npos);
  EXPECT_EQ(status->find("CapEff:\t000001ff"), std::string::npos) << "all capabilities";
}

// One that takes long reads nothing meanwhile: what is dropped must not fill its line, behind which the next job waits.
TEST_F(JanitorTest, DropsDoNotFillTheLineOfOneThatIsBusy) {
  std::set<std::string> all;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(store_->create(id(i), {}));
    ASSERT_TRUE(write_all(Fd(::open((folder_ + "/" + id(i) + "/busy").c_str(), O_CREAT | O_WRONLY, 0600)).get(), "x"));
    ASSERT_TRUE(janitor_->clear(id(i)));
    all.insert(id(i));
    for (int n = 0; n < 2000; ++n) {
      std::vector<Fd> fds;
      fds.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      janitor_->drop(std::move(fds));
    }
  }
  for (int i = 0; i < 8; ++i) std::filesystem::remove(folder_ + "/" + id(i) + "/busy");
  drain(all);
}

}  // namespace
}  // namespace isola::launcher
