// What is the ext4-file store's own; what all stores have in common is in layer_store_test.cc.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "base/fd.h"
#include "base/ids.h"
#include "image/layer_store.h"
#include "image/tree.h"

namespace isola::image {
namespace {

constexpr uint64_t MiB = 1 << 20;

class Ext4FileStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = "/var/tmp/isola-ext4-" + new_sandbox_id();
    auto opened = open_layer_store(dir_, {.provider = "ext4-file", .reserve_bytes = 1}, std::nullopt);
    if (!opened) GTEST_SKIP() << opened.error().message;
    store_ = std::move(*opened);
  }
  void TearDown() override {
    store_.reset();
    EXPECT_TRUE(remove_tree(dir_));
  }
  std::string dir_;
  std::unique_ptr<LayerStore> store_;
};

// Empty filesystems to copy from, one for each size that is in use.
TEST_F(Ext4FileStoreTest, SizesThatWereAskedForOnceLeaveAFewFiles) {
  auto templates = [&] {
    auto names = list_dir(dir_ + "/storage/files").value();
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("template-"); });
    return std::set<std::string>(names.begin(), names.end());
  };
  auto try_size = [&](uint64_t bytes) {
    auto layer = store_->create("one", {.bytes = bytes});
    ASSERT_TRUE(layer) << layer.error().message;
    ASSERT_TRUE(store_->destroy("one"));
  };
  // Of the file: one that is dropped and made again would have another, since this one is held open.
  auto number = [](const std::string& path) {
    struct stat st;
    return ::stat(path.c_str(), &st) == 0 ? st.st_ino : 0;
  };
  try_size(8 * MiB);
  std::string usual;
  for (const auto& name : templates())
    if (name.starts_with("template-" + std::to_string(8 * MiB))) usual = dir_ + "/storage/files/" + name;
  Fd held(::open(usual.c_str(), O_RDONLY | O_CLOEXEC));
  const ino_t before = number(usual);
  for (uint64_t i = 1; i <= 40; ++i) {
    try_size((8 + i) * MiB);
    try_size(8 * MiB);
  }
  EXPECT_LE(templates().size(), 32u);
  EXPECT_GT(templates().size(), 20u) << "those of late are kept";
  EXPECT_NE(before, 0u);
  EXPECT_EQ(number(usual), before) << "what is used all the time is kept";
}

TEST_F(Ext4FileStoreTest, ALayerLargerThanTheDiskIsRefused) {
  auto files = list_dir(dir_ + "/storage/files").value();
  const uint64_t senseless = std::filesystem::space(dir_).capacity + (uint64_t{16} << 30);
  auto refused = store_->create("one", {.bytes = senseless});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid);
  EXPECT_NE(refused.error().message.find("more than the machine's own disk has"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(list_dir(dir_ + "/storage/files").value(), files) << "nothing is made for it";
  ASSERT_TRUE(store_->create("one", {.bytes = 16 * MiB}));
  EXPECT_EQ(store_->resize("one", {.bytes = senseless}).error().code, Code::invalid);
  EXPECT_TRUE(verify_limit(*store_, "one", 16 * MiB));
}

}  // namespace
}  // namespace isola::image
