#include "dialect/e2b/entries.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace isola::e2b {
namespace {

guest::Stat stat(guest::FileType type, uint32_t mode) {
  guest::Stat out;
  out.type = type;
  out.mode = mode;
  return out;
}

TEST(Entries, PermissionsAsClientsKnowThem) {
  EXPECT_EQ(permissions(stat(guest::FileType::file, 0644)), "-rw-r--r--");
  EXPECT_EQ(permissions(stat(guest::FileType::dir, 0755)), "drwxr-xr-x");
  EXPECT_EQ(permissions(stat(guest::FileType::link, 0777)), "Lrwxrwxrwx");
  EXPECT_EQ(permissions(stat(guest::FileType::dir, 01777)), "dtrwxrwxrwx");
  EXPECT_EQ(permissions(stat(guest::FileType::file, 04755)), "urwxr-xr-x");
  EXPECT_EQ(permissions(stat(guest::FileType::chardev, 0600)), "Dcrw-------");
}

TEST(Entries, AFolderComesRightBeforeWhatIsInIt) {
  std::vector<std::string> paths = {"b", "a.txt", "a/z", "a", "a/b/c", "a-b", "a/b"};
  std::sort(paths.begin(), paths.end(), before);
  EXPECT_EQ(paths, (std::vector<std::string>{"a", "a/b", "a/b/c", "a/z", "a-b", "a.txt", "b"}));
}

}  // namespace
}  // namespace isola::e2b
