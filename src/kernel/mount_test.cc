#include "kernel/mount.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "kernel/fault.h"
#include "kernel/process.h"

namespace isola::kernel {
namespace {

// Mounts are made in a child with a mount namespace of its own; a failed expectation there is its exit code.
class MountTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-mount-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
    std::filesystem::create_directories(folder_ + "/point");
    std::filesystem::create_directories(folder_ + "/real");
    std::filesystem::create_directory_symlink("real", folder_ + "/link");
    std::filesystem::create_directory_symlink("/", folder_ + "/away");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int inside(const std::function<int()>& body) {
    auto child = spawn(CLONE_NEWNS, [&] {
      if (!make_all_private() || ::chdir(folder_.c_str()) < 0) return 200;
      return body();
    });
    EXPECT_TRUE(child);
    int status = 0;
    ::waitpid(child->pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
  }
  static std::string line_of(const std::string& target) {
    std::ifstream mounts("/proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);)
      if (line.find(" " + target + " ") != std::string::npos) return line;
    return "";
  }
  std::string folder_;
};

TEST_F(MountTest, AFilesystemWithItsAttributes) {
  EXPECT_EQ(inside([&] {
              auto tmpfs = make_filesystem("tmpfs", {{"source", "isola"}, {"size", "1m"}},
                                           {.read_only = true, .nosuid = true, .nodev = true, .noexec = true});
              if (!tmpfs) return 1;
              if (!line_of(folder_ + "/point").empty()) return 2;  // detached
              if (!attach(tmpfs->get(), AT_FDCWD, "point")) return 3;
              std::string line = line_of(folder_ + "/point");
              if (line.find(" ro,nosuid,nodev,noexec") == std::string::npos) return 4;
              if (line.find("size=1024k") == std::string::npos) return 5;
              if (!detach("point")) return 6;
              return line_of(folder_ + "/point").empty() ? 0 : 7;
            }),
            0);
  EXPECT_FALSE(make_filesystem("no-such-filesystem", {}));
  EXPECT_FALSE(make_filesystem("tmpfs", {{"no-such-option", "1"}}));
  EXPECT_FALSE(make_filesystem("tmpfs", {{"size", "nonsense"}}));
}

// The target's path is never followed through a symlink, nor out of the folder.
TEST_F(MountTest, ATypeThatTheKernelHasNotIsNotThere) {
  EXPECT_TRUE(open_filesystem_type("tmpfs"));
  auto none = open_filesystem_type("no-such-fs");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().sys_errno, ENODEV);
}

TEST_F(MountTest, AttachFollowsNoLink) {
  EXPECT_EQ(inside([&] {
              Fd root(::open(".", O_PATH | O_DIRECTORY));
              auto tmpfs = make_filesystem("tmpfs", {});
              if (!tmpfs) return 1;
              if (attach(tmpfs->get(), root.get(), "link")) return 2;
              if (attach(tmpfs->get(), root.get(), "link/x")) return 3;
              if (attach(tmpfs->get(), root.get(), "away/tmp")) return 4;
              if (attach(tmpfs->get(), root.get(), "../")) return 5;
              if (attach(tmpfs->get(), root.get(), "point/../../x")) return 6;
              if (attach(tmpfs->get(), root.get(), "/tmp")) return 7;
              if (attach(tmpfs->get(), root.get(), "missing")) return 8;
              return attach(tmpfs->get(), root.get(), "point") ? 0 : 9;
            }),
            0);
}

TEST_F(MountTest, OpenBeneath) {
  Fd root(::open(folder_.c_str(), O_PATH | O_DIRECTORY));
  EXPECT_TRUE(open_beneath(root.get(), "real", O_PATH));
  EXPECT_FALSE(open_beneath(root.get(), "link/x", O_PATH));
  EXPECT_FALSE(open_beneath(root.get(), "away/etc", O_PATH));
  EXPECT_FALSE(open_beneath(root.get(), "../etc", O_PATH));
  EXPECT_FALSE(open_beneath(root.get(), "/etc", O_PATH));
}

TEST_F(MountTest, ACopyOfATreeTakesOtherAttributes) {
  EXPECT_EQ(inside([&] {
              auto copy = clone_tree(AT_FDCWD, "real");
              if (!copy) return 1;
              if (!set_attributes(copy->get(), {.read_only = true, .nosuid = true, .nodev = true})) return 2;
              if (!attach(copy->get(), AT_FDCWD, "point")) return 3;
              if (Fd(::open("point/new", O_CREAT | O_WRONLY, 0600))) return 4;
              return Fd(::open("real/new", O_CREAT | O_WRONLY, 0600)) ? 0 : 5;
            }),
            0);
  EXPECT_FALSE(clone_tree(AT_FDCWD, folder_ + "/missing"));
}

TEST_F(MountTest, IdsSeenThroughAMap) {
  std::ofstream(folder_ + "/real/file") << "x";
  EXPECT_EQ(inside([&] {
              auto pipe = make_pipe();
              auto holder = spawn(CLONE_NEWUSER, [&] {
                pipe->second.reset();
                char c;
                (void)!::read(pipe->first.get(), &c, 1);
                return 0;
              });
              if (!holder || !write_id_maps(holder->pid, 0x50000000, 65536)) return 1;
              auto userns = open_namespace(holder->pid, "user");
              auto copy = clone_tree(AT_FDCWD, "real");
              if (!userns || !copy) return 2;
              if (!set_attributes(copy->get(), {.idmap = userns->get()})) return 3;
              if (!attach(copy->get(), AT_FDCWD, "point")) return 4;
              struct stat file{};
              if (::stat("point/file", &file) < 0) return 5;
              pipe->second.reset();
              ::waitpid(holder->pid, nullptr, 0);
              return file.st_uid == 0x50000000 && file.st_gid == 0x50000000 ? 0 : 6;
            }),
            0);
}

TEST_F(MountTest, FaultsLeaveNothing) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  EXPECT_EQ(inside([&] {
              int failures = 0;
              for (int n = 1; n < 50; ++n) {
                std::string before = *read_file("/proc/self/mountinfo");
                if (!fault::arm("*:" + std::to_string(n) + ":12")) return 1;
                auto tmpfs = make_filesystem("tmpfs", {{"size", "1m"}}, {.nodev = true});
                auto attached =
                    tmpfs ? attach(tmpfs->get(), AT_FDCWD, "point") : Result<void>(std::unexpected(tmpfs.error()));
                fault::disarm();
                if (attached) return failures >= 3 && detach("point") ? 0 : 2;
                if (attached.error().sys_errno != ENOMEM) return 3;
                if (*read_file("/proc/self/mountinfo") != before) return 4;
                ++failures;
              }
              return 5;
            }),
            0);
}

}  // namespace
}  // namespace isola::kernel
