// Limits on the machine that runs the tests, for real: whichever version it has.
#include "kernel/cgroup.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include "base/fd.h"
#include "base/file.h"
#include "kernel/fault.h"
#include "kernel/process.h"

namespace isola::kernel {
namespace {

// A forked child that waits for a byte before it does its work; killed and reaped at the end whatever happens.
class Sleeper {
 public:
  template <typename F>
  explicit Sleeper(F work) {
    int go[2];
    if (::pipe2(go, O_CLOEXEC) < 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(go[1]);
      char c;
      if (::read(go[0], &c, 1) != 1) ::_exit(99);
      ::_exit(work());
    }
    ::close(go[0]);
    go_ = Fd(go[1]);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  ~Sleeper() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), wait();
  }
  pid_t pid() const { return pid_; }
  void go() const { ASSERT_EQ(::write(go_.get(), "g", 1), 1); }
  int wait() {
    int status = -1;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_;
  Fd go_;
};

uint64_t kernel_memory_groups() {
  std::ifstream in("/proc/cgroups");
  std::string line, name;
  for (uint64_t hierarchy, count; std::getline(in, line);)
    if (std::istringstream s(line); s >> name >> hierarchy >> count && name == "memory") return count;
  return 0;
}

class RealCgroup : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    // A parent of our own: other copies of this test, and a running Isola, have theirs.
    parent_ = "isola-test-" + std::to_string(::getpid());
    auto tree = CgroupTree::detect({.parent = parent_});
    ASSERT_TRUE(tree) << tree.error().text();
    if (!tree->missing().empty()) GTEST_SKIP() << "no cgroup controller " << tree->missing().front();
    if (auto ready = tree->prepare(); !ready) GTEST_SKIP() << ready.error().text();
    tree_.emplace(*tree);
  }
  void TearDown() override {
    fault::disarm();
    if (!tree_) return;
    EXPECT_TRUE(tree_->list().empty()) << "left behind: " << tree_->list().front();
    auto folders = tree_->layout().folders();
    if (!tree_->layout().io.empty()) folders.push_back(tree_->layout().io);
    for (const auto& folder : folders) ::rmdir(folder.c_str());
  }
  std::string parent_;
  std::optional<CgroupTree> tree_;
};

TEST_F(RealCgroup, LimitsReadBackAsSet) {
  CgroupLimits limits{.cpus = 0.5, .memory = 64 << 20, .pids = 20};
  auto group = tree_->create("a", limits);
  ASSERT_TRUE(group) << group.error().text();
  EXPECT_EQ(group->limits().value(), limits);
  CgroupLimits more{.cpus = 2, .memory = 128 << 20, .pids = 40};
  ASSERT_TRUE(group->set(more));
  EXPECT_EQ(group->limits().value(), more);
  ASSERT_TRUE(group->set(limits));
  ASSERT_TRUE(group->set({}));
  EXPECT_EQ(group->limits().value(), CgroupLimits{});
}

TEST_F(RealCgroup, MemoryBombIsKilledAndCounted) {
  auto group = tree_->create("a", {.memory = 16 << 20});
  ASSERT_TRUE(group);
  Sleeper bomb([] {
    constexpr size_t kSize = 64 << 20;
    void* p = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(p, 1, kSize);
    return 0;
  });
  ASSERT_TRUE(group->attach(bomb.pid()));
  bomb.go();
  int status = bomb.wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  auto stats = group->stats();
  ASSERT_TRUE(stats) << stats.error().text();
  EXPECT_EQ(stats->oom_kills, 1U);
  EXPECT_GE(stats->memory_peak_bytes, 15U << 20);
}

