#include "base/hash/hmac.h"

#include <gtest/gtest.h>

namespace isola {
namespace {

// RFC 4231, test cases 1 and 2.
TEST(Hmac, KnownAnswers) {
  EXPECT_EQ(to_hex(hmac_sha256(std::string(20, '\x0b'), "Hi There").value()),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?").value()),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Hmac, Hex) {
  EXPECT_EQ(from_hex("00ff7a").value(), std::string("\0\xff\x7a", 3));
  EXPECT_EQ(to_hex(std::string("\0\xff\x7a", 3)), "00ff7a");
  for (const char* bad : {"0", "0g", "FF", "abc"}) EXPECT_FALSE(from_hex(bad)) << bad;
}

TEST(Hmac, WipedIsEmpty) {
  std::string secret = "hunter2";
  wipe(secret);
  EXPECT_TRUE(secret.empty());
}

}  // namespace
}  // namespace isola
