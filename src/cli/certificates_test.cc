#include "cli/certificates.h"

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

namespace isola::cli {
namespace {

X509* read(const std::string& pem) {
  BIO* bio = ::BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509* certificate = ::PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  ::BIO_free(bio);
  return certificate;
}

// What a client that trusts the authority makes of the leaf, asked for under that name.
bool accepted(const Certificate& authority, const Certificate& leaf, const char* host) {
  X509 *root = read(authority.certificate), *end = read(leaf.certificate);
  X509_STORE* store = ::X509_STORE_new();
  ::X509_STORE_add_cert(store, root);
  X509_STORE_CTX* context = ::X509_STORE_CTX_new();
  ::X509_STORE_CTX_init(context, store, end, nullptr);
  ::X509_VERIFY_PARAM_set1_host(::X509_STORE_CTX_get0_param(context), host, 0);
  bool good = ::X509_verify_cert(context) == 1;
  ::X509_STORE_CTX_free(context);
  ::X509_STORE_free(store);
  ::X509_free(root);
  ::X509_free(end);
  return good;
}

TEST(Certificates, TheWildcardIsGoodForTheDomainAndNothingElse) {
  auto authority = make_authority("isola.test");
  ASSERT_TRUE(authority) << authority.error().message;
  auto leaf = make_wildcard(*authority, "isola.test");
  ASSERT_TRUE(leaf) << leaf.error().message;
  EXPECT_TRUE(accepted(*authority, *leaf, "isola.test"));
  EXPECT_TRUE(accepted(*authority, *leaf, "49983-iabcdefghij0123456789.isola.test"));
  EXPECT_TRUE(accepted(*authority, *leaf, "localhost"));
  EXPECT_FALSE(accepted(*authority, *leaf, "example.org"));
  EXPECT_FALSE(accepted(*authority, *leaf, "a.b.isola.test"));
}

TEST(Certificates, AnotherAuthorityDoesNotVouch) {
  auto one = make_authority("isola.test"), other = make_authority("isola.test");
  ASSERT_TRUE(one && other);
  auto leaf = make_wildcard(*one, "isola.test");
  ASSERT_TRUE(leaf);
  EXPECT_FALSE(accepted(*other, *leaf, "isola.test"));
}

TEST(Certificates, AnAuthorityIsOfNoUseForOtherDomains) {
  auto authority = make_authority("isola.test");
  ASSERT_TRUE(authority);
  auto leaf = make_wildcard(*authority, "example.org");
  ASSERT_TRUE(leaf);
  EXPECT_FALSE(accepted(*authority, *leaf, "example.org"));
}

TEST(Certificates, RefusesWhatIsNoDomain) {
  for (const char* domain : {"", ".x", "x.", "a b", "x,DNS:evil.org", "*.x"})
    EXPECT_FALSE(make_authority(domain)) << domain;
}

}  // namespace
}  // namespace isola::cli
