#include "image/warm.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "base/fd.h"

namespace isola::image {

namespace {

namespace fs = std::filesystem;

class Warm : public ::testing::Test {
 protected:
  Warm() {
    char name[] = "/var/tmp/isola-warm-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  ~Warm() override { fs::remove_all(root_); }

  std::string put(const std::string& path, size_t size) {
    std::string whole = root_ + "/" + path;
    fs::create_directories(fs::path(whole).parent_path());
    std::ofstream(whole) << std::string(size, 'x');
    Fd fd(::open(whole.c_str(), O_RDONLY | O_CLOEXEC));
    ::fsync(fd.get());
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    return whole;
  }
  // Of its pages, how many are in memory.
  static size_t resident(const std::string& path) {
    Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    size_t size = fs::file_size(path);
    void* at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    std::vector<unsigned char> pages((size + 4095) / 4096);
    ::mincore(at, size, pages.data());
    ::munmap(at, size);
    size_t count = 0;
    for (unsigned char page : pages) count += page & 1;
    return count;
  }
  std::string root_;
};

TEST_F(Warm, WhatAFirstCommandReadsIsThere) {
  std::vector<std::string> wanted = {put("usr/bin/bash", 1 << 20), put("usr/lib/x86_64-linux-gnu/libc.so.6", 1 << 20),
                                     put("etc/profile", 4096), put("usr/lib/python3.11/encodings/utf_8.py", 8192)};
  std::string other = put("usr/share/doc/large", 1 << 20);
  for (const auto& path : wanted)
    if (resident(path) != 0) GTEST_SKIP() << "this filesystem keeps its pages in memory";
  auto read = warm(root_, 64 << 20);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, (2u << 20) + 4096 + 8192);
  for (const auto& path : wanted) EXPECT_EQ(resident(path), (fs::file_size(path) + 4095) / 4096) << path;
  EXPECT_EQ(resident(other), 0u);
}

TEST_F(Warm, ReadsNoMoreThanItMay) {
  put("usr/bin/small", 4096);
  put("usr/bin/large", 1 << 20);
  auto read = warm(root_, 10'000);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, 10'000u);
}

TEST_F(Warm, ReadsOnlyWhatIsNotThere) {
  put("usr/bin/bash", 1 << 20);
  ASSERT_TRUE(warm(root_, 64 << 20));
  auto again = warm(root_, 64 << 20);
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, 0u);
}

TEST_F(Warm, TheCoreIsFoundThroughLinksThatStayInside) {
  std::string library = put("usr/lib/x86_64-linux-gnu/libc-2.so", 1 << 20), shell = put("usr/bin/bash", 1 << 20);
  std::string outside = put("other/secret", 1 << 20);
  fs::create_symlink("libc-2.so", root_ + "/usr/lib/x86_64-linux-gnu/libc.so.6");
  fs::create_directory_symlink("/usr/lib", root_ + "/lib");  // from inside: its own
  fs::create_directory_symlink("usr/bin", root_ + "/bin");
  fs::create_directories(root_ + "/etc");
  fs::create_symlink(outside, root_ + "/etc/profile");
  if (resident(shell) != 0) GTEST_SKIP() << "this filesystem keeps its pages in memory";
  warm_core(root_);
  EXPECT_EQ(resident(library), 256u);
  EXPECT_EQ(resident(shell), 256u);
  EXPECT_EQ(resident(outside), 0u);
}

TEST_F(Warm, FollowsNoLinksAndWaitsForNothing) {
  std::string outside = put("elsewhere/secret", 4096);
  fs::create_directories(root_ + "/usr/bin");
  fs::create_symlink(outside, root_ + "/usr/bin/link");
  fs::create_directory_symlink(root_ + "/elsewhere", root_ + "/bin");
  ASSERT_EQ(::mkfifo((root_ + "/usr/bin/pipe").c_str(), 0644), 0);
  auto read = warm(root_, 1 << 20);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, 0u);
}

TEST_F(Warm, LinksOnTheWayStayInside) {
  const std::string inside = root_ + "/inside";
  fs::create_directories(inside);
  std::string outside = put("outside/bin/program", 1 << 20), locale = put("outside/lib/locale/C.utf8/LC_TIME", 1 << 20);
  fs::create_directory_symlink(root_ + "/outside", inside + "/usr");
  if (resident(outside) != 0) GTEST_SKIP() << "this filesystem keeps its pages in memory";
  EXPECT_EQ(warm(inside, 64 << 20).value(), 0u);
  warm_core(inside);
  EXPECT_EQ(resident(outside), 0u);
  EXPECT_EQ(resident(locale), 0u);
}

TEST_F(Warm, TheCoreLooksAtNoMoreThanItMay) {
  fs::create_directories(root_ + "/etc/profile.d");
  for (int i = 0; i < 2500; ++i) std::ofstream(root_ + "/etc/profile.d/" + std::to_string(i));
  std::string later = put("home/user/file", 1 << 20);
  if (resident(later) != 0) GTEST_SKIP() << "this filesystem keeps its pages in memory";
  warm_core(root_);
  EXPECT_EQ(resident(later), 0u);
  fs::remove_all(root_ + "/etc/profile.d");
  warm_core(root_);
  EXPECT_EQ(resident(later), 256u);
}

TEST_F(Warm, WhatIsNotThereIsSaid) { EXPECT_FALSE(warm(root_ + "/none", 1)); }

}  // namespace

}  // namespace isola::image
