// Each thing that a sandbox could leave behind is left once, and has to be named.
#include "cli/remains.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/ids.h"
#include "kernel/cgroup_layout.h"
#include "launcher/id_ranges.h"

namespace isola::cli {
namespace {

class RemainsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isl-remains-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    gone_ = {.data_dir = name, .id = new_sandbox_id(), .launcher = ::getpid(), .processes = {}};
    ASSERT_EQ(remains(gone_), "");
  }
  void TearDown() override {
    EXPECT_EQ(remains(gone_), "") << "what was mended is still seen";
    std::filesystem::remove_all(gone_.data_dir);
  }
  void expect_left(const std::string& what) {
    EXPECT_NE(remains(gone_).find(what), std::string::npos) << what << " goes unseen: '" << remains(gone_) << "'";
  }
  Destroyed gone_;
};

TEST_F(RemainsTest, AJournalEntry) {
  std::string entry = gone_.data_dir + "/run/" + gone_.id;
  ASSERT_TRUE(make_dirs(gone_.data_dir + "/run"));
  ASSERT_TRUE(replace_file(entry, "x"));
  expect_left("journal");
  ::unlink(entry.c_str());
}

TEST_F(RemainsTest, ARangeOfIds) {
  auto ranges = launcher::IdRanges::open(gone_.data_dir);
  ASSERT_TRUE(ranges);
  auto base = ranges->take(gone_.id);
  ASSERT_TRUE(base);
  expect_left("range of ids");
  ranges->give_back(*base);
}

TEST_F(RemainsTest, ALayer) {
  for (std::string layer : {"/storage/layers/" + gone_.id, "/storage/layers/" + gone_.id + "-abc123",
                            "/storage/files/" + gone_.id + ".ext4"}) {
    ASSERT_TRUE(make_dirs(gone_.data_dir + layer));
    expect_left("layer");
    ::rmdir((gone_.data_dir + layer).c_str());
  }
}

TEST_F(RemainsTest, AControlGroup) {
  auto layout = kernel::find_cgroup_layout({});
  if (!layout || !layout->missing().empty()) GTEST_SKIP() << "no cgroups here";
  for (const auto& folder : layout->folders()) {
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not made yet on this machine";
    ASSERT_EQ(::mkdir((folder + "/" + gone_.id).c_str(), 0755), 0);
    expect_left("control group");
    ::rmdir((folder + "/" + gone_.id).c_str());
  }
}

// A process that sits in the pid namespace of another, as a daemon does that its command left behind.
TEST_F(RemainsTest, AProcess) {
  auto init = kernel::spawn(CLONE_NEWPID, [] {
    ::pause();
    return 0;
  });
  ASSERT_TRUE(init);
  gone_.processes = processes_inside(init->pid);
  ASSERT_EQ(gone_.processes.size(), 1u);
  EXPECT_EQ(gone_.processes[0].pid, init->pid);
  expect_left("process");
  ::kill(init->pid, SIGKILL);
  ::waitpid(init->pid, nullptr, 0);
}

TEST_F(RemainsTest, AMountOfTheLaunchers) {
  auto launcher = kernel::spawn(CLONE_NEWNS, [&] {
    ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    std::string place = gone_.data_dir + "/" + gone_.id;
    if (::mkdir(place.c_str(), 0700) < 0 || ::mount("none", place.c_str(), "tmpfs", 0, nullptr) < 0) return 2;
    gone_.launcher = ::getpid();
    return remains(gone_).find("mount of") != std::string::npos ? 0 : 1;
  });
  ASSERT_TRUE(launcher);
  int status = 1;
  ::waitpid(launcher->pid, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace isola::cli
