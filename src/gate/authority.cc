#include "gate/authority.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <vector>

namespace isola::gate {

namespace {

constexpr long kDay = 24 * 60 * 60;
constexpr long kLeafLife = kDay, kLeafRenewal = kDay / 2, kAuthorityLife = 3650 * kDay;
constexpr char kCurve[] = "prime256v1";
constexpr size_t kMaxCommonName = 64;

Error failed(const char* what) {
  ERR_clear_error();
  return Error{.code = Code::internal, .message = what};
}

template <typename T, void (*kFree)(T*)>
struct Free {
  void operator()(T* pointer) const { kFree(pointer); }
};
template <typename T, void (*kFree)(T*)>
using Held = std::unique_ptr<T, Free<T, kFree>>;

using Number = Held<BIGNUM, BN_clear_free>;

// The private key that follows from the seed: a number from 1 to the order of the curve, without bias that matters
// (the order is within 2^-32 of 2^256).
Result<KeyPointer> key_from(std::string_view seed) {
  if (seed.size() != 32) return std::unexpected(failed("a seed has 32 bytes"));
  Held<EC_GROUP, EC_GROUP_free> group(EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1));
  Held<BN_CTX, BN_CTX_free> context(BN_CTX_secure_new());
  Number number(BN_bin2bn(reinterpret_cast<const unsigned char*>(seed.data()), 32, BN_secure_new()));
  Number most(BN_new());
  if (!group || !context || !number || !most || !BN_copy(most.get(), EC_GROUP_get0_order(group.get())) ||
      !BN_sub_word(most.get(), 1) || !BN_mod(number.get(), number.get(), most.get(), context.get()) ||
      !BN_add_word(number.get(), 1))
    return std::unexpected(failed("cannot derive a key"));
  BN_set_flags(number.get(), BN_FLG_CONSTTIME);
  Held<EC_POINT, EC_POINT_free> point(EC_POINT_new(group.get()));
  if (!point || EC_POINT_mul(group.get(), point.get(), number.get(), nullptr, nullptr, context.get()) != 1)
    return std::unexpected(failed("cannot derive a key"));
  unsigned char open[65];
  if (EC_POINT_point2oct(group.get(), point.get(), POINT_CONVERSION_UNCOMPRESSED, open, sizeof open, context.get()) !=
      sizeof open)
    return std::unexpected(failed("cannot derive a key"));
  Held<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free> build(OSSL_PARAM_BLD_new());
  if (!build || !OSSL_PARAM_BLD_push_utf8_string(build.get(), OSSL_PKEY_PARAM_GROUP_NAME, kCurve, 0) ||
      !OSSL_PARAM_BLD_push_octet_string(build.get(), OSSL_PKEY_PARAM_PUB_KEY, open, sizeof open) ||
      !OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_PRIV_KEY, number.get()))
    return std::unexpected(failed("cannot derive a key"));
  Held<OSSL_PARAM, OSSL_PARAM_free> params(OSSL_PARAM_BLD_to_param(build.get()));
  Held<EVP_PKEY_CTX, EVP_PKEY_CTX_free> maker(EVP_PKEY_CTX_new_from_name(nullptr, "EC", nullptr));
  EVP_PKEY* key = nullptr;
  if (!params || !maker || EVP_PKEY_fromdata_init(maker.get()) != 1 ||
      EVP_PKEY_fromdata(maker.get(), &key, EVP_PKEY_KEYPAIR, params.get()) != 1)
    return std::unexpected(failed("cannot derive a key"));
  return KeyPointer(key);
}

bool extend(X509* certificate, X509* issuer, int what, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
  if (!extension) return false;
  bool added = X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

bool set_name(X509_NAME* name, const char* field, const std::string& value) {
  return X509_NAME_add_entry_by_txt(name, field, MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(value.data()),
                                    static_cast<int>(value.size()), -1, 0) == 1;
}

// As it is: no text in which a comma would begin another name.
bool set_only_name(X509* certificate, const std::string& name, bool critical) {
  Held<GENERAL_NAMES, GENERAL_NAMES_free> all(sk_GENERAL_NAME_new_null());
  Held<GENERAL_NAME, GENERAL_NAME_free> one(GENERAL_NAME_new());
  Held<ASN1_IA5STRING, ASN1_IA5STRING_free> text(ASN1_IA5STRING_new());
  if (!all || !one || !text || ASN1_STRING_set(text.get(), name.data(), static_cast<int>(name.size())) != 1)
    return false;
  GENERAL_NAME_set0_value(one.get(), GEN_DNS, text.release());
  if (sk_GENERAL_NAME_push(all.get(), one.get()) <= 0) return false;
  one.release();
  return X509_add1_ext_i2d(certificate, NID_subject_alt_name, all.get(), critical, X509V3_ADD_DEFAULT) == 1;
}

bool set_random_serial(X509* certificate) {
  unsigned char bytes[16];
  if (RAND_bytes(bytes, sizeof bytes) != 1) return false;
  bytes[0] = static_cast<unsigned char>((bytes[0] & 0x7f) | 0x40);  // positive, and always as long
  Number number(BN_bin2bn(bytes, sizeof bytes, nullptr));
  return number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate));
}

