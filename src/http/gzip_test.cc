#include "http/gzip.h"

#include <gtest/gtest.h>

namespace isola::http {

namespace {

std::string unpacked(std::string_view packed) {
  Inflater inflater;
  std::string out;
  for (;;) {
    auto piece = inflater.feed(packed);
    if (!piece) return "not gzip";
    out += piece->data;
    packed.remove_prefix(piece->used);
    if (piece->used == 0 && piece->data.empty()) break;
  }
  return inflater.end() ? out : "not whole";
}

}  // namespace

TEST(Deflater, PiecesMakeOneStream) {
  std::string text, packed;
  Deflater pack;
  uint64_t state = 1;
  for (size_t size : {0u, 1u, 100'000u, 7u, 300'000u}) {
    std::string piece(size, 'a');
    for (size_t i = 0; i < size / 2; i++) {  // half of it does not pack
      state = state * 6364136223846793005u + 1442695040888963407u;
      piece[i] = static_cast<char>(state >> 56);
    }
    auto bytes = pack.feed(piece);
    ASSERT_TRUE(bytes);
    packed += *bytes;
    text += piece;
  }
  EXPECT_EQ(unpacked(packed), "not whole");
  auto last = pack.finish();
  ASSERT_TRUE(last);
  packed += *last;
  EXPECT_EQ(unpacked(packed), text);
  EXPECT_LT(packed.size(), text.size());
}

TEST(Deflater, NothingIsAStreamToo) {
  Deflater pack;
  auto last = pack.finish();
  ASSERT_TRUE(last);
  EXPECT_FALSE(last->empty());
  EXPECT_EQ(unpacked(*last), "");
}

}  // namespace isola::http
