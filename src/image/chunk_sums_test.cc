#include "image/chunk_sums.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/fd.h"

namespace isola::image {

class ChunkSumsTest : public ::testing::Test {
 protected:
  ChunkSumsTest() : file_(::mkstemp(path_)) {}
  ~ChunkSumsTest() override { ::unlink(path_); }
  void put(const std::string& bytes, uint64_t at) {
    ASSERT_EQ(::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(bytes.size()));
  }
  char path_[32] = "/var/tmp/isola-sums-XXXXXX";
  Fd file_;
};

TEST_F(ChunkSumsTest, HolesCountAsTheZerosThatTheyAre) {
  const uint64_t size = 5 * kChunk + 1000;
  ASSERT_EQ(::ftruncate(file_.get(), static_cast<off_t>(size)), 0);
  put("in the middle of a chunk", 2 * kChunk + kChunk / 2);
  auto holes = sum_file(path_);
  ASSERT_TRUE(holes);
  for (uint64_t i = 0; i < 6; ++i)
    if (i != 2) put(std::string(i == 5 ? 1000 : kChunk, '\0'), i * kChunk);
  auto zeros = sum_file(path_);
  ASSERT_TRUE(zeros);
  EXPECT_EQ(holes->chunks, zeros->chunks);
  EXPECT_TRUE(check_file(path_, *holes));
  put("x", 4 * kChunk + 17);
  EXPECT_FALSE(check_file(path_, *holes));
}

TEST_F(ChunkSumsTest, AFileThatEndsTooEarlyIsNoHole) {
  ASSERT_EQ(::ftruncate(file_.get(), kChunk / 2), 0);
  EXPECT_FALSE(sum_chunk(file_.get(), 0, kChunk));
  EXPECT_FALSE(sum_chunk(file_.get(), kChunk, kChunk));
}

}  // namespace isola::image
