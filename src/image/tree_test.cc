#include "image/tree.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "base/fd.h"
#include "base/file.h"
#include "base/ids.h"
#include "image/guest_user.h"
#include "image/root_tree.h"
#include "image/sparse_copy.h"
#include "image/spawn.h"

namespace isola::image {
namespace {

class TreeTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = "/var/tmp/isola-tree-" + new_sandbox_id();
    ASSERT_TRUE(make_dirs(dir_));
  }
  void TearDown() override { EXPECT_TRUE(remove_tree(dir_)); }
  std::string dir_;
};

TEST_F(TreeTest, LinksAreRemovedNotFollowed) {
  ASSERT_TRUE(make_dirs(dir_ + "/keep"));
  ASSERT_TRUE(replace_file(dir_ + "/keep/file", "x"));
  ASSERT_TRUE(make_dirs(dir_ + "/tree/sub"));
  ASSERT_EQ(::symlink((dir_ + "/keep").c_str(), (dir_ + "/tree/sub/link").c_str()), 0);
  ASSERT_EQ(::symlink("tree", (dir_ + "/alias").c_str()), 0);
  ASSERT_TRUE(remove_tree(dir_ + "/alias"));
  EXPECT_EQ(::access((dir_ + "/tree/sub").c_str(), F_OK), 0) << "only the link goes";
  ASSERT_TRUE(remove_tree(dir_ + "/tree"));
  EXPECT_TRUE(remove_tree(dir_ + "/tree"));
  EXPECT_EQ(read_file(dir_ + "/keep/file").value(), "x");
  EXPECT_EQ(list_dir(dir_).value(), std::vector<std::string>{"keep"});
}

// Somebody who can still write in it moves the folder in which the remover stands: up must not lead out of the tree.
TEST_F(TreeTest, AFolderThatMovesLeadsNobodyOut) {
  int moved = 0;
  for (int round = 0; round < 50 && moved == 0; ++round) {
    const std::string top = dir_ + "/1/2/3/top", deep = top + "/a/b/c/deep";
    ASSERT_TRUE(make_dirs(deep));
    for (const char* place : {"/1/keep", "/1/2/keep", "/1/2/3/keep"}) ASSERT_TRUE(replace_file(dir_ + place, "x"));
    for (int i = 0; i < 5000; ++i) Fd(::open((deep + "/" + std::to_string(i)).c_str(), O_CREAT | O_CLOEXEC, 0600));
    std::atomic<bool> over = false;
    std::thread mover([&] {
      while (!over && list_dir(deep).value().size() == 5000) std::this_thread::yield();
      if (::rename(deep.c_str(), (top + "/deep").c_str()) == 0) ++moved;
    });
    auto removed = remove_tree(top);
    over = true;
    mover.join();
    if (moved && !removed) {
      EXPECT_EQ(removed.error().code, Code::unavailable) << removed.error().message;
    }
    for (const char* place : {"/1/keep", "/1/2/keep", "/1/2/3/keep"})
      EXPECT_TRUE(read_file(dir_ + place)) << place << " was outside of it";
  }
  EXPECT_GT(moved, 0);
}