TEST_F(RealCgroup, ForksStopAtThePidsLimit) {
  auto group = tree_->create("a", {.pids = 3});
  ASSERT_TRUE(group);
  Sleeper bomb([] {
    for (int n = 0; n < 10; ++n) {
      pid_t pid = ::fork();
      if (pid < 0) return errno == EAGAIN ? n : 98;
      if (pid == 0) {
        for (;;) ::pause();
      }
    }
    return 97;
  });
  ASSERT_TRUE(group->attach(bomb.pid()));
  bomb.go();
  int status = bomb.wait();
  EXPECT_EQ(WEXITSTATUS(status), 2);  // itself and two more
  EXPECT_EQ(group->stats()->processes, 2U);
  EXPECT_EQ(group->processes()->size(), 2U);
  EXPECT_EQ(group->set({.pids = 1}).error().code, Code::exhausted);
  EXPECT_TRUE(group->kill_all());
  EXPECT_TRUE(group->processes()->empty());
}

TEST_F(RealCgroup, CpuQuotaThrottles) {
  auto group = tree_->create("a", {.cpus = 0.05});
  ASSERT_TRUE(group);
  Sleeper spinner([] {
    for (;;) asm volatile("");
    return 0;
  });
  ASSERT_TRUE(group->attach(spinner.pid()));
  spinner.go();
  // Ends when the kernel has throttled it (after 5 ms of cpu time), however long that takes on a busy machine.
  while (group->stats()->cpu_throttled == 0) ::sched_yield();
  EXPECT_GT(group->stats()->cpu_usec, 0U);
}

TEST_F(RealCgroup, FrozenProcessesDoNotRunUntilThawed) {
  auto group = tree_->create("a", {.pids = 10});
  ASSERT_TRUE(group);
  auto* counter =
      static_cast<volatile uint64_t*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  Sleeper spinner([counter] {
    for (;;) *counter = *counter + 1;
    return 0;
  });
  ASSERT_TRUE(group->attach(spinner.pid()));
  spinner.go();
  while (*counter == 0) ::sched_yield();
  auto frozen = group->freeze();
  ASSERT_TRUE(frozen) << frozen.error().text();
  uint64_t then = *counter;
  timespec pause{0, 20'000'000};
  ::nanosleep(&pause, nullptr);  // gives it the chance to run if freezing did not work
  EXPECT_EQ(*counter, then);
  ASSERT_TRUE(group->thaw());
  while (*counter == then) ::sched_yield();
  ASSERT_TRUE(group->freeze());
  EXPECT_TRUE(group->kill_all()) << "a frozen group can be killed";
  ::munmap(const_cast<uint64_t*>(counter), 4096);
}

TEST_F(RealCgroup, KillsAForkBomb) {
  auto group = tree_->create("a", {.pids = 64});
  ASSERT_TRUE(group);
  Sleeper bomb([] {
    ::signal(SIGCHLD, SIG_IGN);
    for (;;) ::fork();
    return 0;
  });
  ASSERT_TRUE(group->attach(bomb.pid()));
  bomb.go();
  while (group->stats()->processes < 64) ::sched_yield();
  auto killed = group->kill_all(std::chrono::seconds(30));
  EXPECT_TRUE(killed) << killed.error().text();
  EXPECT_TRUE(group->processes()->empty());
  EXPECT_EQ(group->limits()->pids, 64U);
}

TEST_F(RealCgroup, WhatStandsStillDiesWithoutRunningAgain) {
  if (tree_->layout().freezer.empty()) GTEST_SKIP() << "this machine has no freezer controller";
  constexpr size_t kCount = 8;
  auto* counters = static_cast<std::atomic<uint64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(counters, MAP_FAILED);
  auto group = tree_->create("a", {});
  ASSERT_TRUE(group);
  std::vector<std::unique_ptr<Sleeper>> all;
  for (size_t i = 0; i < kCount; ++i) {
    all.push_back(std::make_unique<Sleeper>([counters, i] {
      for (;;) ++counters[i];
      return 0;
    }));
    ASSERT_TRUE(group->attach(all.back()->pid()));
    all.back()->go();
  }
  for (size_t i = 0; i < kCount; ++i)
    while (counters[i] == 0) ::sched_yield();
  ASSERT_TRUE(group->freeze());
  std::vector<uint64_t> before(counters, counters + kCount);
  auto killed = group->kill_frozen();
  EXPECT_TRUE(killed) << killed.error().text();
  for (size_t i = 0; i < kCount; ++i) {
    int status = all[i]->wait();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    EXPECT_EQ(counters[i], before[i]) << i;
  }
  ::munmap(counters, 4096);
}

