#include "base/text_feed.h"

#include <gtest/gtest.h>

namespace isola {
namespace {

std::string all(Clean clean, std::initializer_list<std::string_view> pieces) {
  TextFeed feed(clean);
  std::string out;
  for (auto piece : pieces) out += feed.feed(piece);
  return out + feed.finish();
}

TEST(TextFeed, PlainTextStaysAsItIs) {
  EXPECT_EQ(all(Clean::no, {"a\tb\n\x1b[31mred"}), "a\tb\n\x1b[31mred");
  EXPECT_EQ(all(Clean::yes, {"a\tb\nš€😀"}), "a\tb\nš€😀");
}

TEST(TextFeed, ACharacterSplitAnywhereComesWhole) {
  std::string text = "x😀€š";
  for (size_t i = 0; i <= text.size(); ++i)
    for (size_t j = i; j <= text.size(); ++j)
      EXPECT_EQ(all(Clean::no, {text.substr(0, i), text.substr(i, j - i), text.substr(j)}), text) << i << " " << j;
}

TEST(TextFeed, WhatIsNoTextIsReplaced) {
  EXPECT_EQ(all(Clean::no, {"a\xff"
                            "b"}),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(all(Clean::no, {"\xc0\xaf"}), "\xef\xbf\xbd\xef\xbf\xbd");                  // overlong
  EXPECT_EQ(all(Clean::no, {"\xed\xa0\x80"}), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // a surrogate
  EXPECT_EQ(all(Clean::no, {"\xe2\x82"}), "\xef\xbf\xbd");                              // cut at the end
  EXPECT_EQ(all(Clean::no, {"\xe2\x82z"}), "\xef\xbf\xbdz");
}

TEST(TextFeed, TerminalsAreNotSteered) {
  EXPECT_EQ(all(Clean::yes, {"\x1b[31mred\x1b[0m"}), "red");
  EXPECT_EQ(all(Clean::yes, {"\x1b[3", "1mred"}), "red");
  EXPECT_EQ(all(Clean::yes, {"\x1b]0;title\x07text"}), "text");
  EXPECT_EQ(all(Clean::yes, {"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\"}), "link");
  EXPECT_EQ(all(Clean::yes, {"\x1b]0;never closed\nnext line"}), "\nnext line");
  EXPECT_EQ(all(Clean::yes, {"\x1b(Bx\x1b"
                             "cy"}),
            "xy");
  EXPECT_EQ(all(Clean::yes, {"progress 1\rprogress 2\b\x07"}), "progress 1progress 2");
}

TEST(TextFeed, NothingHiddenOrTurnedRound) {
  EXPECT_EQ(all(Clean::yes, {"a\u202eb\u2066c\u200bd\ufeff"}), "abcd");
  EXPECT_EQ(all(Clean::yes, {"x\U000E0041\U000E0042y"}), "xy");
}

}  // namespace
}  // namespace isola
