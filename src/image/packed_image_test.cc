#include "image/packed_image.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>

#include "base/fd.h"
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
  // As the launcher does it.
  Result<Image> pack_with_trial(const Image& image) {
    ISOLA_TRY(auto trial, make_trial(*layers_, image));
    auto packed = pack(*store_, *layers_, image, true, trial);
    EXPECT_TRUE(layers_->destroy(trial));
    return packed;
  }
  std::string folder(const Image& image) { return store_->root() + "/" + image.id; }
  std::string dir_;
  std::unique_ptr<LayerStore> layers_;
  std::unique_ptr<ImageStore> store_;
};

TEST_F(PackedImage, FilesThereAndBack) {
  Image image = make(false);
  auto packed = pack_with_trial(image);
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
  auto packed = pack(*store_, *layers_, image, true, "");
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
  auto packed = pack_with_trial(image);
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

// A program inside makes folders deeper than any path may be long: tar packs them, and cannot make them.
TEST_F(PackedImage, WhatWouldNotComeBackIsNotPacked) {
  Image image = make(false);
  std::string upper = layers_->path("one").value() + "/upper", name(200, 'n');
  Fd at(::open(upper.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(::mkdirat(at.get(), name.c_str(), 0700), 0);
    at = Fd(::openat(at.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  auto packed = pack_with_trial(image);
  ASSERT_FALSE(packed);
  EXPECT_EQ(packed.error().code, Code::unsupported);
  EXPECT_NE(packed.error().message.find("File name too long"), std::string::npos) << packed.error().message;
  EXPECT_LT(packed.error().message.size(), 500u) << "not with all of the name";
  EXPECT_FALSE(store_->find(image.id)->packed());
  EXPECT_FALSE(fs::exists(folder(image) + "/" + kLayerArchive));
  EXPECT_EQ(read_file(upper + "/file", 4 << 20).value(), std::string(1 << 20, 'x')) << "it is where it was";
}

TEST_F(PackedImage, SocketsAreLeftOut) {
  Image image = make(false);
  std::string upper = layers_->path("one").value() + "/upper";
  ASSERT_EQ(::mknod((upper + "/socket").c_str(), S_IFSOCK | 0600, 0), 0);
  auto packed = pack_with_trial(image);
  ASSERT_TRUE(packed) << packed.error().message;
  ASSERT_TRUE(layers_->destroy("one"));
  ASSERT_TRUE(make_layer(*layers_, *packed));
  ASSERT_TRUE(unpack(*store_, *layers_, *packed));
  EXPECT_FALSE(fs::exists(upper + "/socket"));
  EXPECT_TRUE(fs::exists(upper + "/file"));
}

// Where files can take less room than they hold.
class PackedOnBtrfs : public PackedImage {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    dir_ = "/var/tmp/isola-packed-" + new_sandbox_id();
    StoreOptions options{.provider = "btrfs", .store_bytes = uint64_t{1} << 30, .reserve_bytes = 1};
    auto layers = open_layer_store(dir_, options, {});
    if (!layers) GTEST_SKIP() << layers.error().message;
    layers_ = std::move(*layers);
    store_ = std::make_unique<ImageStore>(dir_ + "/images");
  }
  // `mib` of zeros, of which the filesystem is asked to make little.
  void squeeze(const std::string& upper, size_t mib) {
    Fd fd(::open((upper + "/zeros").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    int flags = 0;
    ASSERT_EQ(::ioctl(fd.get(), FS_IOC_GETFLAGS, &flags), 0);
    flags |= FS_COMPR_FL;
    ASSERT_EQ(::ioctl(fd.get(), FS_IOC_SETFLAGS, &flags), 0);
    const std::string piece(1 << 20, '\0');
    for (size_t i = 0; i < mib; ++i) {
      ASSERT_EQ(::write(fd.get(), piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
      ASSERT_EQ(::fsync(fd.get()), 0);
    }
  }
};

TEST_F(PackedOnBtrfs, CompressedFilesComeBackAsLargeAsTheyAre) {
  Image image = make(false);
  squeeze(layers_->path("one").value() + "/upper", 40);
  ASSERT_LT(layers_->usage("one")->bytes, uint64_t{16} << 20) << "they are compressed";
  auto packed = pack_with_trial(image);
  ASSERT_TRUE(packed) << packed.error().message;
  ASSERT_TRUE(layers_->destroy("one"));
  ASSERT_TRUE(make_layer(*layers_, *packed));
  auto back = unpack(*store_, *layers_, *packed);
  ASSERT_TRUE(back) << back.error().message;
  std::string zeros = layers_->path("one").value() + "/upper/zeros";
  EXPECT_EQ(fs::file_size(zeros), uint64_t{40} << 20);
  EXPECT_EQ(layers_->limit("one").value(), uint64_t{16} << 20) << "the limit is in force again";
  char value[16];
  EXPECT_LT(::lgetxattr(zeros.c_str(), "btrfs.compression", value, sizeof value), 0);
}

// A limit bounds what the machine can be made to store, packed or not.
TEST_F(PackedOnBtrfs, FarMoreThanTheLimitStaysAsItIs) {
  Image image = make(false);
  std::string upper = layers_->path("one").value() + "/upper";
  squeeze(upper, 120);
  auto packed = pack_with_trial(image);
  ASSERT_FALSE(packed);
  EXPECT_EQ(packed.error().code, Code::unsupported);
  EXPECT_NE(packed.error().message.find("quota"), std::string::npos) << packed.error().message;
  EXPECT_FALSE(store_->find(image.id)->packed());
  EXPECT_EQ(fs::file_size(upper + "/zeros"), uint64_t{120} << 20);
  EXPECT_EQ(layers_->list().value(), std::vector<std::string>{"one"});
}

// Whoever is killed, the manifest says what is true.
TEST_F(PackedImage, CutOff) {
  Image image = make(false);
  ASSERT_TRUE(kernel::fault::arm("commit_image:1:" + std::to_string(EIO)));
  EXPECT_FALSE(pack_with_trial(image));
  kernel::fault::disarm();
  EXPECT_FALSE(store_->find(image.id)->packed());
  EXPECT_FALSE(fs::exists(folder(image) + "/" + kLayerArchive)) << "of an attempt nothing stays";
  EXPECT_TRUE(replace_file(folder(image) + "/" + kLayerArchive, "half", 0600));
  EXPECT_TRUE(make_dirs(folder(image) + "/trial/memory", 0700));
  tidy(*store_, image);
  EXPECT_FALSE(fs::exists(folder(image) + "/" + kLayerArchive));
  EXPECT_FALSE(fs::exists(folder(image) + "/trial"));
  EXPECT_EQ(pack(*store_, *layers_, image, false, "").error().code, Code::unavailable) << "others have its files";
}

}  // namespace
}  // namespace isola::image