TEST_F(TreeTest, DeepAndOddlyNamed) {
  // Deeper than any path may be long, and with few descriptors to spare.
  ASSERT_EQ(::mkdir((dir_ + "/deep").c_str(), 0700), 0);
  Fd at(::open((dir_ + "/deep").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::string name(200, 'n');
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(::mkdirat(at.get(), name.c_str(), 0700), 0);
    Fd file(::openat(at.get(), "a \n\xff file", O_CREAT | O_WRONLY | O_CLOEXEC, 0));
    Fd next(::openat(at.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    at = std::move(next);
  }
  at.reset();
  rlimit before, few{32, 0};
  ::getrlimit(RLIMIT_NOFILE, &before);
  few.rlim_max = before.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &few);
  auto removed = remove_tree(dir_ + "/deep");
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(removed) << removed.error().message;
}

TEST_F(TreeTest, OtherFilesystemsStay) {
  ASSERT_TRUE(make_dirs(dir_ + "/tree/mnt"));
  ASSERT_EQ(::mount("tmpfs", (dir_ + "/tree/mnt").c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_TRUE(replace_file(dir_ + "/tree/mnt/file", "x"));
  EXPECT_FALSE(remove_tree(dir_ + "/tree"));
  EXPECT_EQ(read_file(dir_ + "/tree/mnt/file").value(), "x");
  ASSERT_EQ(::umount(((dir_ + "/tree/mnt").c_str())), 0);
}

TEST_F(TreeTest, WritesStayInsideTheRoot) {
  ASSERT_TRUE(make_dirs(dir_ + "/root/etc"));
  ASSERT_TRUE(make_dirs(dir_ + "/outside"));
  ASSERT_TRUE(replace_file(dir_ + "/outside/file", "safe"));
  ASSERT_EQ(::symlink((dir_ + "/outside").c_str(), (dir_ + "/root/away").c_str()), 0);
  ASSERT_EQ(::symlink("../../outside/file", (dir_ + "/root/etc/hosts").c_str()), 0);
  auto root = RootTree::open(dir_ + "/root");
  ASSERT_TRUE(root);
  ASSERT_TRUE(root->write("/etc/hosts", "new", 0640, 7));
  EXPECT_EQ(read_file(dir_ + "/root/etc/hosts").value(), "new");
  struct stat st;
  ASSERT_EQ(::lstat((dir_ + "/root/etc/hosts").c_str(), &st), 0);
  EXPECT_TRUE(S_ISREG(st.st_mode));
  EXPECT_EQ(st.st_mode & 07777, 0640u);
  EXPECT_EQ(st.st_uid, 7u);
  EXPECT_FALSE(root->write("/away/file", "bad"));
  EXPECT_FALSE(root->read("/away/file"));
  EXPECT_TRUE(root->remove("/away/file"));
  EXPECT_TRUE(root->empty_folder("/away"));
  EXPECT_FALSE(root->write("/..", "bad"));
  EXPECT_EQ(read_file(dir_ + "/outside/file").value(), "safe");
  ASSERT_TRUE(root->folder_at("/away", 0711));
  ASSERT_EQ(::lstat((dir_ + "/root/away").c_str(), &st), 0);
  EXPECT_TRUE(S_ISDIR(st.st_mode)) << "a link in a folder's place goes";
}

// A stranger's image may have anything where a file is looked for.
TEST_F(TreeTest, PipesInTheRootAreNotWaitedFor) {
  ASSERT_TRUE(make_dirs(dir_ + "/root/etc/group"));
  ASSERT_EQ(::mkfifo((dir_ + "/root/etc/passwd").c_str(), 0644), 0);
  auto root = RootTree::open(dir_ + "/root");
  ASSERT_TRUE(root);
  EXPECT_EQ(root->read("/etc/passwd").error().code, Code::corrupt);
  EXPECT_FALSE(root->append("/etc/passwd", "line\n"));
  EXPECT_EQ(root->read("/etc/group").error().code, Code::corrupt);
  EXPECT_FALSE(add_guest_user(*root));
}

// sudo empties the environment; this part of it keeps the random numbers of two forks apart.
TEST_F(TreeTest, SudoKeepsWhatMakesForksDiffer) {
  ASSERT_TRUE(make_dirs(dir_ + "/root/usr/bin"));
  ASSERT_TRUE(replace_file(dir_ + "/root/usr/bin/sudo", ""));
  auto root = RootTree::open(dir_ + "/root");
  ASSERT_TRUE(root);
  auto added = add_guest_user(*root);
  ASSERT_TRUE(added) << added.error().message;
  auto rules = root->read("/etc/sudoers.d/user");
  ASSERT_TRUE(rules) << rules.error().message;
  EXPECT_EQ(*rules, "Defaults env_keep += \"OPENSSL_CONF\"\nuser ALL=(ALL:ALL) NOPASSWD: ALL\n");
}

TEST_F(TreeTest, SparseCopiesStaySparse) {
  std::string from = dir_ + "/from", to = dir_ + "/to";
  {
    Fd fd(::open(from.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::ftruncate(fd.get(), 16 << 20), 0);
    ASSERT_EQ(::pwrite(fd.get(), "middle", 6, 8 << 20), 6);
    ASSERT_EQ(::pwrite(fd.get(), "start", 5, 0), 5);
  }
  auto copied = sparse_copy(from, to);
  ASSERT_TRUE(copied) << copied.error().message;
  struct stat st;
  ASSERT_EQ(::stat(to.c_str(), &st), 0);
  EXPECT_EQ(st.st_size, 16 << 20);
  EXPECT_LT(st.st_blocks * 512, 1 << 20);
  EXPECT_TRUE(read_file(from, 17 << 20).value() == read_file(to, 17 << 20).value());
  EXPECT_EQ(sparse_copy(from, to).error().code, Code::exists);
}

TEST(Spawn, OutputErrorsAndMissingPrograms) {
  EXPECT_EQ(run_output({.argv = {"echo", "$HOME; x"}, .what = "echo"}).value(), "$HOME; x\n");
  auto failed = run({.argv = {"sh", "-c", "echo first; echo last >&2; exit 3"}, .what = "trying"});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "trying: sh failed with exit code 3:\nfirst\nlast");
  EXPECT_EQ(run({.argv = {"no-such-program"}, .what = "x"}).error().code, Code::not_found);
  EXPECT_FALSE(run({.argv = {"sh", "-c", "kill -9 $$"}, .what = "x"}));
  EXPECT_TRUE(run({.argv = {"sh", "-c", "echo careful >&2"}, .what = "trying"}));
  EXPECT_EQ(run({.argv = {"sh", "-c", "echo careful >&2"}, .what = "trying", .strict = true}).error().message,
            "trying: sh gave a warning:\ncareful");
  EXPECT_TRUE(run({.argv = {"true"}, .what = "trying", .strict = true}));
}

TEST(Spawn, NothingLeaksIntoThePrograms) {
  ::setenv("ISOLA_TEST_SECRET", "s3cret", 1);
  Fd leak(::open("/dev/null", O_RDONLY));  // without O_CLOEXEC
  auto out = run_output({.argv = {"sh", "-c", "env; ls /proc/self/fd"}, .env = {"GIVEN=1"}, .what = "x"}).value();
  ::unsetenv("ISOLA_TEST_SECRET");
  EXPECT_EQ(out.find("s3cret"), std::string::npos);
  EXPECT_NE(out.find("GIVEN=1"), std::string::npos);
  EXPECT_TRUE(out.ends_with("\n0\n1\n2\n3\n")) << out;  // 3 is ls's own
}

TEST(Spawn, ContainedProgramsSeeOnlyThemselvesAndKeepTheirMounts) {
  auto out = run_output({.argv = {"sh", "-c", "echo $$; mount -t tmpfs t /mnt && touch /mnt/x && ls /mnt"},
                         .what = "x",
                         .contained = true});
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_EQ(*out, "1\nx\n");
  EXPECT_NE(::access("/mnt/x", F_OK), 0);
}

}  // namespace
}  // namespace isola::image
