#include "dialect/e2b/lifecycle.h"

#include <gtest/gtest.h>

namespace isola::e2b {
namespace {

store::WebhookRecord listener() {
  return {.id = "w1",
          .project = "default",
          .name = "n",
          .url = "https://example.org/",
          .events = {"sandbox.lifecycle.killed"},
          .secret = "s"};
}

TEST(Lifecycle, EveryWordHasOneKind) {
  for (auto word : lifecycle_words()) {
    int meant = 0;
    ledger::Event event;
    for (auto kind : ledger::all_kinds()) {
      event.kind = kind;
      meant += lifecycle_word(event) == word;
    }
    EXPECT_EQ(meant, 1) << word;
  }
  ledger::Event event;
  event.kind = ledger::Kind::command_started;
  EXPECT_FALSE(lifecycle_word(event));
}

TEST(Lifecycle, AnUpdateThatNamesASnapshotIsOne) {
  ledger::Event event;
  event.kind = ledger::Kind::sandbox_updated;
  event.data = R"({"changed":["metadata"]})";
  EXPECT_EQ(lifecycle_word(event), "sandbox.lifecycle.updated");
  event.data = R"({"changed":["snapshot"]})";
  EXPECT_EQ(lifecycle_word(event), "sandbox.lifecycle.updated");
  event.data = R"({"snapshot":"m1","name":""})";
  EXPECT_EQ(lifecycle_word(event), "sandbox.lifecycle.snapshotted");
}

TEST(Lifecycle, AnIdIsAUuidOutOfTheChain) {
  ledger::Event event;
  event.hash = std::string("00112233445566778899aabbccddeeff").append(32, '0');
  EXPECT_EQ(lifecycle_view(event, "x")["id"], "00112233-4455-6677-8899-aabbccddeeff");
}

TEST(Lifecycle, AListenerHearsWhatItAskedFor) {
  ledger::Event event;
  event.seq = 7, event.project = "default", event.sandbox = "i1", event.data = R"({"reason":"killed"})";
  event.kind = ledger::Kind::sandbox_created;
  EXPECT_FALSE(lifecycle_message(listener(), event));
  event.kind = ledger::Kind::command_ended;
  EXPECT_FALSE(lifecycle_message(listener(), event));
  event.kind = ledger::Kind::sandbox_ended;
  auto message = lifecycle_message(listener(), event);
  ASSERT_TRUE(message);
  auto body = nlohmann::json::parse(message->body);
  EXPECT_EQ(body["type"], "sandbox.lifecycle.killed");
  EXPECT_EQ(body["event_label"], "killed");
  EXPECT_EQ(body["id"], "7");
  EXPECT_EQ(body["sandbox_id"], "i1");
  EXPECT_EQ(body["event_data"]["reason"], "killed");
  auto again = lifecycle_message(listener(), event);
  EXPECT_EQ(message->body, again->body);
  EXPECT_NE(message->headers, again->headers) << "each try has an id of its own";
}

// echo -n 'sab' | openssl dgst -sha256 -binary | base64
TEST(Lifecycle, ASignatureIsTheHashOfSecretAndBody) {
  EXPECT_EQ(lifecycle_signature("s", "ab"), lifecycle_signature("sa", "b"));
  EXPECT_EQ(lifecycle_signature("", "abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0");
}

}  // namespace
}  // namespace isola::e2b
