// What waits in a connection is in the sandbox's share while it does.
#include "gate/relay.h"

#include <gtest/gtest.h>

#include "gate/control.h"
#include "gate/http1_relay.h"
#include "gate/http2_relay.h"
#include "vault/binding_wire.h"

namespace isola::gate {
namespace {

TEST(Charge, IsGivenBack) {
  size_t used = 0;
  Budget budget{.more = [&](size_t bytes) { return used + bytes <= 100 ? used += bytes, true : false; },
                .less = [&](size_t bytes) { used -= bytes; }};
  {
    Charge one(&budget), other(&budget), free(nullptr);
    EXPECT_TRUE(one.add(60));
    EXPECT_FALSE(other.add(60));
    EXPECT_TRUE(other.add(40));
    EXPECT_TRUE(free.add(1 << 30));
    one.clear();
    EXPECT_EQ(used, 40u);
    EXPECT_TRUE(one.add(1));
  }
  EXPECT_EQ(used, 0u);
}

class StringLeg : public Leg {
 public:
  std::string in, out;
  bool takes = true;
  Moved read(char* to, size_t size) override {
    size = std::min(size, in.size());
    if (size == 0) return {};
    in.copy(to, size);
    in.erase(0, size);
    return {Io::moved, size};
  }
  Moved write(const char* from, size_t size) override {
    if (!takes) return {};
    out.append(from, size);
    return {Io::moved, size};
  }
  void finish() override {}
};

class RelayGrounds : public Premises {
 public:
  RelayGrounds() {
    auto key = vault::KeyPair::make().value();
    vault::Binding aws;
    aws.id = "b1", aws.secret = "aws", aws.names = {"a.example"};
    aws.place = vault::Place::sigv4, aws.field = "eu-central-1/execute-api";
    aws.sealed = vault::seal(key.open_key(), "AKIAEXAMPLE:wJalrXUtnFEMI-example-key").value();
    bindings_ = Bindings::make(vault::encode_bindings({aws}), &key).value();
    egress_ = read_egress("allow a.example\n", "").value();
  }
  std::shared_ptr<const Egress> egress() const override { return egress_; }
  std::shared_ptr<const Bindings> bindings() const override { return bindings_; }
  std::shared_ptr<const Searches> searches() const override { return nullptr; }
  void record(Event) override {}
  void want_values() override {}

 private:
  std::shared_ptr<const Egress> egress_;
  std::shared_ptr<const Bindings> bindings_;
};

class RelayTest : public ::testing::Test {
 protected:
  static std::string post(size_t size) {
    return "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: " + std::to_string(size) + "\r\n\r\n";
  }
  size_t used = 0, most = 1 << 20;
  Budget budget{.more = [this](size_t bytes) { return used + bytes <= most ? used += bytes, true : false; },
                .less = [this](size_t bytes) { used -= bytes; }};
  RelayGrounds grounds;
  Inspector inspector{grounds, "a.example", Address::parse("203.0.113.10").value(), 443, false};
  StringLeg client, server;
};

TEST_F(RelayTest, ABodyThatIsSignedIsChargedUntilTheServerHasIt) {
  Http1Relay relay(inspector, client, server, &budget);
  client.in = post(50'000) + std::string(40'000, 'x');
  while (relay.pump() == Relay::State::again) {
  }
  EXPECT_EQ(used, 40'000u);
  server.takes = false;
  client.in = std::string(10'000, 'x');
  relay.pump();
  EXPECT_EQ(used, 50'000u) << "it is on its way";
  server.takes = true;
  relay.pump();
  EXPECT_NE(server.out.find("Authorization: AWS4-HMAC-SHA256"), std::string::npos);
  EXPECT_EQ(used, 0u);
}

TEST_F(RelayTest, WithoutRoomItIsRefused) {
  most = 30'000;
  Http1Relay relay(inspector, client, server, &budget);
  client.in = post(50'000) + std::string(50'000, 'x');
  while (relay.pump() == Relay::State::again) {
  }
  EXPECT_EQ(client.out.substr(0, 12), "HTTP/1.1 503") << client.out;
  EXPECT_EQ(server.out, "");
}

// Heads of requests on one connection of HTTP/2: that wait for their turn, or for a value, or for a server that does
// not read.
TEST_F(RelayTest, HeadsOfHttp2AreCharged) {
  auto relay = Http2Relay::make(inspector, client, server, &budget).value();
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_session_callbacks_new(&callbacks);
  nghttp2_session_callbacks_set_send_callback(
      callbacks, [](nghttp2_session*, const uint8_t* bytes, size_t size, int, void* user) {
        static_cast<StringLeg*>(user)->in.append(reinterpret_cast<const char*>(bytes), size);
        return static_cast<ssize_t>(size);
      });
  nghttp2_session* asking = nullptr;
  nghttp2_session_client_new(&asking, callbacks, &client);
  nghttp2_session_callbacks_del(callbacks);
  nghttp2_submit_settings(asking, NGHTTP2_FLAG_NONE, nullptr, 0);
  std::string large(8'000, 'v');
  auto pair = [](std::string_view name, std::string_view value) {
    auto bytes = [](std::string_view text) { return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data())); };
    return nghttp2_nv{bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
  };
  // Its body does not come: it cannot be signed, and is kept.
  nghttp2_data_provider later{
      .source = {},
      .read_callback = [](nghttp2_session*, int32_t, uint8_t*, size_t, uint32_t*, nghttp2_data_source*,
                          void*) -> ssize_t { return NGHTTP2_ERR_DEFERRED; }};
  const nghttp2_nv head[] = {pair(":method", "POST"), pair(":scheme", "https"), pair(":authority", "a.example"),
                             pair(":path", "/"), pair("x-large", large)};
  for (int i = 0; i < 3; ++i) nghttp2_submit_request(asking, nullptr, head, std::size(head), &later, nullptr);
  nghttp2_session_send(asking);
  relay->pump();
  EXPECT_GT(used, 3 * large.size());
  EXPECT_LT(used, 4 * large.size());
  const size_t waiting = used;
  server.takes = false;
  const nghttp2_nv plain[] = {pair(":method", "GET"), pair(":scheme", "https"), pair(":authority", "a.example"),
                              pair(":path", "/"), pair("x-large", large)};
  std::vector<int32_t> ids;
  for (int i = 0; i < 40; ++i)
    ids.push_back(nghttp2_submit_request(asking, nullptr, plain, std::size(plain), nullptr, nullptr));
  nghttp2_session_send(asking);
  while (relay->pump() == Relay::State::again) {
  }
  // But for what fits into the outbox.
  EXPECT_GT(used, waiting + 20 * large.size()) << "they are still here";
  // Whoever takes them back does not make room by it: they are in the session's queue until that is read.
  for (int32_t id : ids) nghttp2_submit_rst_stream(asking, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
  nghttp2_session_send(asking);
  while (relay->pump() == Relay::State::again) {
  }
  EXPECT_GT(used, waiting + 20 * large.size());
  server.takes = true;
  while (relay->pump() == Relay::State::again) {
  }
  EXPECT_EQ(used, waiting);
  relay.reset();
  EXPECT_EQ(used, 0u);
  nghttp2_session_del(asking);
}

}  // namespace
}  // namespace isola::gate
