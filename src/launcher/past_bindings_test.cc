#include "launcher/past_bindings.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "vault/binding_wire.h"

namespace isola::launcher {
namespace {

vault::Binding value(const std::string& id, const std::string& print, const std::string& sealed) {
  return {.id = id, .secret = "s", .names = {"a.example"}, .sealed = sealed, .mark = "the same", .print = print};
}

std::vector<std::string> sealed_of(const PastBindings& past) {
  std::vector<std::string> all;
  auto list = vault::decode_bindings(past.text(1 << 20));
  EXPECT_TRUE(list);
  for (const auto& one : *list) all.push_back(one.sealed);
  return all;
}

using Texts = std::vector<std::string>;

TEST(PastBindings, AValueThatChangedAtItsSource) {
  PastBindings past;
  past.remember(vault::encode_bindings({value("b1", "old", "1")}), vault::encode_bindings({value("b1", "new", "2")}));
  EXPECT_EQ(sealed_of(past), Texts{"1"});
}

TEST(PastBindings, OneThatWasSealedAnewIsTheSame) {
  PastBindings past;
  past.remember(vault::encode_bindings({value("b1", "old", "1")}), vault::encode_bindings({value("b1", "old", "2")}));
  EXPECT_TRUE(past.empty());
}

TEST(PastBindings, WhatIsGoneOnceAndNoMoreThanThat) {
  PastBindings past;
  auto token = value("b3", "t", "3");
  token.until = 1000;  // long over
  auto before = vault::encode_bindings({value("b1", "one", "1"), vault::without_value(value("b2", "two", "2")), token});
  past.remember(before, "");
  past.remember("", before);
  past.remember(before, "");
  EXPECT_EQ(sealed_of(past), Texts{"1"});
}

TEST(PastBindings, ATokenForAsLongAsItMayOpenSomething) {
  PastBindings past;
  auto lives = value("b1", "a", "1"), just_over = value("b2", "b", "2");
  lives.until = milliseconds_now() + 3'600'000;
  just_over.until = milliseconds_now() - 1000;
  past.remember(vault::encode_bindings({lives, just_over}), "");
  EXPECT_EQ(sealed_of(past), (Texts{"2", "1"}));
}

// All that a sandbox can have, dropped at once.
TEST(PastBindings, AWholeSandboxsAtOnce) {
  PastBindings past;
  std::vector<vault::Binding> all;
  for (size_t i = 0; i < vault::kMaxBindings; ++i) all.push_back(value("b" + std::to_string(i), "p", "s"));
  past.remember(vault::encode_bindings(all), "");
  EXPECT_EQ(sealed_of(past).size(), vault::kMaxBindings);
}

TEST(PastBindings, OneThatIsTooLargeKeepsNoOtherOut) {
  PastBindings past;
  past.remember(vault::encode_bindings({value("b1", "one", "1")}), "");
  past.remember(vault::encode_bindings({value("b2", "two", std::string(5000, '2'))}), "");
  past.remember(vault::encode_bindings({value("b3", "three", "3")}), "");
  auto text = past.text(1000);
  EXPECT_LE(text.size(), 1000u);
  auto list = vault::decode_bindings(text);
  ASSERT_TRUE(list);
  ASSERT_EQ(list->size(), 2u);
  EXPECT_EQ(list->front().id, "b3");
  EXPECT_EQ(list->back().id, "b1");
  for (size_t room = text.size() - 3; room <= text.size(); ++room) EXPECT_LE(past.text(room).size(), room);
  EXPECT_EQ(past.text(text.size()), text);
}

TEST(PastBindings, TheNewestOfMany) {
  PastBindings past;
  for (size_t i = 0; i < PastBindings::kMost + 3; ++i) {
    std::string n = std::to_string(i);
    past.remember(vault::encode_bindings({value("b", n, n)}), "");
  }
  auto all = sealed_of(past);
  ASSERT_EQ(all.size(), PastBindings::kMost);
  EXPECT_EQ(all.front(), std::to_string(PastBindings::kMost + 2));
  EXPECT_EQ(all.back(), "3");
  EXPECT_EQ(past.text(10), "");
}

}  // namespace
}  // namespace isola::launcher