// What both kinds have in common.
Result<CertificatePointer> begin(EVP_PKEY* key, long before, long after) {
  CertificatePointer out(X509_new());
  if (!out || X509_set_version(out.get(), X509_VERSION_3) != 1 || !set_random_serial(out.get()) ||
      !X509_gmtime_adj(X509_getm_notBefore(out.get()), -before) ||
      !X509_gmtime_adj(X509_getm_notAfter(out.get()), after) || X509_set_pubkey(out.get(), key) != 1)
    return std::unexpected(failed("cannot make a certificate"));
  return out;
}

}  // namespace

Result<Authority> Authority::make(std::string_view seed, const std::string& sandbox) {
  Authority out;
  ISOLA_TRY(out.key_, key_from(seed));
  ISOLA_TRY(out.certificate_, begin(out.key_.get(), kDay, kAuthorityLife));
  X509* certificate = out.certificate_.get();
  X509_NAME* name = X509_get_subject_name(certificate);
  if (!set_name(name, "O", "Isola") || !set_name(name, "CN", ("Isola sandbox " + sandbox).substr(0, kMaxCommonName)) ||
      X509_set_issuer_name(certificate, name) != 1 ||
      !extend(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !extend(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !extend(certificate, certificate, NID_subject_key_identifier, "hash") ||
      !extend(certificate, certificate, NID_authority_key_identifier, "keyid:always") ||
      X509_sign(certificate, out.key_.get(), EVP_sha256()) == 0)
    return std::unexpected(failed("cannot make a sandbox's authority"));
  Held<BIO, BIO_free_all> text(BIO_new(BIO_s_mem()));
  if (!text || PEM_write_bio_X509(text.get(), certificate) != 1)
    return std::unexpected(failed("cannot print a certificate"));
  char* data = nullptr;
  long size = BIO_get_mem_data(text.get(), &data);
  out.pem_.assign(data, static_cast<size_t>(size));
  return out;
}

Result<std::shared_ptr<const Leaf>> Authority::leaf(const std::string& name) {
  const time_t now = ::time(nullptr);
  if (auto it = leaves_.find(name); it != leaves_.end()) {
    const long age = static_cast<long>(now - it->second.leaf->made);
    order_.splice(order_.end(), order_, it->second.place);
    if (age >= 0 && age < kLeafRenewal) return it->second.leaf;
    order_.erase(it->second.place);
    leaves_.erase(it);
  }
  auto leaf = std::make_shared<Leaf>();
  leaf->made = now;
  leaf->key.reset(EVP_EC_gen(kCurve));
  if (!leaf->key) return std::unexpected(failed("cannot make a key"));
  ISOLA_TRY(leaf->certificate, begin(leaf->key.get(), kDay / 24, kLeafLife));
  X509* certificate = leaf->certificate.get();
  X509_NAME* subject = X509_get_subject_name(certificate);
  const bool fits = name.size() <= kMaxCommonName;
  // Exactly this name, so that no program takes the connection for one to another host, too.
  if ((fits && !set_name(subject, "CN", name)) ||
      X509_set_issuer_name(certificate, X509_get_subject_name(certificate_.get())) != 1 ||
      !extend(certificate, certificate_.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !extend(certificate, certificate_.get(), NID_key_usage, "critical,digitalSignature") ||
      !extend(certificate, certificate_.get(), NID_ext_key_usage, "serverAuth") ||
      !extend(certificate, certificate_.get(), NID_subject_key_identifier, "hash") ||
      !extend(certificate, certificate_.get(), NID_authority_key_identifier, "keyid:always") ||
      !set_only_name(certificate, name, !fits) || X509_sign(certificate, key_.get(), EVP_sha256()) == 0)
    return std::unexpected(failed("cannot make a certificate"));
  if (leaves_.size() == kLeaves) {
    leaves_.erase(order_.front());
    order_.pop_front();
  }
  leaves_[name] = {leaf, order_.insert(order_.end(), name)};
  return leaf;
}

Result<std::string> hashed_name(const std::string& pem) {
  Held<BIO, BIO_free_all> text(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  CertificatePointer certificate(text ? PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr) : nullptr);
  if (!certificate) return std::unexpected(failed("this is no certificate"));
  char name[16];
  std::snprintf(name, sizeof name, "%08lx.0", X509_subject_name_hash(certificate.get()));
  return std::string(name);
}

}  // namespace isola::gate
