#include "image/unpack/layer.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/fd.h"
#include "base/file.h"
#include "image/tree.h"

namespace isola::image {
namespace {

struct Entry {
  std::string path;
  mode_t type = AE_IFREG;
  std::string content = {};  // of a link: where to
  uint32_t owner = 0;
  std::string attribute = {};
  bool hard = false;
  int64_t size = -1;  // as it says; -1: that of the content. What is missing is a hole at its end.
};

// A layer, packed with gzip.
Fd packed(const std::vector<Entry>& entries) {
  Fd file(::memfd_create("layer", MFD_CLOEXEC));
  archive* out = ::archive_write_new();
  ::archive_write_set_format_pax(out);
  ::archive_write_add_filter_gzip(out);
  EXPECT_EQ(::archive_write_open_fd(out, file.get()), ARCHIVE_OK);
  for (const auto& one : entries) {
    archive_entry* entry = ::archive_entry_new();
    ::archive_entry_set_pathname(entry, one.path.c_str());
    ::archive_entry_set_filetype(entry, one.type);
    ::archive_entry_set_perm(entry, one.type == AE_IFDIR ? 0755 : 0644);
    ::archive_entry_set_uid(entry, one.owner);
    ::archive_entry_set_gid(entry, one.owner);
    if (one.hard) ::archive_entry_set_hardlink(entry, one.content.c_str());
    if (one.type == AE_IFLNK) ::archive_entry_set_symlink(entry, one.content.c_str());
    const bool has_bytes = one.type == AE_IFREG && !one.hard;
    if (has_bytes) ::archive_entry_set_size(entry, one.size >= 0 ? one.size : static_cast<int64_t>(one.content.size()));
    if (has_bytes && one.size >= 0)
      ::archive_entry_sparse_add_entry(entry, 0, static_cast<int64_t>(one.content.size()));
    if (!one.attribute.empty()) ::archive_entry_xattr_add_entry(entry, one.attribute.c_str(), "v", 1);
    EXPECT_EQ(::archive_write_header(out, entry), ARCHIVE_OK) << one.path << ::archive_error_string(out);
    if (has_bytes) ::archive_write_data(out, one.content.data(), one.content.size());
    ::archive_entry_free(entry);
  }
  ::archive_write_close(out);
  ::archive_write_free(out);
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

class LayerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    char name[] = "/var/tmp/isola-layer-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    root_ = name;
  }
  void TearDown() override {
    if (!root_.empty()) (void)remove_tree(root_);
  }
  // In a process that has the tree as its root; empty: it went well.
  std::string apply(const std::vector<Entry>& entries, Amount most = {1 << 20, 1000}) {
    Fd layer = packed(entries), said(::memfd_create("said", MFD_CLOEXEC));
    pid_t pid = ::fork();
    if (pid == 0) {
      if (::chdir(root_.c_str()) < 0 || ::chroot(".") < 0 || ::chdir("/") < 0) ::_exit(2);
      auto done = apply_layer(layer.get(), most);
      if (!done) (void)write_all(said.get(), std::string(to_string(done.error().code)) + ": " + done.error().message);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    return read_file("/proc/self/fd/" + std::to_string(said.get())).value_or("unreadable");
  }
  std::string text(const std::string& path) { return read_file(root_ + path).value_or("(nothing)"); }
  bool there(const std::string& path) {
    struct stat st;
    return ::lstat((root_ + path).c_str(), &st) == 0;
  }
  std::string root_;
};

TEST_F(LayerTest, FilesFoldersLinksAndOwners) {
  ASSERT_EQ(apply({{"a/", AE_IFDIR, "", 7},
                   {"./a/f", AE_IFREG, "one", 1000},
                   {"/b/deep/g", AE_IFREG, "two"},
                   {"l", AE_IFLNK, "a/f"},
                   {"h", AE_IFREG, "a/f", 1000, "", true}}),
            "");
  EXPECT_EQ(text("/a/f"), "one");
  EXPECT_EQ(text("/b/deep/g"), "two");
  struct stat st, other;
  ASSERT_EQ(::lstat((root_ + "/a/f").c_str(), &st), 0);
  EXPECT_EQ(st.st_uid, 1000u);
  ASSERT_EQ(::lstat((root_ + "/h").c_str(), &other), 0);
  EXPECT_EQ(st.st_ino, other.st_ino);
  ASSERT_EQ(::lstat((root_ + "/l").c_str(), &st), 0);
  EXPECT_TRUE(S_ISLNK(st.st_mode));
}

TEST_F(LayerTest, WhiteoutsTakeAwayWhatIsBelow) {
  ASSERT_EQ(apply({{"a/x", AE_IFREG, "1"}, {"a/y", AE_IFREG, "2"}, {"b/z", AE_IFREG, "3"}, {"c", AE_IFREG, "4"}}), "");
  ASSERT_EQ(apply({{"a/.wh.x"}, {"b/new", AE_IFREG, "5"}, {"b/.wh..wh..opq"}, {"c/d", AE_IFREG, "6"}}), "");
  EXPECT_FALSE(there("/a/x"));
  EXPECT_EQ(text("/a/y"), "2");
  EXPECT_FALSE(there("/b/z")) << "an opaque folder hides all that was there";
  EXPECT_EQ(text("/b/new"), "5") << "but for what the same layer brought";
  EXPECT_EQ(text("/c/d"), "6") << "a folder in the place of a file";
  EXPECT_FALSE(there("/a/.wh.x"));
}

TEST_F(LayerTest, AFileWithTwoNamesIsNotWrittenThrough) {
  ASSERT_EQ(apply({{"a", AE_IFREG, "old"}, {"b", AE_IFREG, "a", 0, "", true}}), "");
  ASSERT_EQ(apply({{"a", AE_IFREG, "new"}}), "");
  EXPECT_EQ(text("/a"), "new");
  EXPECT_EQ(text("/b"), "old");
}

// Links lead where they lead inside, and nothing leads out.
TEST_F(LayerTest, StaysInTheTree) {
  const std::string outside = root_ + "-outside";
  ASSERT_TRUE(make_dirs(outside));
  ASSERT_EQ(apply({{"out", AE_IFLNK, outside}, {"etc/", AE_IFDIR}, {"in", AE_IFLNK, "/etc"}, {"in/f", AE_IFREG, "x"}}),
            "");
  EXPECT_EQ(text("/etc/f"), "x");
  EXPECT_NE(apply({{"out/f", AE_IFREG, "x"}}).substr(0, 2), "(n");
  EXPECT_EQ(list_dir(outside).value().size(), 0u);
  ASSERT_TRUE(remove_tree(outside));
  EXPECT_TRUE(apply({{"../x", AE_IFREG, "x"}}).starts_with("corrupt: ")) << "a name that leads upwards";
  EXPECT_TRUE(apply({{"h", AE_IFREG, "../../etc/passwd", 0, "", true}}).starts_with("corrupt: "));
}

TEST_F(LayerTest, WhatASandboxMustNotHave) {
  ASSERT_EQ(apply({{"dev/sda", AE_IFBLK},
                   {"dev/mem", AE_IFCHR},
                   {"d/", AE_IFDIR, "", 0, "trusted.overlay.opaque"},
                   {"f", AE_IFREG, "x", 0, "user.mine"}}),
            "");
  EXPECT_FALSE(there("/dev/sda"));
  EXPECT_FALSE(there("/dev/mem"));
  char value[8];
  EXPECT_LT(::lgetxattr((root_ + "/d").c_str(), "trusted.overlay.opaque", value, sizeof value), 0);
  EXPECT_EQ(::lgetxattr((root_ + "/f").c_str(), "user.mine", value, sizeof value), 1);
  EXPECT_TRUE(apply({{"f", AE_IFREG, "x", 70000}}).starts_with("unsupported: ")) << "an id that no sandbox has";
}

TEST_F(LayerTest, Bounds) {
  EXPECT_TRUE(apply({{"f", AE_IFREG, std::string(2000, 'x')}}, {1000, 10}).starts_with("exhausted: "));
  EXPECT_TRUE(apply({{"a"}, {"b"}, {"c"}}, {1000, 2}).starts_with("exhausted: "));
  EXPECT_TRUE(apply({{"a/b/c/d/e/f", AE_IFREG, "x"}}, {1000, 4}).starts_with("exhausted: ")) << "parents are folders";
  Fd nonsense(::memfd_create("nonsense", MFD_CLOEXEC));
  ASSERT_TRUE(write_all(nonsense.get(), std::string(5000, 'q')));
  ::lseek(nonsense.get(), 0, SEEK_SET);
  EXPECT_EQ(apply_layer(nonsense.get(), {1000, 10}).error().code, Code::corrupt);
}

// A few bytes that claim to be terabytes: a tree is written out in full later.
TEST_F(LayerTest, HolesCount) {
  Entry sparse{.path = "f", .content = "begin", .size = 4000};
  ASSERT_EQ(apply({sparse}, {4000, 10}), "");
  struct stat st;
  ASSERT_EQ(::lstat((root_ + "/f").c_str(), &st), 0);
  EXPECT_EQ(st.st_size, 4000);
  sparse.path = "g";
  sparse.size = int64_t{8} << 40;
  EXPECT_TRUE(apply({sparse}, {1 << 20, 10}).starts_with("exhausted: "));
  EXPECT_FALSE(there("/g"));
}

TEST_F(LayerTest, PipesStay) {
  ASSERT_EQ(apply({{"p", AE_IFIFO}, {"q", AE_IFREG, "x"}}), "");
  struct stat st;
  ASSERT_EQ(::lstat((root_ + "/p").c_str(), &st), 0);
  EXPECT_TRUE(S_ISFIFO(st.st_mode));
}

// The program, while it waits for its first byte: a stranger's names must not take the machine's memory.
TEST_F(LayerTest, TheProgramHasLittleMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need all of it";
#endif
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "isola-unpack";
  ASSERT_TRUE(std::filesystem::exists(program));
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Fd from(ends[0]), to(ends[1]);
  pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(from.get(), STDIN_FILENO);
    ::execl(program.c_str(), "isola-unpack", root_.c_str(), "1000", "10", nullptr);
    ::_exit(127);
  }
  const std::string limits = "/proc/" + std::to_string(pid) + "/limits";
  bool bounded = false;
  for (int i = 0; i < 2000 && !bounded; ++i, ::poll(nullptr, 0, 5)) {
    const std::string text = read_file(limits).value_or("");
    const size_t at = text.find("Max address space");
    bounded = at != text.npos && text.substr(at + 17, 30).find("2147483648") != std::string::npos;
  }
  EXPECT_TRUE(bounded);
  to.reset();
  int status = 0;
  ::waitpid(pid, &status, 0);
}

}  // namespace
}  // namespace isola::image
