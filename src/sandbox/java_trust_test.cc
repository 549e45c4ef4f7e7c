#include "sandbox/java_trust.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "base/file.h"
#include "gate/authority.h"
#include "store/test_store.h"

namespace isola::sandbox {
namespace {

// By Java's own program, which checks the sum, too.
TEST(JavaTrust, JavaReadsIt) {
  if (std::system("keytool -help >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no keytool";
  auto first = gate::Authority::make(std::string(32, 'a'), "first").value();
  auto second = gate::Authority::make(std::string(32, 'b'), "second").value();
  auto store = java_trust_store("# some words\n" + first.pem() + "\n" + second.pem() + "-----BEGIN CERTIFICATE-----\n");
  ASSERT_TRUE(store);
  store::TempFolder folder;
  const std::string path = folder / "trust.jks";
  ASSERT_TRUE(replace_file(path, *store));
  FILE* out = ::popen(("keytool -list -v -storetype jks -storepass changeit -keystore " + path + " 2>&1").c_str(), "r");
  ASSERT_TRUE(out);
  std::string said;
  char buffer[4096];
  for (size_t n; (n = ::fread(buffer, 1, sizeof buffer, out)) > 0;) said.append(buffer, n);
  EXPECT_EQ(::pclose(out), 0) << said;
  EXPECT_NE(said.find("contains 2 entries"), std::string::npos) << said;
  EXPECT_NE(said.find("Entry type: trustedCertEntry"), std::string::npos) << said;
}

TEST(JavaTrust, HasWhatTheBundleHas) {
  auto one = gate::Authority::make(std::string(32, 'a'), "first").value();
  auto store = java_trust_store(one.pem());
  ASSERT_TRUE(store);
  EXPECT_TRUE(store->starts_with(std::string("\xfe\xed\xfe\xed\0\0\0\2\0\0\0\1", 12)));
  EXPECT_GT(store->size(), 200u);
  EXPECT_EQ(java_trust_store("")->size(), 12u + 20u);
}

}  // namespace
}  // namespace isola::sandbox
