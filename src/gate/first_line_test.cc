#include "gate/first_line.h"

#include <gtest/gtest.h>

#include <string>

#include "gate/http1_head.h"

namespace isola::gate {
namespace {

using Likeness = FirstLine::Likeness;

TEST(FirstLine, ToldApartInWhateverPieces) {
  const std::pair<std::string, Likeness> lines[] = {
      {"GET ", Likeness::yes},
      {"GET", Likeness::unknown},
      {"GET\n", Likeness::no},
      {"get /x\n", Likeness::no},
      {"\r\n\n\r\nPOST\t", Likeness::yes},
      {"\r\n\r\n", Likeness::unknown},
      {"OPTIONSS * x\r\n", Likeness::no},
      {"LONGERTHANANYMETHOD / HTTP/1.1", Likeness::yes},
      {"FROBNICATE /HTHTHTTP/", Likeness::yes},
      {"FROBNICATE /HTTPHTTP/", Likeness::yes},
      {"FROBNICATE / hTtP/", Likeness::yes},
      {"FROBNICATE / HTTP\n/", Likeness::no},
      {"FROBNICATE / HTTP 1.1", Likeness::unknown},
      {"FROBNICATE / HTT", Likeness::unknown},
      {" / HTTP/1.1", Likeness::yes},
      {"PRI * HTTP/2.0\r\n", Likeness::yes},
      {"hello there\r\n", Likeness::no},
      {"SSH-2.0-x\r\n", Likeness::no},
      {"A@B / HTTP/1.1", Likeness::no},
      {"HTTP/1.1 GET ", Likeness::no},
      {std::string("A\0 / HTTP/1.1", 13), Likeness::no},
  };
  for (const auto& [line, wanted] : lines) {
    for (size_t piece = 1; piece <= line.size(); ++piece) {
      FirstLine reader;
      Likeness said = Likeness::unknown;
      for (size_t at = 0; at < line.size(); at += piece) said = reader.feed(std::string_view(line).substr(at, piece));
      EXPECT_EQ(said, wanted) << line << " in pieces of " << piece;
    }
  }
}

// One that does not end is read as a request, which refuses it: also one of nothing but empty lines.
TEST(FirstLine, ALineHasAnEnd) {
  for (const char* begin : {"\r\n", "A", " "}) {
    const std::string one = begin;
    FirstLine reader;
    size_t size = 0;
    while (size < kMaxHead) {
      ASSERT_EQ(reader.feed(one), Likeness::unknown) << one << size;
      size += one.size();
    }
    EXPECT_EQ(reader.feed(one), Likeness::yes) << one;
    EXPECT_EQ(reader.feed("\n"), Likeness::yes) << one;
  }
}

}  // namespace
}  // namespace isola::gate
