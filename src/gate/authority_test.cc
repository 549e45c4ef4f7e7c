#include "gate/authority.h"

#include <gtest/gtest.h>
#include <openssl/asn1.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <vector>

namespace isola::gate {
namespace {

constexpr int kDaySeconds = 24 * 60 * 60;

CertificatePointer read_certificate(const std::string& pem) {
  BIO* text = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  CertificatePointer out(PEM_read_bio_X509(text, nullptr, nullptr, nullptr));
  BIO_free(text);
  return out;
}

// "DNS:…" for names, "other" for whatever else it is said to be for.
std::vector<std::string> names_of(X509* certificate, bool& critical) {
  std::vector<std::string> out;
  int is_critical = -1;
  auto* all = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, &is_critical, nullptr));
  critical = is_critical == 1;
  for (int i = 0; i < sk_GENERAL_NAME_num(all); ++i) {
    const GENERAL_NAME* one = sk_GENERAL_NAME_value(all, i);
    if (one->type != GEN_DNS)
      out.emplace_back("other");
    else
      out.push_back("DNS:" + std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(one->d.dNSName)),
                                         static_cast<size_t>(ASN1_STRING_length(one->d.dNSName))));
  }
  GENERAL_NAMES_free(all);
  return out;
}

std::string common_names_of(X509* certificate) {
  const X509_NAME* subject = X509_get_subject_name(certificate);
  std::string out;
  for (int i = 0; i < X509_NAME_entry_count(subject); ++i) {
    const X509_NAME_ENTRY* entry = X509_NAME_get_entry(subject, i);
    const ASN1_STRING* text = X509_NAME_ENTRY_get_data(entry);
    out += OBJ_nid2sn(OBJ_obj2nid(X509_NAME_ENTRY_get_object(entry)));
    out += "=" + std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                             static_cast<size_t>(ASN1_STRING_length(text)));
  }
  return out;
}

long seconds_between(const ASN1_TIME* from, const ASN1_TIME* to) {
  int days = 0, seconds = 0;
  EXPECT_EQ(ASN1_TIME_diff(&days, &seconds, from, to), 1);
  return static_cast<long>(days) * kDaySeconds + seconds;
}

TEST(Authority, ALeafIsForExactlyOneName) {
  auto authority = Authority::make(std::string(32, 's'), "ibox1").value();
  auto certificate = read_certificate(authority.pem());
  ASSERT_TRUE(certificate);
  const std::string widest = std::string(60, 'w') + ".org";  // the longest that is a common name, too
  const std::string label(61, 'l'), longest = label + "." + label + "." + label + "." + label + ".x";
  for (const std::string& name : {std::string("api.example.org"), widest, "v" + widest, longest}) {
    auto leaf = authority.leaf(name);
    ASSERT_TRUE(leaf) << name << ": " << leaf.error().message;
    X509* own = (*leaf)->certificate.get();
    const bool fits = name.size() <= 64;
    bool critical = false;
    EXPECT_EQ(names_of(own, critical), std::vector<std::string>{"DNS:" + name});
    EXPECT_EQ(critical, !fits) << "as it has to be where there is no subject";
    EXPECT_EQ(common_names_of(own), fits ? "CN=" + name : "");
    for (const char* wrong : {"example.org", "x.api.example.org", "api.example.org.evil.example", "*.example.org"})
      EXPECT_EQ(X509_check_host(own, wrong, 0, 0, nullptr), 0) << name << " for " << wrong;
    EXPECT_EQ(X509_check_host(own, name.c_str(), name.size(), 0, nullptr), 1) << name;
    EXPECT_EQ(X509_get_extension_flags(own) & EXFLAG_CA, 0u) << "it signs nothing";
    EXPECT_EQ(X509_get_key_usage(own), uint32_t{KU_DIGITAL_SIGNATURE});
    EXPECT_EQ(X509_get_extended_key_usage(own), uint32_t{XKU_SSL_SERVER});
    EXPECT_EQ(X509_check_issued(certificate.get(), own), X509_V_OK);
    EXPECT_EQ(X509_verify(own, X509_get0_pubkey(certificate.get())), 1);
    // An hour for clocks that are behind, and a day.
    EXPECT_EQ(seconds_between(X509_get0_notBefore(own), X509_get0_notAfter(own)), kDaySeconds + kDaySeconds / 24);
    EXPECT_EQ(X509_cmp_current_time(X509_get0_notBefore(own)), -1);
    EXPECT_EQ(X509_cmp_current_time(X509_get0_notAfter(own)), 1);
    EXPECT_EQ(authority.leaf(name)->get(), leaf->get()) << "the same while it is good";
  }
  EXPECT_NE(
      X509_cmp(authority.leaf(widest).value()->certificate.get(), authority.leaf(longest).value()->certificate.get()),
      0);
}

// Its key signs leaves and nothing that could sign others; it is the sandbox's alone.
TEST(Authority, SignsLeavesOnly) {
  auto authority = Authority::make(std::string(32, 's'), std::string(100, 'b')).value();
  auto own = read_certificate(authority.pem());
  ASSERT_TRUE(own);
  EXPECT_EQ(X509_check_ca(own.get()), 1);
  EXPECT_EQ(X509_get_pathlen(own.get()), 0);
  int critical = -1;
  BASIC_CONSTRAINTS_free(
      static_cast<BASIC_CONSTRAINTS*>(X509_get_ext_d2i(own.get(), NID_basic_constraints, &critical, nullptr)));
  EXPECT_EQ(critical, 1);
  EXPECT_EQ(X509_get_key_usage(own.get()), uint32_t{KU_KEY_CERT_SIGN | KU_CRL_SIGN});
  EXPECT_EQ(common_names_of(own.get()), "O=IsolaCN=Isola sandbox " + std::string(50, 'b'));
  auto same = read_certificate(Authority::make(std::string(32, 's'), "x").value().pem());
  auto other = read_certificate(Authority::make(std::string(32, 't'), "x").value().pem());
  EXPECT_EQ(EVP_PKEY_eq(X509_get0_pubkey(own.get()), X509_get0_pubkey(same.get())), 1);
  EXPECT_NE(EVP_PKEY_eq(X509_get0_pubkey(own.get()), X509_get0_pubkey(other.get())), 1);
  EXPECT_FALSE(Authority::make("short", "x"));
}

// Names come from the gate's list and are normal; what could say more than one is no certificate, or one for nobody.
TEST(Authority, WhatIsNoNameBecomesNoOther) {
  auto authority = Authority::make(std::string(32, 's'), "ibox1").value();
  for (const std::string& odd : {std::string("a.example,DNS:b.example"), std::string("a.example\nDNS:b.example"),
                                 std::string("192.0.2.1"), std::string("2001:db8::1")}) {
    auto leaf = authority.leaf(odd);
    if (!leaf) continue;
    X509* own = (*leaf)->certificate.get();
    bool critical = false;
    EXPECT_EQ(names_of(own, critical), std::vector<std::string>{"DNS:" + odd});
    EXPECT_NE(X509_check_host(own, "b.example", 0, 0, nullptr), 1) << odd;
    EXPECT_NE(X509_check_ip_asc(own, odd.c_str(), 0), 1) << odd << ": as a name it is for no address";
  }
}

}  // namespace
}  // namespace isola::gate
