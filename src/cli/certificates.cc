#include "cli/certificates.h"

#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

namespace isola::cli {

namespace {

struct Free {
  void operator()(EVP_PKEY* p) const { ::EVP_PKEY_free(p); }
  void operator()(X509* p) const { ::X509_free(p); }
  void operator()(BIO* p) const { ::BIO_free(p); }
  void operator()(BIGNUM* p) const { ::BN_free(p); }
  void operator()(X509_EXTENSION* p) const { ::X509_EXTENSION_free(p); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

constexpr long kDaySeconds = 24 * 3600;
constexpr long kAuthorityDays = 3650, kLeafDays = 825;  // clients refuse leaves that live longer

std::unexpected<Error> failed(const char* what) {
  return fail(Code::internal, std::string("OpenSSL could not ") + what);
}

std::string pem_of(BIO* bio) {
  char* data = nullptr;
  long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

Result<Certificate> to_pem(X509* certificate, EVP_PKEY* key) {
  Owned<BIO> first(::BIO_new(::BIO_s_mem())), second(::BIO_new(::BIO_s_mem()));
  if (!first || !second || !::PEM_write_bio_X509(first.get(), certificate) ||
      !::PEM_write_bio_PrivateKey(second.get(), key, nullptr, nullptr, 0, nullptr, nullptr))
    return failed("write a certificate");
  return Certificate{pem_of(first.get()), pem_of(second.get())};
}

Result<void> extend(X509* certificate, X509* issuer, int what, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  ::X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  Owned<X509_EXTENSION> extension(::X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str()));
  if (!extension || !::X509_add_ext(certificate, extension.get(), -1)) return failed("extend a certificate");
  return {};
}

// Everything but who signs it and what it is good for.
Result<Owned<X509>> blank(EVP_PKEY* key, const std::string& name, long days) {
  Owned<X509> certificate(::X509_new());
  Owned<BIGNUM> serial(::BN_new());
  if (!certificate || !serial || !::BN_rand(serial.get(), 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) ||
      !::BN_to_ASN1_INTEGER(serial.get(), ::X509_get_serialNumber(certificate.get())))
    return failed("make a serial number");
  ::X509_set_version(certificate.get(), 2);
  ::X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kDaySeconds);  // clocks differ
  ::X509_gmtime_adj(X509_getm_notAfter(certificate.get()), days * kDaySeconds);
  ::X509_set_pubkey(certificate.get(), key);
  // A common name holds 64 characters; what counts stands in the alternative names.
  std::string shown = name.substr(0, 64);
  ::X509_NAME_add_entry_by_txt(::X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(shown.c_str()), -1, -1, 0);
  return certificate;
}

Result<void> check(const std::string& domain) {
  bool good = !domain.empty() && domain.size() <= 200 && domain.front() != '.' && domain.back() != '.';
  for (char c : domain) good &= std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.';
  if (!good) return fail(Code::invalid, "'" + domain + "' is no domain name");
  return {};
}

}  // namespace

Result<Certificate> make_authority(const std::string& domain) {
  ISOLA_CHECK(check(domain));
  Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  if (!key) return failed("make a key");
  ISOLA_TRY(auto certificate, blank(key.get(), "Isola local authority for " + domain, kAuthorityDays));
  X509* self = certificate.get();
  ::X509_set_issuer_name(self, ::X509_get_subject_name(self));
  ISOLA_CHECK(extend(self, self, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  ISOLA_CHECK(extend(self, self, NID_key_usage, "critical,keyCertSign,cRLSign"));
  ISOLA_CHECK(extend(self, self, NID_subject_key_identifier, "hash"));
  // Whoever trusts it trusts it for this domain and this machine, and for nothing else.
  ISOLA_CHECK(extend(self, self, NID_name_constraints,
                     "critical,permitted;DNS:" + domain +
                         ",permitted;DNS:localhost,permitted;IP:127.0.0.1/255.255.255.255,"
                         "permitted;IP:::1/ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
  if (!::X509_sign(self, key.get(), ::EVP_sha256())) return failed("sign a certificate");
  return to_pem(self, key.get());
}

Result<Certificate> make_wildcard(const Certificate& authority, const std::string& domain) {
  ISOLA_CHECK(check(domain));
  Owned<BIO> first(::BIO_new_mem_buf(authority.certificate.data(), static_cast<int>(authority.certificate.size())));
  Owned<BIO> second(::BIO_new_mem_buf(authority.key.data(), static_cast<int>(authority.key.size())));
  Owned<X509> issuer(::PEM_read_bio_X509(first.get(), nullptr, nullptr, nullptr));
  Owned<EVP_PKEY> signer(::PEM_read_bio_PrivateKey(second.get(), nullptr, nullptr, nullptr));
  if (!issuer || !signer) return fail(Code::corrupt, "the authority's certificate or key cannot be read");
  Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  if (!key) return failed("make a key");
  ISOLA_TRY(auto certificate, blank(key.get(), domain, kLeafDays));
  X509* leaf = certificate.get();
  ::X509_set_issuer_name(leaf, ::X509_get_subject_name(issuer.get()));
  ISOLA_CHECK(extend(leaf, issuer.get(), NID_basic_constraints, "critical,CA:FALSE"));
  ISOLA_CHECK(extend(leaf, issuer.get(), NID_key_usage, "critical,digitalSignature"));
  ISOLA_CHECK(extend(leaf, issuer.get(), NID_ext_key_usage, "serverAuth"));
  ISOLA_CHECK(extend(leaf, issuer.get(), NID_subject_alt_name,
                     "DNS:" + domain + ",DNS:*." + domain + ",DNS:localhost,IP:127.0.0.1,IP:::1"));
  ISOLA_CHECK(extend(leaf, issuer.get(), NID_authority_key_identifier, "keyid"));
  if (!::X509_sign(leaf, signer.get(), ::EVP_sha256())) return failed("sign a certificate");
  return to_pem(leaf, key.get());
}

}  // namespace isola::cli
