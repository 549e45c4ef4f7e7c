#include "launcher/name_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/file.h"

namespace isola::launcher {
namespace {

class NameFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-names-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  NameFiles files() {
    auto opened = NameFiles::open(folder_, 0755);
    EXPECT_TRUE(opened.has_value()) << opened.error().message;
    return std::move(*opened);
  }
  ino_t inode(const std::string& name) {
    struct stat st{};
    EXPECT_EQ(::stat((folder_ + "/" + name).c_str(), &st), 0) << name;
    return st.st_ino;
  }
  std::string text(const std::string& name) { return read_file(folder_ + "/" + name).value_or("(not there)"); }
  std::set<std::string> named() {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      if (!NameFiles::is_aside(entry.path().filename().string())) names.insert(entry.path().filename());
    return names;
  }
  bool write_file_new(const std::string& name) { return static_cast<bool>(std::ofstream(folder_ + "/" + name) << "x"); }
  std::string folder_;
};

TEST_F(NameFilesTest, AFileComesWholeAndGoes) {
  auto f = files();
  ASSERT_TRUE(f.add("a", "text of a").has_value());
  ASSERT_TRUE(f.add("b", "b").has_value());
  EXPECT_EQ(text("a"), "text of a");
  EXPECT_EQ(text("b"), "b");
  f.remove("a");
  EXPECT_EQ(named(), std::set<std::string>{"b"});
}

TEST_F(NameFilesTest, ANameIsHadOnce) {
  auto f = files();
  ASSERT_TRUE(f.add("a", "mine").has_value());
  auto again = f.add("a", "theirs");
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, Code::exists);
  EXPECT_EQ(text("a"), "mine");
  // What was written for that serves the next one.
  ASSERT_TRUE(f.add("b", "theirs too").has_value());
  EXPECT_EQ(text("b"), "theirs too");
}

TEST_F(NameFilesTest, InodesAreUsedAgainAndNothingOfTheOldTextStays) {
  auto f = files();
  ASSERT_TRUE(f.add("long", "a long text that was here before").has_value());
  ino_t first = inode("long");
  f.remove("long");
  ASSERT_TRUE(f.add("short", "x").has_value());
  EXPECT_EQ(inode("short"), first);
  EXPECT_EQ(text("short"), "x");
}

TEST_F(NameFilesTest, WhatIsPutAsideGoesWithItsOwnerOrWithTheNextToCome) {
  auto aside = [&] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      count += NameFiles::is_aside(entry.path().filename().string());
    return count;
  };
  pid_t child = ::fork();
  if (child == 0) {  // killed in the middle, as it were
    auto theirs = NameFiles::open(folder_, 0755);
    bool good = theirs && theirs->add("a", "1") && theirs->add("b", "2");
    if (good) theirs->remove("a");
    ::_exit(good ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(aside(), 1u);
  ASSERT_TRUE(write_file_new(".1.0"));  // of a process that lives
  {
    auto f = files();
    EXPECT_EQ(aside(), 1u);
    ASSERT_TRUE(f.add("c", "3").has_value());
    f.remove("c");
    EXPECT_EQ(aside(), 2u);
  }
  EXPECT_EQ(aside(), 1u);
  EXPECT_EQ(named(), std::set<std::string>{"b"});
}

TEST_F(NameFilesTest, OnlySoManyArePutAside) {
  auto f = files();
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(f.add(std::to_string(i), "x").has_value());
  for (int i = 0; i < 300; ++i) f.remove(std::to_string(i));
  size_t left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) left += entry.exists();
  EXPECT_EQ(left, 256u);
}

}  // namespace
}  // namespace isola::launcher
