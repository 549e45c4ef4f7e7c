#include "image/mount_blob.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include "base/file.h"
#include "base/ids.h"
#include "image/pack.h"
#include "image/tree.h"
#include "kernel/fault.h"

namespace isola::image {
namespace {

namespace fault = kernel::fault;

class MountBlobTest : public testing::TestWithParam<BlobBacking> {
 protected:
  void SetUp() override {
    dir_ = "/var/tmp/isola-blob-" + new_sandbox_id();
    ASSERT_TRUE(make_dirs(dir_ + "/tree/bin"));
    ASSERT_TRUE(replace_file(dir_ + "/tree/bin/tool", "contents"));
    ASSERT_EQ(::chown((dir_ + "/tree/bin/tool").c_str(), 1000, 100), 0);
    ASSERT_EQ(::chmod((dir_ + "/tree/bin/tool").c_str(), 04711), 0);
    ASSERT_EQ(::setxattr((dir_ + "/tree/bin/tool").c_str(), "user.note", "n", 1, 0), 0);
    blob_ = dir_ + "/blob";
    auto packed = pack_tree(dir_ + "/tree", blob_, 1'000'000'000, "", Reporter({}));
    ASSERT_TRUE(packed) << packed.error().message;
  }
  void TearDown() override {
    fault::disarm();
    EXPECT_EQ(loops(), 0u);
    EXPECT_TRUE(remove_tree(dir_));
  }
  size_t loops() {
    size_t n = 0;
    auto names = list_dir("/sys/block").value();
    for (const auto& name : names) {
      auto file = read_file("/sys/block/" + name + "/loop/backing_file");
      if (file && file->starts_with(dir_)) ++n;
    }
    return n;
  }
  std::string dir_, blob_;
};

TEST_P(MountBlobTest, FilesAsTheyWerePacked) {
  auto mount = mount_blob(blob_, GetParam());
  if (!mount && mount.error().sys_errno == ENOTBLK) GTEST_SKIP() << "this kernel mounts erofs from devices only";
  ASSERT_TRUE(mount) << mount.error().message;
  if (GetParam() == BlobBacking::loop) {
    EXPECT_EQ(loops(), 1u);
  }
  EXPECT_EQ(read_file_at(mount->get(), "bin/tool").value(), "contents");
  struct stat st;
  ASSERT_EQ(::fstatat(mount->get(), "bin/tool", &st, 0), 0);
  EXPECT_EQ(st.st_uid, 1000u);
  EXPECT_EQ(st.st_gid, 100u);
  EXPECT_EQ(st.st_mode & 07777, 04711u);
  EXPECT_EQ(st.st_mtime, 1'000'000'000);
  char note = 0;
  Fd tool(::openat(mount->get(), "bin/tool", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::fgetxattr(tool.get(), "user.note", &note, 1), 1);
  struct statvfs fs;
  ASSERT_EQ(::fstatvfs(mount->get(), &fs), 0);
  EXPECT_TRUE(fs.f_flag & ST_RDONLY);
  EXPECT_TRUE(fs.f_flag & ST_NODEV);
  EXPECT_FALSE(fs.f_flag & ST_NOSUID) << "sudo inside must work";
  EXPECT_LT(::openat(mount->get(), "new", O_WRONLY | O_CREAT, 0600), 0);
}

TEST_P(MountBlobTest, FaultsLeaveNothing) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  for (int n = 1; n < 50; ++n) {
    ASSERT_TRUE(fault::arm("*:" + std::to_string(n) + ":" + std::to_string(ENOMEM)));
    auto mount = mount_blob(blob_, GetParam());
    fault::disarm();
    if (mount || mount.error().sys_errno == ENOTBLK) break;
    EXPECT_EQ(mount.error().sys_errno, ENOMEM);
    EXPECT_EQ(loops(), 0u);
  }
}

TEST_P(MountBlobTest, WhatIsNoBlobIsRefused) {
  EXPECT_FALSE(mount_blob(dir_ + "/none", GetParam()));
  ASSERT_TRUE(replace_file(dir_ + "/junk", std::string(1 << 16, 'j')));
  EXPECT_FALSE(mount_blob(dir_ + "/junk", GetParam()));
  EXPECT_FALSE(mount_blob(dir_, GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Backings, MountBlobTest,
                         testing::Values(BlobBacking::automatic, BlobBacking::file, BlobBacking::loop),
                         [](const auto& info) {
                           return info.param == BlobBacking::file   ? "file"
                                  : info.param == BlobBacking::loop ? "loop"
                                                                    : "automatic";
                         });

}  // namespace
}  // namespace isola::image
