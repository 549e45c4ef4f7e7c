#include "dialect/shared/tls_client.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

namespace isola::dialect {
namespace {

// A server of that kind, whose certificate nobody signed.
class Server {
 public:
  Server() {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -7200);
    X509_gmtime_adj(X509_getm_notAfter(certificate), -3600);  // nor is it good any more
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    context_ = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(context_, certificate);
    SSL_CTX_use_PrivateKey(context_, key);
    X509_free(certificate);
    EVP_PKEY_free(key);
    ssl_ = SSL_new(context_);
    SSL_set_bio(ssl_, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_accept_state(ssl_);
  }
  ~Server() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
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

void shake(TlsClient& client, Server& server) {
  for (int i = 0; i < 10 && !(client.ready() && SSL_is_init_finished(server.ssl())); ++i) {
    server.feed(client.take());
    SSL_do_handshake(server.ssl());
    client.feed(server.take());
    ASSERT_TRUE(client.advance());
  }
  server.feed(client.take());
  ASSERT_TRUE(client.ready());
}

TEST(TlsClient, SpeaksWithWhoeverIsThere) {
  auto client = TlsClient::open("localhost");
  ASSERT_TRUE(client);
  Server server;
  shake(*client, server);
  EXPECT_STREQ(SSL_get_servername(server.ssl(), TLSEXT_NAMETYPE_host_name), "localhost");
  const std::string question(100'000, 'q');
  ASSERT_TRUE(client->write(question));
  server.feed(client->take());
  std::string got(question.size(), 'x');
  size_t at = 0;
  for (int n; at < got.size() && (n = SSL_read(server.ssl(), got.data() + at, static_cast<int>(got.size() - at))) > 0;)
    at += static_cast<size_t>(n);
  EXPECT_TRUE(got == question);
  SSL_write(server.ssl(), "answer", 6);
  const std::string bytes = server.take();
  client->feed(bytes.substr(0, 4));
  EXPECT_EQ(client->read().value(), "") << "not whole yet";
  client->feed(bytes.substr(4));
  EXPECT_EQ(client->read().value(), "answer");
  EXPECT_FALSE(client->closed());
  SSL_shutdown(server.ssl());
  client->feed(server.take());
  EXPECT_EQ(client->read().value(), "");
  EXPECT_TRUE(client->closed());
}

TEST(TlsClient, AnAddressIsNoNameToSay) {
  auto client = TlsClient::open("127.0.0.1");
  ASSERT_TRUE(client);
  Server server;
  shake(*client, server);
  EXPECT_EQ(SSL_get_servername(server.ssl(), TLSEXT_NAMETYPE_host_name), nullptr);
}

TEST(TlsClient, WhatIsNotTlsIsAnError) {
  auto client = TlsClient::open("localhost");
  ASSERT_TRUE(client);
  client->feed("HTTP/1.1 400 Bad Request\r\n\r\n");
  EXPECT_FALSE(client->advance());
}

TEST(TlsClient, WhatWasChangedOnItsWayIsAnError) {
  auto client = TlsClient::open("localhost");
  ASSERT_TRUE(client);
  Server server;
  shake(*client, server);
  SSL_write(server.ssl(), "answer", 6);
  std::string bytes = server.take();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  client->feed(bytes);
  EXPECT_FALSE(client->read());
}

}  // namespace
}  // namespace isola::dialect
