#include "image/sync_all.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kernel/fault.h"

namespace isola::image {
namespace {

namespace fs = std::filesystem;

TEST(SyncAll, FilesAndFoldersAndTheFirstThatFails) {
  char name[] = "/tmp/isola-sync-XXXXXX";
  ASSERT_TRUE(::mkdtemp(name));
  const std::string folder = name;
  std::vector<std::string> paths = {folder};
  for (int i = 0; i < 40; ++i) {
    paths.push_back(folder + "/" + std::to_string(i));
    std::ofstream(paths.back()) << i;
  }
  EXPECT_TRUE(sync_all({}));
  EXPECT_TRUE(sync_all(paths));
  paths.insert(paths.begin() + 7, folder + "/gone");
  auto failed = sync_all(paths);
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("/gone"), std::string::npos) << failed.error().message;
  fs::remove_all(folder);
}

}  // namespace
}  // namespace isola::image
