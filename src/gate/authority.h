// The certificate authority of one sandbox: what its programs trust, and what the gate shows them in the place of a
// server whose connections it looks into.
//
//   ISOLA_TRY(Authority authority, Authority::make(seed, "ibox1"));    // the same seed: the same key
//   authority.pem()                                                  // goes into the sandbox; the key never does
//   ISOLA_TRY(const Leaf* leaf, authority.leaf("api.example.org"));    // for exactly this name, for a day
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <ctime>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::gate {

struct OpensslFree {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using KeyPointer = std::unique_ptr<EVP_PKEY, OpensslFree>;
using CertificatePointer = std::unique_ptr<X509, OpensslFree>;

struct Leaf {
  CertificatePointer certificate;
  KeyPointer key;
  time_t made = 0;
};

class Authority {
 public:
  static constexpr size_t kLeaves = 64;  // that are kept

  // `seed`: 32 bytes that nobody else can know.
  static Result<Authority> make(std::string_view seed, const std::string& sandbox);

  const std::string& pem() const { return pem_; }
  // Shared, so that one that makes room for another lives as long as a connection needs it.
  Result<std::shared_ptr<const Leaf>> leaf(const std::string& name);

 private:
  Authority() = default;

  KeyPointer key_;
  CertificatePointer certificate_;
  std::string pem_;
  std::list<std::string> order_;  // least recently asked for first
  struct Kept {
    std::shared_ptr<const Leaf> leaf;
    std::list<std::string>::iterator place;
  };
  std::map<std::string, Kept> leaves_;
};

// The name by which OpenSSL finds a certificate in a folder of them: eight digits of its subject, and ".0".
Result<std::string> hashed_name(const std::string& pem);

}  // namespace isola::gate
