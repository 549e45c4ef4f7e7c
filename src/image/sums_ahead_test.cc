#include "image/sums_ahead.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "base/file.h"
#include "image/chunk_sums.h"

namespace isola::image {
namespace {

namespace fs = std::filesystem;

class SumsAheadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-sums-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  Fd append_to(const std::string& name) {
    return Fd(::open((folder_ + "/" + name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  }
  std::string bytes(size_t count) {
    std::string out(count, 0);
    for (char& c : out) c = static_cast<char>(random_());
    return out;
  }

  std::string folder_;
  std::minstd_rand random_;
};

TEST_F(SumsAheadTest, SaysWhatReadingItAllSays) {
  SumsAhead ahead(folder_, "pages-");
  ahead.start();
  for (const char* name : {"pages-1.img", "pages-2.img", "core-1.img"}) {
    Fd file = append_to(name);
    // In pieces that fit no chunk.
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(write_all(file.get(), bytes(100'003)));
  }
  auto known = ahead.finish();
  EXPECT_FALSE(known.contains("core-1.img"));
  for (const char* name : {"pages-1.img", "pages-2.img"}) {
    const std::string path = folder_ + "/" + name;
    auto whole = sum_file(path), rest = sum_file(path, known[name]);
    ASSERT_TRUE(whole && rest);
    EXPECT_EQ(whole->chunks.size(), 5u);
    EXPECT_LE(known[name].size(), 4u) << "the last one is not a whole chunk";
    EXPECT_EQ(*whole, *rest);
  }
}

TEST_F(SumsAheadTest, GetsAheadOfTheEnd) {
  SumsAhead ahead(folder_, "pages-");
  Fd file = append_to("pages-1.img");
  ASSERT_TRUE(write_all(file.get(), bytes(3 * kChunk + 1)));
  ahead.start();
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (ahead.chunks() < 3 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  EXPECT_EQ(ahead.chunks(), 3u);
  ASSERT_TRUE(write_all(file.get(), bytes(kChunk)));
  while (ahead.chunks() < 4 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  EXPECT_EQ(ahead.chunks(), 4u) << "it is not told of what is written later";
  auto whole = sum_file(folder_ + "/pages-1.img");
  ASSERT_TRUE(whole);
  whole->chunks.pop_back();
  EXPECT_EQ(ahead.finish()["pages-1.img"], whole->chunks);
}

TEST_F(SumsAheadTest, FollowsFilesThatComeLaterAndReadsTheFolderForNothingElse) {
  SumsAhead ahead(folder_, "pages-");
  ahead.start();
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  auto chunks = [&](size_t wanted) {
    while (ahead.chunks() < wanted && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    return ahead.chunks();
  };
  size_t wanted = 0;
  for (const char* name : {"pages-1.img", "pages-2.img"}) {
    Fd file = append_to(name);
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(write_all(file.get(), bytes(kChunk)));
      ASSERT_EQ(chunks(++wanted), wanted) << name;
    }
  }
  EXPECT_LE(ahead.lists(), 3u) << "at the start, and when a file came";
}

TEST_F(SumsAheadTest, AFileThatBecameShorterIsAnError) {
  SumsAhead ahead(folder_, "pages-");
  Fd file = append_to("pages-1.img");
  ASSERT_TRUE(write_all(file.get(), bytes(kChunk)));
  auto whole = sum_file(folder_ + "/pages-1.img");
  ASSERT_TRUE(whole);
  ASSERT_EQ(::ftruncate(file.get(), 10), 0);
  auto shorter = sum_file(folder_ + "/pages-1.img", whole->chunks);
  ASSERT_FALSE(shorter);
  EXPECT_EQ(shorter.error().code, Code::corrupt);
}

TEST_F(SumsAheadTest, WithoutAThreadItKnowsNothing) {
  SumsAhead never(folder_, "pages-");
  EXPECT_TRUE(never.finish().empty());
  SumsAhead nowhere(folder_ + "/not-there", "pages-");
  nowhere.start();
  EXPECT_TRUE(nowhere.finish().empty());
}

}  // namespace
}  // namespace isola::image
