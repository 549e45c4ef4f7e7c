#include "cli/code_printer.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

TEST(CodePrinter, SaysHowTheCellEnded) {
  struct Case {
    const char* status;
    int code;
  };
  for (const Case& one : {Case{"ok", 0}, Case{"error", 1}, Case{"timeout", 124}, Case{"kernel_died", 1}}) {
    CodePrinter printer({});
    ASSERT_TRUE(printer.feed("{\"type\":\"start\",\"context\":\"python\"}\n{\"type\":\"end\",\"sta"));
    EXPECT_EQ(printer.exit_code(), 125) << "a line that is not whole yet says nothing";
    ASSERT_TRUE(printer.feed("tus\":\"" + std::string(one.status) + "\"}\n"));
    EXPECT_EQ(printer.exit_code(), one.code) << one.status;
    EXPECT_EQ(printer.context(), "python");
  }
}

TEST(CodePrinter, WhatIsNoJsonIsAnError) {
  CodePrinter printer({});
  EXPECT_FALSE(printer.feed("<html>\n"));
}

TEST(CodePrinter, PicturesInPieces) {
  EXPECT_EQ(inline_png(Images::none, "abcd"), "");
  EXPECT_EQ(inline_png(Images::iterm, "ab\ncd"), "\033]1337;File=inline=1:abcd\a");
  EXPECT_EQ(inline_png(Images::kitty, "abcd\n"), "\033_Ga=T,f=100,m=0;abcd\033\\");
  std::string two = inline_png(Images::kitty, std::string(5000, 'x'));
  EXPECT_EQ(two,
            "\033_Ga=T,f=100,m=1;" + std::string(4096, 'x') + "\033\\\033_Gm=0;" + std::string(904, 'x') + "\033\\");
}

}  // namespace
}  // namespace isola::cli
