#pragma once

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <string>
#include <string_view>

namespace isola::dialect {

// For tests: a server that speaks TLS with whoever feeds it, whose certificate nobody signed.
class TlsTestServer {
 public:
  explicit TlsTestServer(int version = 0) {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -7200);
    X509_gmtime_adj(X509_getm_notAfter(certificate), -3600);  // nor is it good any more
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    context_ = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_max_proto_version(context_, version);
    SSL_CTX_use_certificate(context_, certificate);
    SSL_CTX_use_PrivateKey(context_, key);
    X509_free(certificate);
    EVP_PKEY_free(key);
    ssl_ = SSL_new(context_);
    SSL_set_bio(ssl_, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_accept_state(ssl_);
  }
  ~TlsTestServer() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  TlsTestServer(const TlsTestServer&) = delete;
  TlsTestServer& operator=(const TlsTestServer&) = delete;
  void feed(std::string_view bytes) { BIO_write(SSL_get_rbio(ssl_), bytes.data(), static_cast<int>(bytes.size())); }
  std::string take() {
    std::string bytes(BIO_ctrl_pending(SSL_get_wbio(ssl_)), '\0');
    if (!bytes.empty()) BIO_read(SSL_get_wbio(ssl_), bytes.data(), static_cast<int>(bytes.size()));
    return bytes;
  }
  SSL* ssl() { return ssl_; }

 private:
  SSL_CTX* context_;
  SSL* ssl_;
};

}  // namespace isola::dialect
