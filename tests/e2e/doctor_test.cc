// What `isola doctor` says of this machine, compared with what the machine has.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "e2e/island.h"

namespace isola::e2e {
namespace {

// The line about that: "note   disk traffic    io limits hold for …"
std::string line_about(const std::string& text, const std::string& about) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.find(" " + about + "  ") != std::string::npos) return line;
  return "";
}

TEST(Doctor, SaysWhichDiskTrafficIsLimited) {
  Island island({.start = false});
  auto done = island.isola({"doctor"});
  auto layout = kernel::find_cgroup_layout({.disks = {island.data()}});
  ASSERT_OK(layout);
  std::string line = line_about(done.out, "disk traffic");
  ASSERT_NE(line, "") << done.text();
  EXPECT_NE(line.find(layout->io_note()), std::string::npos) << line;
  EXPECT_TRUE(line.starts_with(layout->limits_all_io() ? "works " : "note ")) << line;
  if (layout->version == kernel::CgroupVersion::v1 && layout->can_limit_io()) {
    EXPECT_NE(line.find("reads and direct writes only"), std::string::npos) << line;
    EXPECT_NE(line.find("does not see buffered writes"), std::string::npos) << line;
  }
  EXPECT_EQ(difference({}, island.census()), "") << "doctor leaves something behind";
}

TEST(Doctor, SaysWhatASnapshotCosts) {
  Island island({.start = false});
  auto done = island.isola({"doctor"});
  std::string line = line_about(done.out, "snapshots");
  ASSERT_NE(line, "") << done.text();
  const bool shares = line.find("files are shared") != std::string::npos;
  EXPECT_EQ(shares, line.starts_with("works ")) << line;
  EXPECT_EQ(!shares, line.find("files are copied") != std::string::npos) << line;
  // Only the store btrfs has sums of files.
  const bool sums = line.find("whatever their size") != std::string::npos;
  EXPECT_EQ(sums, line_about(done.out, "damage on the disk").empty()) << done.text();
}

// A machine with version 2 whose kernel limits no traffic, made up of a few files: that is nothing that works.
TEST(Doctor, TrafficThatNothingLimitsIsNotSaidToWork) {
  Island island({.start = false});
  std::string script =
      "mount -t tmpfs none /mnt && mkdir -p /mnt/cg/isola && cd /mnt/cg && "
      "echo 'cpu memory pids' > cgroup.controllers && touch cgroup.subtree_control isola/cgroup.subtree_control && "
      "echo '30 25 0:26 / /mnt/cg rw - cgroup2 cgroup2 rw' > /mnt/mountinfo && "
      "mount --bind /mnt/mountinfo /proc/$$/mountinfo && exec \"$0\" doctor";
  auto done =
      run_program({"unshare", "-m", "--propagation", "private", "sh", "-c", script, kIsola}, island.with_data({}));
  std::string line = line_about(done.out, "disk traffic");
  EXPECT_TRUE(line.starts_with("note ")) << done.text();
  EXPECT_NE(line.find("no io limits"), std::string::npos) << line;
}

TEST(Doctor, SaysWhichControllersAreMissing) {
  Island island({.start = false});
  std::string script = "umount -l -R /sys/fs/cgroup && exec \"$0\" doctor";
  auto done =
      run_program({"unshare", "-m", "--propagation", "private", "sh", "-c", script, kIsola}, island.with_data({}));
  EXPECT_NE(done.code, 0) << done.text();
  std::string line = line_about(done.out, "control groups");
  EXPECT_TRUE(line.starts_with("FAILS ")) << done.text();
  for (const char* name : {"cpu", "memory", "pids"}) EXPECT_NE(line.find(name), std::string::npos) << line;
  EXPECT_TRUE(line_about(done.out, "boundary jail").starts_with("FAILS ")) << done.text();
  EXPECT_EQ(difference({}, island.census()), "") << "doctor leaves something behind";
}

