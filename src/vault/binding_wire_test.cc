#include "vault/binding_wire.h"

#include <gtest/gtest.h>

namespace isola::vault {
namespace {

Binding full() {
  return {.id = "b1",
          .secret = "github",
          .names = {"api.example.org", "*.example.net"},
          .ports = "443,8000-8100",
          .methods = {"GET", "POST"},
          .path_prefix = "/repos/",
          .place = Place::header,
          .field = "X-Key",
          .format = "token {}",
          .blocks = true,
          .placeholder = "placeholder-0123",
          .unguarded = true,
          .audience = "https://sts.example.org",
          .expires = 1234567890123,
          .actor =
              "some\xff"
              "body",
          .unsearched = true,
          .sealed = std::string("\0\1\2\xff", 4),
          .identity = R"({"sub":"a"})",
          .until = 17,
          .due = 16,
          .serial = "s",
          .mark = "m",
          .print = "p"};
}

TEST(BindingWire, WhatGoesInComesOut) {
  std::vector<Binding> all = {full(), {.id = "b2", .secret = "other", .names = {"a.example"}}};
  auto read = decode_bindings(encode_bindings(all));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, all);
  EXPECT_EQ(encode_bindings({}), "");
  const size_t one = encode_bindings({full()}).size(), two = encode_bindings({full(), full()}).size();
  EXPECT_EQ(two - one, one - kBindingsHead);
  EXPECT_TRUE(decode_bindings("").value().empty());
}

TEST(BindingWire, EveryCutAndEveryAdditionIsRefused) {
  const std::string whole = encode_bindings({full()});
  for (size_t n = 1; n < whole.size(); ++n) EXPECT_FALSE(decode_bindings(whole.substr(0, n))) << n;
  EXPECT_FALSE(decode_bindings(whole + '\0'));
  EXPECT_FALSE(decode_bindings("[{\"id\":\"b1\"}]")) << "what JSON says is for the server alone";
}

// The same as JSON's reader asks: the other end may be a server that somebody has taken over.
TEST(BindingWire, WhatIsReadIsChecked) {
  auto refused = [](auto change) {
    Binding binding = full();
    change(binding);
    return !decode_bindings(encode_bindings({binding}));
  };
  EXPECT_TRUE(refused([](Binding& b) { b.names = {"*"}; }));
  EXPECT_TRUE(refused([](Binding& b) { b.names.clear(); }));
  EXPECT_TRUE(refused([](Binding& b) { b.place = static_cast<Place>(99); }));
  EXPECT_TRUE(refused([](Binding& b) { b.field = "Host"; }));
  EXPECT_TRUE(refused([](Binding& b) { b.format = "a\r\nb: {}"; }));
  EXPECT_TRUE(refused([](Binding& b) { b.expires = -1; }));
  EXPECT_TRUE(refused([](Binding& b) { b.secret = "../x"; }));
  std::vector<Binding> many(kMaxBindings, Binding{.id = "b", .secret = "s", .names = {"a.example"}});
  EXPECT_TRUE(decode_bindings(encode_bindings(many)));
  many.push_back(many.front());
  EXPECT_FALSE(decode_bindings(encode_bindings(many)));
}

TEST(BindingWire, ReasonsByTheirIds) {
  Reasons whys = {{"b1", "the vault is locked"}, {"", "all"}};
  EXPECT_EQ(decode_reasons(encode_reasons(whys)).value(), whys);
  EXPECT_EQ(encode_reasons({}), "");
  EXPECT_TRUE(decode_reasons("").value().empty());
  const std::string whole = encode_reasons({{"b1", "why"}});
  for (size_t n = 1; n < whole.size(); ++n) EXPECT_FALSE(decode_reasons(whole.substr(0, n))) << n;
}

}  // namespace
}  // namespace isola::vault
