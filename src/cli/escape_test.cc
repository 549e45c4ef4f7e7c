#include "cli/escape.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

std::string feed_slowly(EscapeScanner& scanner, std::string_view typed) {
  std::string out;
  for (char c : typed) out += scanner.feed(std::string_view(&c, 1));
  return out;
}

TEST(Escape, LeavesOnlyAtTheBeginningOfALine) {
  for (std::string typed : {"~.", "ls\r~.", "ls\n~.more"}) {
    EscapeScanner whole, slow;
    std::string before = typed.substr(0, typed.find('~'));
    EXPECT_EQ(whole.feed(typed), before);
    EXPECT_TRUE(whole.left()) << typed;
    EXPECT_EQ(feed_slowly(slow, typed), before);
    EXPECT_TRUE(slow.left()) << typed;
  }
  EscapeScanner scanner;
  EXPECT_EQ(feed_slowly(scanner, "cd a~.\r"), "cd a~.\r");
  EXPECT_FALSE(scanner.left());
}

TEST(Escape, OtherTildesPass) {
  EscapeScanner scanner;
  EXPECT_EQ(feed_slowly(scanner, "~/bin\r"), "~/bin\r");
  EXPECT_EQ(feed_slowly(scanner, "~~.\r"), "~.\r");
  EXPECT_EQ(feed_slowly(scanner, "~\r~."), "~\r");
  EXPECT_TRUE(scanner.left());
}

}  // namespace
}  // namespace isola::cli
