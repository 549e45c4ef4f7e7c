#include "scan/shapes.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace isola::scan {
namespace {

// Nothing in this file may look like a token: they are put together here.
std::string made(const Shape& shape) {
  std::mt19937 random(3);
  std::string_view letters = shape.alphabet == Alphabet::hex ? "0123456789abcdef"
                             : shape.alphabet == Alphabet::upper
                                 ? "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
                                 : "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::string token(shape.prefix);
  for (int i = 0; i < shape.least; ++i) token += letters[random() % letters.size()];
  if (shape.prefix == "SG.") token[25] = '.';
  if (shape.prefix == "eyJ") token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + token.substr(5, 43);
  return token;
}

TEST(Shapes, EachIsFoundAndNothingElse) {
  for (size_t i = 0; i < shapes().size(); ++i) {
    std::string text = "key = \"" + made(shapes()[i]) + "\"\n";
    auto hits = find_shapes(text);
    ASSERT_EQ(hits.size(), 1u) << shapes()[i].what << ": " << text;
    EXPECT_EQ(shapes()[hits[0].shape].what, shapes()[i].what);
    EXPECT_EQ(hits[0].offset, 7u);
    EXPECT_EQ(hits[0].length, text.size() - 9);
  }
  EXPECT_GE(shapes().size(), 30u);
}

TEST(Shapes, ExamplesAndOtherWordsAreNone) {
  const Shape* github = nullptr;
  for (const auto& shape : shapes())
    if (shape.prefix == "ghp_") github = &shape;
  ASSERT_TRUE(github);
  std::string token = made(*github);
  EXPECT_EQ(find_shapes(token).size(), 1u);
  EXPECT_TRUE(find_shapes("ghp_" + std::string(36, 'x')).empty());      // no chance in it
  EXPECT_TRUE(find_shapes(token.substr(0, token.size() - 1)).empty());  // too short
  EXPECT_TRUE(find_shapes(token + "A").empty());                        // too long
  EXPECT_TRUE(find_shapes("some" + token).empty());                     // part of another word
  EXPECT_TRUE(find_shapes("token: " + token + "  # isola-scan: allow").empty());
  EXPECT_EQ(find_shapes("# isola-scan: allow\n" + token).size(), 1u);  // another line
  EXPECT_TRUE(find_shapes("").empty());
}

}  // namespace
}  // namespace isola::scan
