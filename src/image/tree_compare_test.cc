#include "image/tree_compare.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "base/fd.h"
#include "base/file.h"
#include "base/ids.h"
#include "image/spawn.h"
#include "image/tree.h"

namespace isola::image {
namespace {

class TreeCompare : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    dir_ = "/var/tmp/isola-compare-" + new_sandbox_id();
    ASSERT_TRUE(make_dirs(one_ = dir_ + "/one"));
    ASSERT_TRUE(make_dirs(one_ + "/folder/below"));
    ASSERT_TRUE(replace_file(one_ + "/file", "text", 0640));
    ASSERT_EQ(::link((one_ + "/file").c_str(), (one_ + "/folder/second").c_str()), 0);
    ASSERT_EQ(::symlink("file", (one_ + "/link").c_str()), 0);
    ASSERT_EQ(::mkfifo((one_ + "/pipe").c_str(), 0600), 0);
    ASSERT_EQ(::mknod((one_ + "/gone").c_str(), S_IFCHR, 0), 0);
    ASSERT_EQ(::lsetxattr((one_ + "/folder").c_str(), "trusted.overlay.opaque", "y", 1, 0), 0);
    Fd large(::open((one_ + "/large").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::ftruncate(large.get(), off_t{1} << 42), 0);
    ASSERT_EQ(::pwrite(large.get(), "here", 4, off_t{1} << 40), 4);
  }
  void TearDown() override {
    if (!dir_.empty()) (void)remove_tree(dir_);
  }
  // What is told of a copy to which that was done; empty: the same.
  std::string after(const std::function<void(const std::string& copy)>& change) {
    std::string copy = dir_ + "/copy";
    EXPECT_TRUE(remove_tree(copy));
    EXPECT_TRUE(run({.argv = {"cp", "-a", "--sparse=auto", one_, copy}, .what = "copying"}));
    if (change) change(copy);
    auto same = compare_trees(one_, copy);
    return same ? "" : same.error().message;
  }
  // Keeps the times as they are, so that something else has to tell the difference.
  static void quietly(const std::string& path, const std::function<void()>& change) {
    struct stat st;
    ASSERT_EQ(::lstat(path.c_str(), &st), 0);
    change();
    timespec times[2] = {st.st_atim, st.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  }
  std::string dir_, one_;
};

TEST_F(TreeCompare, CopiesAreTheSame) { EXPECT_EQ(after({}), ""); }

TEST_F(TreeCompare, EveryDifferenceIsNamed) {
  auto put = [](const std::string& path, off_t at, const char* text) {
    Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT_EQ(::pwrite(fd.get(), text, std::strlen(text), at), static_cast<ssize_t>(std::strlen(text)));
  };
  EXPECT_EQ(after([&](auto& c) { quietly(c + "/file", [&] { put(c + "/file", 1, "E"); }); }),
            "./file: has other contents");
  EXPECT_EQ(after([&](auto& c) { quietly(c + "/large", [&] { put(c + "/large", (off_t{1} << 41) + 7, "x"); }); }),
            "./large: has other contents");
  EXPECT_EQ(after([&](auto& c) { quietly(c + "/file", [&] { put(c + "/file", 4, "x"); }); }),
            "./file: has another size");
  EXPECT_EQ(after([](auto& c) { ::chmod((c + "/file").c_str(), 04640); }), "./file: is of another kind or mode");
  EXPECT_EQ(after([](auto& c) { EXPECT_EQ(::lchown((c + "/link").c_str(), 7, 0), 0); }), "./link: has another owner");
  EXPECT_EQ(after([](auto& c) {
              timespec times[2] = {{0, UTIME_OMIT}, {5, 6}};
              ::utimensat(AT_FDCWD, (c + "/pipe").c_str(), times, AT_SYMLINK_NOFOLLOW);
            }),
            "./pipe: has another time of change");
  EXPECT_EQ(after([](auto& c) { ::lsetxattr((c + "/folder").c_str(), "trusted.overlay.opaque", "n", 1, 0); }),
            "./folder: has other attributes");
  EXPECT_EQ(after([](auto& c) { ::lremovexattr((c + "/folder").c_str(), "trusted.overlay.opaque"); }),
            "./folder: has other attributes");
  EXPECT_EQ(
      after([](auto& c) { quietly(c + "/folder", [&] { EXPECT_EQ(::rmdir((c + "/folder/below").c_str()), 0); }); }),
      "./folder/below: is missing");
  EXPECT_EQ(after([](auto& c) { quietly(c, [&] { EXPECT_EQ(::mkdir((c + "/more").c_str(), 0755), 0); }); }),
            "./more: was not there");
  EXPECT_EQ(after([](auto& c) {
              quietly(c, [&] {
                quietly(c + "/link", [&] {
                  ::unlink((c + "/link").c_str());
                  EXPECT_EQ(::symlink("elif", (c + "/link").c_str()), 0);
                });
              });
            }),
            "./link: leads elsewhere");
  EXPECT_EQ(after([](auto& c) {
              quietly(c + "/folder", [&] {
                EXPECT_EQ(::unlink((c + "/folder/second").c_str()), 0);
                EXPECT_TRUE(run({.argv = {"cp", "-a", c + "/file", c + "/folder/second"}, .what = "copying"}));
              });
            }),
            "./folder/second: is not the same file as under its other names");
}

TEST_F(TreeCompare, SocketsMayBeMissing) {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  std::snprintf(name.sun_path, sizeof name.sun_path, "%s/socket", one_.c_str());
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  EXPECT_EQ(after([](auto& c) { quietly(c, [&] { EXPECT_EQ(::unlink((c + "/socket").c_str()), 0); }); }), "");
}

}  // namespace
}  // namespace isola::image