// Whether a bomb outruns the killer is a matter of luck; that nobody inside can fork while the killer is at work is
// not.
TEST_F(RealCgroup, NobodyForksWhileAllAreKilled) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without fault injection";
  auto group = tree_->create("a", {.pids = 64});
  ASSERT_TRUE(group);
  auto waits = [] {
    for (;;) ::pause();
    return 0;
  };
  Sleeper victim(waits);
  ASSERT_TRUE(group->attach(victim.pid()));
  victim.go();
  // The first thing that is written forbids it: without that, nobody is killed.
  ASSERT_TRUE(fault::arm("cgroup_write:1:" + std::to_string(EIO)));
  EXPECT_FALSE(group->kill_all());
  fault::disarm();
  EXPECT_EQ(group->processes()->size(), 1U);
  EXPECT_EQ(group->limits()->pids, 64U);
  // The last thing gives it back: without that, it is still forbidden when all are dead.
  bool v1 = tree_->version() == CgroupVersion::v1;  // which also thaws
  ASSERT_TRUE(fault::arm("cgroup_write:" + std::to_string(v1 ? 3 : 2) + ":" + std::to_string(EIO)));
  EXPECT_FALSE(group->kill_all());
  fault::disarm();
  EXPECT_TRUE(group->processes()->empty());
  EXPECT_EQ(read_file(tree_->layout().pids + "/a/pids.max").value(), "0\n");
}

TEST_F(RealCgroup, AdoptTakesOverWhatWasReleased) {
  Sleeper child([] { return 0; });
  {
    auto group = tree_->create("a", {.memory = 32 << 20});
    ASSERT_TRUE(group);
    ASSERT_TRUE(group->attach(child.pid()));
    group->release();
  }
  EXPECT_EQ(tree_->list(), std::vector<std::string>{"a"});
  EXPECT_EQ(tree_->create("a", {}).error().code, Code::exists);
  EXPECT_EQ(tree_->list(), std::vector<std::string>{"a"}) << "a failed create must not touch what was there";
  auto group = tree_->adopt("a");
  ASSERT_TRUE(group);
  EXPECT_EQ(group->processes().value(), std::vector<pid_t>{child.pid()});
  EXPECT_EQ(group->limits()->memory, 32U << 20);
  EXPECT_FALSE(group->destroy()) << "somebody lives in it";
  EXPECT_EQ(tree_->adopt("b").error().code, Code::not_found);
  group->release();
  EXPECT_TRUE(tree_->remove("a"));
  EXPECT_TRUE(tree_->remove("a")) << "removing nothing is fine";
}

TEST_F(RealCgroup, MemoryLimitBelowUseIsRefused) {
  auto group = tree_->create("a", {.memory = 64 << 20});
  ASSERT_TRUE(group);
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  Sleeper holder([&] {
    constexpr size_t kSize = 32 << 20;
    void* p = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(p, 1, kSize);
    ::mlock(p, kSize);
    if (::write(ready[1], "r", 1) != 1) return 1;
    for (;;) ::pause();
    return 0;
  });
  ASSERT_TRUE(group->attach(holder.pid()));
  holder.go();
  char c;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  auto set = group->set({.memory = 8 << 20});
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, Code::exhausted) << set.error().text();
  EXPECT_EQ(group->stats()->oom_kills, 0U);
  ::close(ready[0]), ::close(ready[1]);
}

