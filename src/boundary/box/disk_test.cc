#include "boundary/box/disk.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "base/fd.h"
#include "boundary/box/archive.h"

namespace isola::boundary::box {
namespace {

TEST(BoxArchive, IsACpioOfTheNewForm) {
  Archive archive;
  archive.folder("isola");
  archive.file("isola/a", "12345", 0444);
  const std::string bytes = archive.take();
  EXPECT_EQ(bytes.substr(0, 6), "070701");
  EXPECT_EQ(bytes.size() % 4, 0u);
  EXPECT_EQ(bytes.substr(14, 8), "000041ED") << "a folder, 0755";
  EXPECT_EQ(bytes.substr(110, 6), std::string("isola\0", 6));
  const std::string second = bytes.substr(116);
  EXPECT_EQ(second.substr(0, 6), "070701");
  EXPECT_EQ(second.substr(14, 8), "00008124") << "a file, 0444";
  EXPECT_EQ(second.substr(54, 8), "00000005") << "its size";
  EXPECT_EQ(second.substr(120, 8), std::string("12345\0\0\0", 8)) << "behind the name, filled up to four";
  EXPECT_NE(bytes.find("TRAILER!!!"), std::string::npos);
}

class BoxDisk : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(::mkdtemp(folder_)); }
  void TearDown() override { (void)!std::system(("rm -rf " + std::string(folder_)).c_str()); }
  std::string at(const char* name) const { return std::string(folder_) + "/" + name; }
  char folder_[32] = "/tmp/isola-box-test-XXXXXX";
};

TEST_F(BoxDisk, HasTheSameBytesAndHoles) {
  Fd empty(::open(at("empty").c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(::ftruncate(empty.get(), 16 << 20), 0);
  const std::string text(5000, 'x');
  for (off_t place : {0, 1 << 20, (16 << 20) - 5000})
    ASSERT_EQ(::pwrite(empty.get(), text.data(), text.size(), place), static_cast<ssize_t>(text.size()));
  auto made = make_disk(at("empty"), at("disk"), uint64_t{1} << 30);
  ASSERT_TRUE(made) << made.error().message;
  Fd disk(::open(at("disk").c_str(), O_RDONLY));
  struct stat st{};
  ASSERT_EQ(::fstat(disk.get(), &st), 0);
  EXPECT_EQ(st.st_size, 1 << 30);
  EXPECT_LT(st.st_blocks * 512, 1 << 20) << "what is empty takes no room";
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  for (off_t place : {0, 1 << 20, (16 << 20) - 5000}) {
    std::string read(text.size(), '\0');
    ASSERT_EQ(::pread(disk.get(), read.data(), read.size(), place), static_cast<ssize_t>(read.size()));
    EXPECT_EQ(read, text);
  }
  EXPECT_FALSE(make_disk(at("empty"), at("disk"), uint64_t{1} << 30)) << "one that is there is nobody's to overwrite";
  EXPECT_FALSE(make_disk(at("empty"), at("small"), 1 << 20));
}

TEST(BoxDiskSize, IsBelowTheLimitAndWhole) {
  for (uint64_t limit : {kLeastDisk, uint64_t{32} << 20, uint64_t{2} << 30, uint64_t{100} << 30}) {
    EXPECT_LT(disk_size(limit), limit);
    EXPECT_GT(disk_size(limit), limit / 10 * 9);
    EXPECT_EQ(disk_size(limit) % 4096, 0u);
    EXPECT_GT(disk_size(limit), 16u << 20) << "what the empty disk has";
  }
}

// Layers are written by strangers: neither a pipe nor a link in the place of a disk keeps anybody waiting or leads
// away.
TEST_F(BoxDisk, WhatIsNoDiskIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("/dev/zero", at("link").c_str()), 0);
  std::function<Result<void>()> later;
  for (const char* name : {"pipe", "link", "."}) {
    EXPECT_FALSE(make_disk(at(name), at("disk"), 1 << 20)) << name;
    EXPECT_FALSE(begin_disk(at(name), at("disk"), 1 << 20, later)) << name;
    EXPECT_NE(::access(at("disk").c_str(), F_OK), 0) << name;
  }
}

}  // namespace
}  // namespace isola::boundary::box
