#include "guest/agent/path.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace isola::guest {
namespace {

class Paths : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-path-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    top_ = name;
    ASSERT_EQ(::mkdir((top_ + "/folder").c_str(), 0755), 0);
    fd_ = Fd(::open(name, O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  void TearDown() override { std::filesystem::remove_all(top_); }
  std::string top_;
  Fd fd_;
};

TEST_F(Paths, AFolderIsOpenedAndALinkToOneIsNot) {
  ASSERT_EQ(::symlink("folder", (top_ + "/link").c_str()), 0);
  ASSERT_EQ(::symlink("/", (top_ + "/out").c_str()), 0);
  ASSERT_EQ(::mkfifo((top_ + "/fifo").c_str(), 0644), 0);
  EXPECT_TRUE(open_folder(fd_.get(), "folder"));
  EXPECT_TRUE(open_folder(fd_.get(), ".."));
  for (const char* name : {"link", "out", "fifo", "missing"}) EXPECT_FALSE(open_folder(fd_.get(), name)) << name;
  Fd folder = open_folder(fd_.get(), "folder");
  EXPECT_TRUE(::fcntl(folder.get(), F_GETFD) & FD_CLOEXEC);
}

TEST_F(Paths, Split) {
  auto is = [](const char* path, const char* dir, const char* name) {
    auto parts = split(path);
    EXPECT_EQ(parts.dir, dir) << path;
    EXPECT_EQ(parts.name, name) << path;
  };
  is("/a/b/c", "/a/b", "c");
  is("/a/b/c//", "/a/b", "c");
  is("/a", "/", "a");
  is("a", ".", "a");
  is("/", "/", "");
}

TEST_F(Paths, MakeParentsLeavesTheLastPartAlone) {
  ASSERT_TRUE(make_parents(top_ + "/x//y/z/", 0755));
  EXPECT_TRUE(std::filesystem::is_directory(top_ + "/x/y"));
  EXPECT_FALSE(std::filesystem::exists(top_ + "/x/y/z"));
  ASSERT_TRUE(make_parents(top_ + "/folder/z", 0755)) << "what is there is fine";
  EXPECT_FALSE(make_parents("/proc/no-such-place/x/y", 0755));
}

TEST_F(Paths, StatTellsOfTheLinkItself) {
  ASSERT_EQ(::symlink("folder", (top_ + "/link").c_str()), 0);
  auto link = stat_at(fd_.get(), "link", false), folder = stat_at(fd_.get(), "link", true);
  ASSERT_TRUE(link && folder);
  EXPECT_EQ(link->type, FileType::link);
  EXPECT_EQ(link->target, "folder");
  EXPECT_EQ(folder->type, FileType::dir);
  EXPECT_FALSE(stat_at(fd_.get(), "missing", false));
}

}  // namespace
}  // namespace isola::guest