TEST_F(RealCgroup, BadLimitsAndNamesAreRefused) {
  for (auto limits : {CgroupLimits{.cpus = -1}, CgroupLimits{.cpus = 0.001}, CgroupLimits{.cpus = NAN},
                      CgroupLimits{.memory = 4096}, CgroupLimits{.memory = ~0ULL}})
    EXPECT_EQ(tree_->create("a", limits).error().code, Code::invalid);
  for (const char* name : {"..", "a/b", ""}) EXPECT_EQ(tree_->create(name, {}).error().code, Code::invalid);
}

TEST_F(RealCgroup, IoLimitsAreSetWhereTheyCanBe) {
  if (!tree_->layout().can_limit_io()) GTEST_SKIP() << tree_->io_note();
  auto group = tree_->create("a", {.pids = 10});
  ASSERT_TRUE(group);
  Sleeper child([] { return 0; });
  ASSERT_TRUE(group->attach(child.pid()));
  CgroupLimits limits{.pids = 10, .io_bytes_per_second = 1 << 20, .io_operations_per_second = 100};
  auto set = group->set(limits);
  ASSERT_TRUE(set) << set.error().text();
  EXPECT_EQ(group->limits().value(), limits);
  auto inside = read_file(tree_->layout().io + "/a/cgroup.procs");
  EXPECT_EQ(inside.value(), std::to_string(child.pid()) + "\n") << "who was inside before is limited too";
  ASSERT_TRUE(group->set({.pids = 10}));
  EXPECT_EQ(group->limits()->io_bytes_per_second, 0U);
}

TEST_F(RealCgroup, DestroyLeavesNoDyingMemoryGroups) {
  constexpr int kGroups = 20;
  auto file_of = [](int i) {
    return "/var/tmp/isola-cgroup-test-" + std::to_string(::getpid()) + "-" + std::to_string(i);
  };
  // The kernel counts the groups of the whole machine, and others make some, too: what a destroy leaves behind it
  // leaves every time.
  int64_t least = kGroups;
  for (int round = 0; round < 5 && least > kGroups / 4; ++round) {
    auto before = static_cast<int64_t>(kernel_memory_groups());
    for (int i = 0; i < kGroups; ++i) {
      auto group = tree_->create("g" + std::to_string(i), {.memory = 64 << 20});
      ASSERT_TRUE(group);
      // Page cache of a file stays charged after its process is gone; that is what keeps groups dying.
      std::string path = file_of(i);
      Sleeper writer([&] {
        Fd fd(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
        std::string block(1 << 20, 'x');
        if (!write_all(fd.get(), block)) return 1;
        return ::fsync(fd.get()) == 0 ? 0 : 1;
      });
      ASSERT_TRUE(group->attach(writer.pid()));
      writer.go();
      EXPECT_EQ(writer.wait(), 0);
      EXPECT_GT(group->stats()->memory_bytes, 1U << 19);
      auto gone = group->destroy();
      EXPECT_TRUE(gone) << gone.error().text();
    }
    // Counted while the files and their cached pages are still there: those are what would keep a removed group dying.
    least = std::min(least, static_cast<int64_t>(kernel_memory_groups()) - before);
    for (int i = 0; i < kGroups; ++i) ::unlink(file_of(i).c_str());
  }
  EXPECT_LE(least, kGroups / 4);
}

TEST_F(RealCgroup, AfterAnyFailingStepOfACreateNothingIsLeft) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "built without fault injection";
  CgroupLimits limits{.cpus = 1, .memory = 64 << 20, .pids = 10};
  int failures = 0;
  for (int nth = 1;; ++nth) {
    ASSERT_TRUE(fault::arm("*:" + std::to_string(nth) + ":12"));
    auto group = tree_->create("a", limits);
    fault::disarm();
    if (group) break;
    ++failures;
    EXPECT_EQ(group.error().sys_errno, ENOMEM);
    EXPECT_TRUE(tree_->list().empty()) << "step " << nth;
  }
  EXPECT_GE(failures, 4);
}

