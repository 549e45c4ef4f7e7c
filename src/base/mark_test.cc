#include "base/mark.h"

#include <gtest/gtest.h>

#include <random>

namespace isola {
namespace {

std::string some_mark() {
  std::string mark;
  for (size_t i = 0; i < kMarkSize; ++i) mark += static_cast<char>(i * 37 + 11);
  return mark;
}

// What comes out of a stream that was cut into pieces of `size`: its bytes, with '|' where a mark was.
std::string through(const std::string& mark, const std::string& stream, size_t size) {
  MarkedStream marked(mark);
  std::string out;
  for (size_t at = 0; at < stream.size(); at += size)
    marked.feed(
        std::string_view(stream).substr(at, size), [&](std::string_view bytes) { out += bytes; }, [&] { out += '|'; });
  return out;
}

TEST(Mark, IsFoundHoweverTheStreamIsCut) {
  const std::string mark = some_mark();
  for (size_t size : {1, 2, 7, 8, 9, 31, 32, 33, 1000}) {
    // Of a mark that comes in pieces, less than eight bytes may have gone out before it could be told.
    std::string out = through(mark, "before" + mark + "after", size);
    size_t cut = out.find('|');
    ASSERT_NE(cut, std::string::npos) << size;
    EXPECT_EQ(out.substr(0, 6), "before") << size;
    EXPECT_LT(cut, 6u + 8) << size;
    EXPECT_EQ(mark.substr(0, cut - 6), out.substr(6, cut - 6)) << size;
    EXPECT_EQ(out.substr(cut + 1), "after") << size;
  }
}

TEST(Mark, NothingElseIsLostOrDelayedForLong) {
  const std::string mark = some_mark();
  // Beginnings of the mark, of every length, that go on differently.
  for (size_t length = 0; length < kMarkSize; ++length)
    for (size_t size : {1, 5, 8, 64}) {
      std::string stream = "x" + mark.substr(0, length) + "y" + mark.substr(0, length) + mark.substr(0, 3) + "z";
      EXPECT_EQ(through(mark, stream, size), stream) << length << " " << size;
    }
  // A message that ends like a short beginning of the mark is there at once.
  std::string message = "message" + mark.substr(0, 7);
  EXPECT_EQ(through(mark, message, 1000), message);
}

TEST(Mark, AMarkThatRepeatsItselfIsFound) {
  std::string mark(kMarkSize, 'a');
  mark.back() = 'b';
  EXPECT_EQ(through(mark, std::string(100, 'a') + "b!", 1000), std::string(100 - 31, 'a') + "|!");
  MarkFinder finder(mark);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(finder.find("a"), MarkFinder::npos);
  EXPECT_EQ(finder.find("b"), 1u);
}

TEST(Mark, RandomStreams) {
  std::mt19937 random(7);
  const std::string mark = some_mark();
  for (int round = 0; round < 300; ++round) {
    std::string stream, wanted;
    for (int part = 0; part < 20; ++part) {
      if (random() % 4 == 0) {
        stream += mark, wanted += '|';
        continue;
      }
      // Without '|', and never the whole mark.
      std::string bytes = random() % 2 ? mark.substr(0, random() % 32) + "." : std::string(random() % 50, '-');
      stream += bytes, wanted += bytes;
    }
    EXPECT_EQ(through(mark, stream, 100000), wanted) << round;
  }
}

}  // namespace
}  // namespace isola