// As on a machine that has not needed them yet, where the modules are not loaded: the list does not have them.
TEST(Doctor, AsksTheKernelForFilesystemsAndNotItsList) {
  Island island({.start = false});
  std::string script = "mount --bind /dev/null /proc/filesystems && exec \"$0\" doctor";
  auto done =
      run_program({"unshare", "-m", "--propagation", "private", "sh", "-c", script, kIsola}, island.with_data({}));
  for (const char* type : {"overlay", "erofs"})
    EXPECT_TRUE(line_about(done.out, type).starts_with("works ")) << done.text();
}

// Versions are told; of one that lacks a fix, what it lacks.
TEST(Doctor, WarnsAboutOldVersions) {
  char folder[] = "/tmp/isola-old-XXXXXX";
  ASSERT_TRUE(::mkdtemp(folder));
  auto program = [&](const std::string& name, const std::string& answers) {
    std::string path = std::string(folder) + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << answers << "\n";
    ::chmod(path.c_str(), 0755);
    return path;
  };
  Island island({.start = false});
  auto told = [&](const std::string& runsc, const std::string& criu) {
    auto options = island.with_data({});
    options.env.push_back("ISOLA_RUNSC=" + program("runsc", "case $1 in --version) echo 'runsc version " + runsc +
                                                                "';; *) echo 'which platform to use: systrap';; esac"));
    options.env.push_back("ISOLA_CRIU=" + program("criu", "echo 'Version: " + criu + "'"));
    return run_program({kIsola, "doctor"}, options);
  };
  auto old = told("0.0~20221219.0", "3.17.1");
  EXPECT_TRUE(line_about(old.out, "version of runsc").starts_with("warns ")) << old.text();
  EXPECT_TRUE(line_about(old.out, "version of criu").starts_with("warns ")) << old.text();
  EXPECT_NE(line_about(old.out, "version of criu").find("4.1.1 or newer"), std::string::npos) << old.text();
  auto recent = told("0.0~20240729.0", "4.2.1");
  EXPECT_TRUE(line_about(recent.out, "version of runsc").starts_with("works ")) << recent.text();
  EXPECT_TRUE(line_about(recent.out, "version of criu").starts_with("works ")) << recent.text();
  EXPECT_NE(line_about(recent.out, "version of Linux"), "") << recent.text();
  EXPECT_EQ(old.code, recent.code) << "a warning fails nothing";
  std::filesystem::remove_all(folder);
}

// A program that was copied somewhere without what it was built with.
TEST(Doctor, MissesTheLibraryForCriu) {
  if (line_about(run_program({kIsola, "doctor"}, Island({.start = false}).with_data({})).out, "checkpoint")
          .find("not installed") != std::string::npos)
    GTEST_SKIP() << "no criu here";
  const std::string folder = std::string(kIsola) + "-alone-" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  std::filesystem::create_hard_link(kIsola, folder + "/isola");
  Island island({.start = false});
  auto done = run_program({folder + "/isola", "doctor"}, island.with_data({}));
  std::filesystem::remove_all(folder);
  std::string line = line_about(done.out, "checkpoint");
  EXPECT_TRUE(line.starts_with("note ")) << done.text();
  EXPECT_NE(line.find("criu-preload.so"), std::string::npos) << done.text();
}

// A container that may make no mounts: the kernel is not to blame, and nothing is said to work that was not tried.
TEST(Doctor, DoesNotSayWhatItMayNotFindOut) {
  Island island({.start = false});
  auto done = run_program({"setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", kIsola, "doctor"},
                          island.with_data({}));
  EXPECT_NE(done.code, 0) << done.text();
  EXPECT_TRUE(line_about(done.out, "privileges").starts_with("FAILS ")) << done.text();
  for (const char* type : {"overlay", "erofs"})
    EXPECT_TRUE(line_about(done.out, type).starts_with("note ")) << done.text();
}

}  // namespace
}  // namespace isola::e2e
