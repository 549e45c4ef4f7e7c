#include "dialect/shared/tls_client.h"

#include <gtest/gtest.h>

#include "dialect/shared/tls_test_server.h"

namespace isola::dialect {
namespace {

void shake(TlsClient& client, TlsTestServer& server) {
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
  TlsTestServer server;
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
  TlsTestServer server;
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
  TlsTestServer server;
  shake(*client, server);
  SSL_write(server.ssl(), "before", 6);
  SSL_write(server.ssl(), "answer", 6);
  std::string bytes = server.take();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  client->feed(bytes);
  EXPECT_EQ(client->read().value(), "before");
  EXPECT_FALSE(client->read());
  EXPECT_FALSE(client->read()) << "for good";
}

TEST(TlsClient, WhetherItEndsWithinARecord) {
  auto client = TlsClient::open("localhost");
  ASSERT_TRUE(client);
  TlsTestServer server;
  shake(*client, server);
  SSL_write(server.ssl(), "answer", 6);
  const std::string bytes = server.take();
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(client->read().value(), "");
    EXPECT_EQ(client->amid(), i > 0) << i;
    client->feed(bytes.substr(i, 1));
  }
  EXPECT_EQ(client->read().value(), "answer");
  EXPECT_FALSE(client->amid());
}

}  // namespace
}  // namespace isola::dialect
