#include "launcher/file_locks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/ids.h"
#include "kernel/helper.h"
#include "kernel/process.h"

namespace isola::launcher {
namespace {

TEST(FileLocks, ALineNamesTheFilesystem) {
  EXPECT_EQ(lock_device("1: FLOCK  ADVISORY  WRITE 9758 fe:00:9979726 0 EOF"), "254:0");
  EXPECT_EQ(lock_device("12: POSIX  ADVISORY  READ  4711 00:2d:17 128 128"), "0:45");
  EXPECT_EQ(lock_device("12:  -> POSIX  ADVISORY  WRITE 4712 00:2d:17 128 128"), "0:45");
  EXPECT_EQ(lock_device("3: OFDLCK ADVISORY  WRITE -1 00:01:1034 0 0"), "0:1");
  EXPECT_EQ(lock_device("4: LEASE  ACTIVE    READ  9 fe:00:12 0 EOF"), "254:0");
  for (const char* line :
       {"", "1:", "nonsense", "1: POSIX  *NOINODE* WRITE 9 <none>:0 0 EOF", "1: FLOCK  ADVISORY  WRITE 9758",
        "1: FLOCK  ADVISORY  WRITE 9758 fe 0 EOF", "1: FLOCK  ADVISORY  WRITE 9758 fe:zz:1 0 EOF",
        "1: FLOCK  ADVISORY  WRITE 9758 fe:00 0 EOF"})
    EXPECT_EQ(lock_device(line), "") << line;
}

TEST(FileLocks, ThePlacesOfAMountinfo) {
  EXPECT_EQ(devices_in("22 1 0:21 / / rw - overlay isola rw\n23 22 254:1 /a /b rw - ext4 /dev/x rw\n"),
            (std::vector<std::string>{"0:21", "254:1"}));
  EXPECT_TRUE(devices_in("").empty());
  EXPECT_TRUE(devices_in("x\ny z\n").empty());
}

TEST(FileLocks, ThoseOfADescriptor) {
  EXPECT_EQ(lock_of_descriptor("lock:\t1: OFDLCK ADVISORY  WRITE -1 00:01:7 0 0"),
            "OFDLCK ADVISORY  WRITE -1 00:01:7 0 0");
  for (const char* line : {"", "pos:\t0", "flags:\t02", "lock:", "lock:\t", "lock:\t1", "inotify wd:1 ino: 2"})
    EXPECT_EQ(lock_of_descriptor(line), "") << line;
}

TEST(FileLocks, TheKernelSaysHowMany) {
  if (::access("/sys/kernel/slab/file_lock_cache", F_OK) < 0) GTEST_SKIP() << "this kernel does not say";
  EXPECT_GT(lock_objects().value_or(0), 0u);
}

// A process in a group of its own, with a filesystem of its own, that holds locks until it is let go.
class LocksOfAGroup : public ::testing::Test {
 protected:
  static constexpr int kTaken = 50;
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    auto tree = kernel::CgroupTree::detect({});
    ASSERT_TRUE(tree);
    if (!tree->missing().empty() || !tree->prepare()) GTEST_SKIP() << "no cgroups here";
    tree_.emplace(*tree);
  }
  static bool lock_all(int fd, int command) {
    for (int i = 0; i < kTaken; ++i) {
      struct flock range{.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * i, .l_len = 1, .l_pid = 0};
      if (::fcntl(fd, command, &range) < 0) return false;
    }
    return true;
  }
  static int own_file() {
    if (::unshare(CLONE_NEWNS) < 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0 ||
        ::mount("locks", "/tmp", "tmpfs", 0, nullptr) < 0)
      return -1;
    return ::open("/tmp/file", O_RDWR | O_CREAT, 0600);
  }
  // What is found with this share while somebody holds kTaken of them.
  LockHoarder found(const std::function<int()>& open, int command, uint64_t share) {
    const std::string id = new_sandbox_id();
    auto group = tree_->create(id, {.memory = 64 << 20, .pids = 16});
    auto ready = kernel::make_pipe(), hold = kernel::make_pipe();
    EXPECT_TRUE(group && ready && hold);
    auto child = kernel::spawn(0, [&] {
      // Whoever started the test may hold some, too.
      if (!kernel::close_all_but({hold->first.get(), ready->second.get()}) || !group->attach(0)) return 1;
      int fd = open();
      if (fd < 0 || !lock_all(fd, command) || ::write(ready->second.get(), "x", 1) != 1) return 1;
      char c;
      return ::read(hold->first.get(), &c, 1) == 0 ? 0 : 1;
    });
    EXPECT_TRUE(child);
    ready->second.reset();
    char c;
    EXPECT_EQ(::read(ready->first.get(), &c, 1), 1) << "it took no locks";
    auto result = find_lock_hoarder({{id, child->pid}, {"another", ::getpid()}}, *tree_, share);
    hold->second.reset();
    ::waitpid(child->pid, nullptr, 0);
    EXPECT_TRUE(result) << result.error().message;
    if (!result || result->id.empty()) return {};
    EXPECT_EQ(result->id, id);
    EXPECT_LE(result->locks, share + 1) << "it stops there";
    return {"it", result->locks};
  }
  std::optional<kernel::CgroupTree> tree_;
};

TEST_F(LocksOfAGroup, OnAFilesystemOfItsOwn) {
  for (int command : {F_SETLK, F_OFD_SETLK}) {
    EXPECT_EQ(found(own_file, command, kTaken - 1).id, "it") << command;
    EXPECT_EQ(found(own_file, command, kTaken).id, "") << command;
  }
}

// Files in memory lie on one filesystem, whoever made them.
TEST_F(LocksOfAGroup, OnAFilesystemThatAllHave) {
  auto in_memory = [] { return ::memfd_create("locks", 0); };
  for (int command : {F_SETLK, F_OFD_SETLK}) {
    EXPECT_EQ(found(in_memory, command, kTaken - 1).id, "it") << command;
    EXPECT_EQ(found(in_memory, command, kTaken).id, "") << command;
  }
}

}  // namespace
}  // namespace isola::launcher
