#include "image/tree_read.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/ids.h"
#include "image/layer_store.h"
#include "image/layer_test.h"

namespace isola::image {
namespace {

class TreeRead : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = "/var/tmp/isola-read-" + new_sandbox_id();
    ASSERT_EQ(::mkdir(dir_.c_str(), 0700), 0);
  }
  void TearDown() override { EXPECT_TRUE(remove_tree(dir_)); }
  std::string dir_;
};

// Whatever somebody inside has made: nobody waits for a pipe, follows a link or reads a hole.
TEST_F(TreeRead, OddFilesHarmNobody) {
  ASSERT_TRUE(replace_file(dir_ + "/plain", "x"));
  ASSERT_EQ(::mkfifo((dir_ + "/pipe").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("/proc/kmsg", (dir_ + "/link").c_str()), 0);
  ASSERT_EQ(::mknod((dir_ + "/whiteout").c_str(), S_IFCHR, 0), 0);
  ASSERT_TRUE(replace_file(dir_ + "/sparse", "x"));
  ASSERT_EQ(::truncate((dir_ + "/sparse").c_str(), off_t{1} << 43), 0);
  std::filesystem::create_directories(dir_ + "/a/b/c");
  auto read = read_tree(dir_);
  EXPECT_TRUE(read) << read.error().message;
  EXPECT_FALSE(read_tree(dir_ + "/nowhere"));
}

TEST_F(TreeRead, WhatTheDiskOfAFrozenLayerHasLostIsNamed) {
  StoreOptions options;
  options.provider = "btrfs";
  options.store_bytes = 512 * MiB;
  options.reserve_bytes = 1;
  auto store = open_layer_store(dir_, options, std::nullopt);
  if (!store) GTEST_SKIP() << store.error().message;
  Fd disk(::open((dir_ + "/storage/store.btrfs").c_str(), O_RDWR | O_CLOEXEC));
  if (!disk) GTEST_SKIP() << "the layers lie on a filesystem of the machine's own";
  auto layer = (*store)->create("one", {.bytes = 64 * MiB});
  ASSERT_TRUE(layer) << layer.error().message;
  ASSERT_EQ(::mkdir((*layer + "/upper/deep").c_str(), 0700), 0);
  const std::string mark = "what lies here is to be found again " + new_sandbox_id();
  ASSERT_TRUE(replace_file(*layer + "/upper/deep/damaged", mark + std::string(256 << 10, 'x')));
  ASSERT_TRUE(replace_file(*layer + "/upper/whole", std::string(256 << 10, 'y')));
  ASSERT_TRUE((*store)->copy("one", "frozen"));
  ASSERT_TRUE((*store)->sync("frozen"));
  auto frozen = (*store)->path("frozen");
  ASSERT_TRUE(frozen);
  auto whole = read_tree(*frozen + "/upper");
  EXPECT_TRUE(whole) << whole.error().message;

  off_t at = find_on_disk(disk.get(), mark);
  ASSERT_GE(at, 0);
  char byte = 0;
  ASSERT_EQ(::pread(disk.get(), &byte, 1, at + 5000), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(disk.get(), &byte, 1, at + 5000), 1);
  ASSERT_EQ(::fsync(disk.get()), 0);
  auto damaged = read_tree(*frozen + "/upper");
  ASSERT_FALSE(damaged) << "nobody would have noticed";
  EXPECT_EQ(damaged.error().code, Code::corrupt);
  EXPECT_NE(damaged.error().message.find("deep/damaged"), std::string::npos) << damaged.error().message;
}

}  // namespace
}  // namespace isola::image
