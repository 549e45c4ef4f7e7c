#include "http/gzip.h"

#include <gtest/gtest.h>

#include "http/testing.h"

namespace isola::http {

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

TEST(Deflater, WhatIsFedWholeCanBeReadAtOnce) {
  for (auto window : {Deflater::Window::large, Deflater::Window::small}) {
    Deflater pack(1, window);
    Inflater inflater;
    for (std::string text : {std::string("one"), std::string("two"), std::string(60'000, 'x')}) {
      auto bytes = pack.feed_all(text);
      ASSERT_TRUE(bytes);
      auto piece = inflater.feed(*bytes);
      ASSERT_TRUE(piece);
      EXPECT_EQ(piece->used, bytes->size());
      EXPECT_TRUE(piece->data == text);
    }
    EXPECT_FALSE(inflater.end());
    auto last = pack.finish();
    ASSERT_TRUE(last);
    ASSERT_TRUE(inflater.feed(*last));
    EXPECT_TRUE(inflater.end());
  }
}

TEST(Deflater, NothingIsAStreamToo) {
  Deflater pack;
  auto last = pack.finish();
  ASSERT_TRUE(last);
  EXPECT_FALSE(last->empty());
  EXPECT_EQ(unpacked(*last), "");
}

}  // namespace isola::http
