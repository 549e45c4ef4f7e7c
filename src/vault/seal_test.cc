#include "vault/seal.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

namespace isola::vault {
namespace {

// What the kernel says of the mapping that holds this address.
std::string flags_of(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool here = false;
  while (std::getline(maps, line)) {
    unsigned long from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2)
      here = reinterpret_cast<unsigned long>(address) >= from && reinterpret_cast<unsigned long>(address) < to;
    else if (here && line.starts_with("VmFlags:"))
      return line + " ";
  }
  return {};
}

TEST(Secret, StandsInLockedMemoryThatIsNeitherDumpedNorInherited) {
  Secret secret("hunter2");
  EXPECT_EQ(secret.view(), "hunter2");
  std::string flags = flags_of(secret.view().data());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which lock nothing, without a word
  EXPECT_NE(flags.find(" lo "), std::string::npos) << flags;
#endif
  EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
  EXPECT_NE(flags.find(" wf "), std::string::npos) << flags;
  pid_t child = ::fork();
  if (child == 0) ::_exit(secret.view() == std::string_view("\0\0\0\0\0\0\0", 7) ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "a fork sees the value";
}

TEST(Secret, MovesAndIsWipedWhenItGoes) {
  Secret first("one");
  const char* where = first.view().data();
  Secret second = std::move(first);
  EXPECT_TRUE(first.empty());
  EXPECT_EQ(second.view().data(), where);
  second = Secret("two");
  EXPECT_EQ(second.view(), "two");
  EXPECT_TRUE(Secret("").empty());
  EXPECT_EQ(second.copy().view(), "two");
  std::string text = "gone soon";
  std::string_view seen(text.data(), text.size());
  wipe(text);
  EXPECT_EQ(seen, std::string_view("\0\0\0\0\0\0\0\0\0", 9));
}

TEST(Seal, OnlyTheHolderOfTheKeyOpens) {
  auto pair = KeyPair::make().value(), other = KeyPair::make().value();
  for (std::string value :
       {std::string(), std::string("hunter2"), std::string(16 << 10, 'x'), std::string("a\0b", 3)}) {
    auto sealed = seal(pair.open_key(), value).value();
    EXPECT_EQ(sealed.size(), value.size() + kSealBytes);
    if (value.size() > 3) {
      EXPECT_EQ(sealed.find(value), std::string::npos);
    }
    EXPECT_NE(sealed, seal(pair.open_key(), value).value()) << "equal values look alike";
    EXPECT_EQ(open_sealed(pair, sealed).value().view(), value);
    EXPECT_TRUE(is_sealed_to(pair.open_key(), sealed));
    EXPECT_FALSE(is_sealed_to(other.open_key(), sealed));
    EXPECT_EQ(open_sealed(other, sealed).error().code, Code::not_found);
  }
}

TEST(Seal, EveryChangedByteIsSeen) {
  auto pair = KeyPair::make().value();
  auto sealed = seal(pair.open_key(), "hunter2").value();
  for (size_t i = 0; i < sealed.size(); ++i) {
    auto changed = sealed;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(open_sealed(pair, changed)) << i;
    EXPECT_FALSE(open_sealed(pair, sealed.substr(0, i))) << i;
  }
}

TEST(KeyPair, ComesBackFromItsSecretHalf) {
  auto pair = KeyPair::make().value();
  auto again = KeyPair::from(pair.secret_key().copy()).value();
  EXPECT_EQ(again.open_key(), pair.open_key());
  EXPECT_EQ(open_sealed(again, seal(pair.open_key(), "v").value()).value().view(), "v");
  EXPECT_EQ(KeyPair::from(Secret("short")).error().code, Code::corrupt);
}

TEST(KeyPair, DerivedKeysFollowFromKeyPurposeAndSubject) {
  auto pair = KeyPair::make().value();
  auto one = pair.derive("ca", "i1");
  EXPECT_EQ(one.size(), kKeyBytes);
  EXPECT_EQ(one.view(), KeyPair::from(pair.secret_key().copy()).value().derive("ca", "i1").view());
  EXPECT_NE(one.view(), pair.derive("ca", "i2").view());
  EXPECT_NE(one.view(), pair.derive("leaf", "i1").view());
  EXPECT_NE(pair.derive("ab", "c").view(), pair.derive("a", "bc").view());
  EXPECT_NE(one.view(), KeyPair::make().value().derive("ca", "i1").view());
  EXPECT_NE(one.view(), pair.secret_key().view());
}

TEST(Base64, BothWays) {
  for (std::string bytes :
       {std::string(), std::string("a"), std::string("ab"), std::string("abc"), std::string("\xff\0\x10", 3)})
    EXPECT_EQ(from_base64(to_base64(bytes)).value(), bytes);
  EXPECT_EQ(to_base64("abcd"), "YWJjZA==");
  for (const char* odd : {"YWJjZA", "YWJjZA==x", "Y*==", "YWJj ZA=="}) EXPECT_FALSE(from_base64(odd)) << odd;
}

}  // namespace
}  // namespace isola::vault
