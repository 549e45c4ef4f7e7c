#include "base/hash/sha256.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "base/fd.h"
#include "base/file.h"

namespace isola {
namespace {

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256("abc").value(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("").value(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, OfAFile) {
  char name[] = "/tmp/isola-sha-XXXXXX";
  Fd fd(::mkstemp(name));
  ASSERT_TRUE(fd);
  std::string text(3 << 20, 'x');
  ASSERT_TRUE(write_all(fd.get(), text));
  EXPECT_EQ(sha256_file(name).value(), sha256(text).value());
  ::unlink(name);
  EXPECT_FALSE(sha256_file("/no/such/file"));
}

TEST(EqualSecrets, SameBytesOnly) {
  EXPECT_TRUE(equal_secrets("", ""));
  EXPECT_TRUE(equal_secrets("abc", std::string("abc")));
  EXPECT_FALSE(equal_secrets("abc", "abd"));
  EXPECT_FALSE(equal_secrets("abc", "ab"));
  EXPECT_FALSE(equal_secrets("abc", "abcd"));
}

}  // namespace
}  // namespace isola
