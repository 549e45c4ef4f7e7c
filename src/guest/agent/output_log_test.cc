#include "guest/agent/output_log.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

namespace isola::guest {
namespace {

struct Seen {
  std::string bytes;
  uint64_t lost = 0;
};

Seen read_all(const OutputLog& log, OutputLog::Cursor& cursor, size_t max = 1000) {
  Seen seen;
  uint64_t at = cursor.seq;
  while (auto piece = log.next(cursor, max)) {
    if (piece->stream == Stream::gap)
      seen.lost += piece->lost;
    else
      EXPECT_EQ(piece->seq, at + seen.lost + seen.bytes.size());
    seen.bytes += piece->bytes;
  }
  return seen;
}

TEST(OutputLog, FollowsAcrossBlocksAndStreams) {
  OutputLog log;
  auto cursor = log.seek(0);
  std::string all;
  for (int i = 0; i < 30000; ++i) {
    std::string piece = std::to_string(i) + " ";
    log.append(i % 3 ? Stream::out : Stream::err, piece);
    all += piece;
  }
  EXPECT_EQ(log.end(), all.size());
  EXPECT_EQ(read_all(log, cursor).bytes, all);
  log.append(Stream::out, "more");
  EXPECT_EQ(read_all(log, cursor).bytes, "more");
  for (uint64_t from : {uint64_t{1}, uint64_t{65535}, uint64_t{65536}, uint64_t{100001}}) {
    auto c = log.seek(from);
    EXPECT_EQ(c.seq, from);
    EXPECT_EQ(read_all(log, c, 7).bytes, all.substr(from) + "more");
  }
  auto end = log.seek(UINT64_MAX);
  EXPECT_EQ(read_all(log, end).bytes, "");
}

TEST(OutputLog, DropsTheOldestAndSaysHowMuch) {
  OutputLog log(2);
  auto behind = log.seek(0);
  std::string all;
  for (int i = 0; i < 500000; ++i) all += static_cast<char>('a' + i % 26);
  log.append(Stream::out, all);
  EXPECT_GT(log.begin(), 0u);
  auto seen = read_all(log, behind);
  EXPECT_EQ(seen.lost, log.begin());
  EXPECT_EQ(seen.bytes, all.substr(log.begin()));
  EXPECT_LE(seen.bytes.size(), 3 * OutputLog::kBlock);
  auto late = log.seek(10);
  EXPECT_EQ(read_all(log, late).lost, log.begin() - 10);
  log.drop();
  EXPECT_EQ(log.end(), all.size());
  auto none = log.seek(5);
  EXPECT_EQ(read_all(log, none).lost, all.size() - 5);
}

// Nothing can be written to the file: as on a full disk.
class FullDisk {
 public:
  FullDisk() {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit none{0, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &none);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(OutputLog, AFullDiskTakesOnlyWhatNobodyNeeds) {
  OutputLog log(4);
  std::string all;
  auto append = [&](size_t bytes, uint64_t needed) {
    std::string piece;
    for (size_t i = 0; i < bytes; ++i) piece += static_cast<char>('a' + (all.size() + i) % 23);
    log.append(Stream::out, piece, needed);
    all += piece;
  };
  append(100'000, 0);
  EXPECT_FALSE(log.full());
  {
    FullDisk full;
    append(100'000, 70'000);
    EXPECT_TRUE(log.full());
    EXPECT_GT(log.begin(), 0u) << "kept what nobody needs";
    auto cursor = log.seek(70'000);
    auto seen = read_all(log, cursor);
    EXPECT_EQ(seen.lost, 0u);
    EXPECT_TRUE(seen.bytes == all.substr(70'000));
    append(100'000, OutputLog::kNobody);
    EXPECT_GE(log.begin(), 200'000u);
  }
  append(100'000, 270'000);
  EXPECT_FALSE(log.full());
  auto cursor = log.seek(270'000);
  EXPECT_TRUE(read_all(log, cursor).bytes == all.substr(270'000));
}

}  // namespace
}  // namespace isola::guest
