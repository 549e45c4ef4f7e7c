#include "image/packed_image.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/ids.h"
#include "image/tree.h"
#include "kernel/fault.h"

namespace isola::image {
namespace {

namespace fs = std::filesystem;

// On a store whose layers are plain folders: what is packed is a folder with any.
class PackedImage : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    dir_ = "/var/tmp/isola-packed-" + new_sandbox_id();
    StoreOptions options{.provider = "unquotaed", .reserve_bytes = 1};
    auto layers = open_layer_store(dir_, options, AllowUnquotaedDisk());
    ASSERT_TRUE(layers) << layers.error().message;
    layers_ = std::move(*layers);
    store_ = std::make_unique<ImageStore>(dir_ + "/images");
  }
  void TearDown() override {
    kernel::fault::disarm();
    layers_.reset();
    if (!dir_.empty()) (void)remove_tree(dir_);
  }
  Image make(bool memory) {
    auto draft = store_->begin();
    EXPECT_TRUE(draft);
    Image image{.id = draft->id, .verb = "pause", .digest = std::string(64, 'd'), .layers = {"one"}, .memory = memory};
    image.limits.disk = 16 << 20;
    std::string layer = layers_->create("one", {.bytes = 16 << 20}).value() + "/upper";
    EXPECT_TRUE(replace_file(layer + "/file", std::string(1 << 20, 'x'), 0640));
    EXPECT_EQ(::lchown((layer + "/file").c_str(), 1000, 1000), 0);
    EXPECT_EQ(::mknod((layer + "/gone").c_str(), S_IFCHR, 0), 0);  // a whiteout
    EXPECT_EQ(::mkdir((layer + "/opaque").c_str(), 0755), 0);
    EXPECT_EQ(::lsetxattr((layer + "/opaque").c_str(), "trusted.overlay.opaque", "y", 1, 0), 0);
    EXPECT_EQ(::lsetxattr(layer.c_str(), "trusted.overlay.origin", "where", 5, 0), 0);
    if (memory) {
      EXPECT_TRUE(replace_file(draft->memory + "/pages-1.img", std::string(3 << 20, 'm'), 0600));
      image.files = store_->sum_up(image.id).value();
    }
    for (const auto& file : image.files) image.memory_bytes += file.size;
    image.layer_bytes = 1 << 20;
    EXPECT_TRUE(store_->commit(image));
    return image;
  }
  std::string folder(const Image& image) { return store_->root() + "/" + image.id; }
  std::string dir_;
  std::unique_ptr<LayerStore> layers_;
  std::unique_ptr<ImageStore> store_;
};

TEST_F(PackedImage, FilesThereAndBack) {
  Image image = make(false);
  auto packed = pack(*store_, *layers_, image, true);
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_TRUE(has_packed_layer(*packed));
  EXPECT_LT(layer_size(*packed), image.layer_bytes / 10);
  EXPECT_EQ(store_->find(image.id)->archives, packed->archives) << "the manifest says so";
  EXPECT_TRUE(store_->verify(*packed, true));
  ASSERT_TRUE(layers_->destroy("one"));
  ASSERT_TRUE(make_layer(*layers_, *packed));
  auto back = unpack(*store_, *layers_, *packed);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_FALSE(store_->find(image.id)->packed());
  EXPECT_FALSE(fs::exists(folder(image) + "/" + kLayerArchive));
  std::string layer = layers_->path("one").value() + "/upper";
  struct stat st;
  ASSERT_EQ(::lstat((layer + "/file").c_str(), &st), 0);
  EXPECT_EQ(st.st_uid, 1000u);
  EXPECT_EQ(st.st_mode & 07777, 0640u);
  EXPECT_EQ(read_file(layer + "/file", 4 << 20).value(), std::string(1 << 20, 'x'));
  ASSERT_EQ(::lstat((layer + "/gone").c_str(), &st), 0);
  EXPECT_TRUE(S_ISCHR(st.st_mode) && st.st_rdev == 0);
  char value[8];
  EXPECT_EQ(::lgetxattr((layer + "/opaque").c_str(), "trusted.overlay.opaque", value, sizeof value), 1);
  EXPECT_LT(::lgetxattr(layer.c_str(), "trusted.overlay.origin", value, sizeof value), 0)
      << "told anew by the next mount";
}

TEST_F(PackedImage, MemoryThereAndBack) {
  Image image = make(true);
  auto packed = pack(*store_, *layers_, image, true);
  ASSERT_TRUE(packed) << packed.error().message;
  EXPECT_FALSE(has_packed_layer(*packed)) << "processes have files of it open";
  EXPECT_FALSE(fs::exists(store_->memory_folder(image.id)));
  EXPECT_LT(memory_size(*packed), image.memory_bytes / 10);
  auto back = unpack(*store_, *layers_, *packed);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_TRUE(store_->verify(*back, true));
  EXPECT_EQ(read_file(store_->memory_folder(image.id) + "/pages-1.img", 8 << 20).value(), std::string(3 << 20, 'm'));
}

TEST_F(PackedImage, DamageIsNamedAndNothingIsLost) {
  Image image = make(false);
  auto packed = pack(*store_, *layers_, image, true);
  ASSERT_TRUE(packed);
  ASSERT_TRUE(layers_->destroy("one"));
  fs::resize_file(folder(image) + "/" + kLayerArchive, layer_size(*packed) - 1);
  EXPECT_EQ(store_->verify(*packed, false).error().code, Code::corrupt);
  ASSERT_TRUE(make_layer(*layers_, *packed));
  auto back = unpack(*store_, *layers_, *packed);
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, Code::corrupt);
  EXPECT_TRUE(store_->find(image.id)->packed());
}

// Whoever is killed, the manifest says what is true.
TEST_F(PackedImage, CutOff) {
  Image image = make(false);
  ASSERT_TRUE(kernel::fault::arm("commit_image:1:" + std::to_string(EIO)));
  EXPECT_FALSE(pack(*store_, *layers_, image, true));
  kernel::fault::disarm();
  EXPECT_FALSE(store_->find(image.id)->packed());
  EXPECT_TRUE(fs::exists(folder(image) + "/" + kLayerArchive));
  tidy(*store_, image);
  EXPECT_FALSE(fs::exists(folder(image) + "/" + kLayerArchive));
  EXPECT_EQ(pack(*store_, *layers_, image, false).error().code, Code::unavailable) << "others have its files";
}

}  // namespace
}  // namespace isola::image