// What v2 does without any controller, where a machine has it at all, if only beside v1: the group is real, but for its
// limit of processes, which is a file of ours.
class RealV2 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    std::string mount;
    for (const char* place : {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"}) {
      struct statfs type{};
      if (::statfs(place, &type) == 0 && type.f_type == CGROUP2_SUPER_MAGIC) mount = mount.empty() ? place : mount;
    }
    if (mount.empty()) GTEST_SKIP() << "no version 2 of control groups here";
    const std::string parent = mount + "/isola-test-v2-" + std::to_string(::getpid());
    if (::mkdir(parent.c_str(), 0755) < 0) GTEST_SKIP() << "version 2 of control groups is not writable here";
    parent_ = parent;
    folder_ = parent_ + "/x";
    ASSERT_EQ(::mkdir(folder_.c_str(), 0755), 0);
    char pattern[] = "/tmp/isola-v2-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    files_ = pattern;
    ASSERT_EQ(::mkdir((files_ + "/x").c_str(), 0755), 0);
    std::ofstream(files_ + "/x/pids.max") << "64";
    CgroupLayout layout{.version = CgroupVersion::v2, .pids = files_, .freezer = parent_};
    group_.emplace(CgroupTree(layout).known("x", false));
  }
  void TearDown() override {
    if (group_) group_->release();
    if (!parent_.empty()) {
      EXPECT_EQ(::rmdir(folder_.c_str()), 0) << "somebody is left in it";
      ::rmdir(parent_.c_str());
    }
    ::unlink((files_ + "/x/pids.max").c_str());
    ::rmdir((files_ + "/x").c_str());
    ::rmdir(files_.c_str());
  }
  // Born into the group, counting.
  Result<Child> counting(volatile uint64_t* counter) {
    ISOLA_TRY(auto doors, group_->doors());
    return spawn(
        0,
        [counter] {
          for (;;) *counter = *counter + 1;
          return 0;
        },
        doors.folder.get());
  }
  std::string parent_, folder_, files_;
  std::optional<Cgroup> group_;
};

TEST_F(RealV2, BornInsideFrozenThawedAndKilledFrozen) {
  auto* counter =
      static_cast<volatile uint64_t*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  auto child = counting(counter);
  ASSERT_TRUE(child) << child.error().text();
  EXPECT_EQ(group_->processes().value(), std::vector<pid_t>{child->pid}) << "it never was anywhere else";
  while (*counter == 0) ::sched_yield();

  auto events = group_->freeze_events();
  ASSERT_TRUE(events && events->valid());
  ASSERT_TRUE(group_->begin_freeze());
  while (!group_->frozen().value()) {
    pollfd change{events->get(), POLLPRI, 0};
    ASSERT_EQ(::poll(&change, 1, 20000), 1) << "nobody is told";
    char text[256];
    ASSERT_GT(::pread(events->get(), text, sizeof text, 0), 0);
  }
  const uint64_t then = *counter;
  timespec pause{0, 20'000'000};
  ::nanosleep(&pause, nullptr);  // gives it the chance to run if freezing did not work
  EXPECT_EQ(*counter, then);
  ASSERT_TRUE(group_->thaw());
  while (*counter == then) ::sched_yield();

  auto frozen = group_->freeze();
  ASSERT_TRUE(frozen) << frozen.error().text();
  auto killed = group_->kill_all();
  EXPECT_TRUE(killed) << killed.error().text();
  int status = 0;
  EXPECT_EQ(::waitpid(child->pid, &status, 0), child->pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(read_file(files_ + "/x/pids.max").value(), "64") << "the limit of processes is what it was";
  ::munmap(const_cast<uint64_t*>(counter), 4096);
}

}  // namespace
}  // namespace isola::kernel
