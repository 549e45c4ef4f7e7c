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
  EXPECT_EQ(lifecycle_view(event, "x", {})["id"], "00112233-4455-6677-8899-aabbccddeeff");
}

Subject subject(const std::string& id) {
  store::SandboxRecord record;
  record.id = id;
  record.created = 1'754'513'900'000;
  record.digest = std::string("aabbccddeeff00112233445566778899").append(32, 'f');
  record.limits.cpus = 1.5;
  record.limits.memory = 512 << 20;
  record.metadata = {{"user", "u1"}};
  return {record, "t-id"};
}

TEST(Lifecycle, TheListHasAllThatE2bTells) {
  ledger::Event event;
  event.hash = std::string("00112233445566778899aabbccddeeff").append(32, '0');
  event.project = "default", event.sandbox = "i1", event.time = 1'754'513'964'000;
  event.data = R"({"reason":"killed","lived_ms":64000,"memory_peak_bytes":7})";
  auto view = lifecycle_view(event, "sandbox.lifecycle.killed", subject("i1"));
  auto execution = view["sandboxExecutionId"].get<std::string>();
  EXPECT_EQ(execution.size(), 36u);
  view.erase("sandboxExecutionId");
  EXPECT_EQ(view, nlohmann::json::parse(R"({
    "version": "v2", "id": "00112233-4455-6677-8899-aabbccddeeff", "type": "sandbox.lifecycle.killed",
    "timestamp": "2025-08-06T20:59:24.000Z", "sandboxId": "i1", "sandboxTeamId": "default",
    "sandboxTemplateId": "t-id", "sandboxBuildId": "aabbccdd-eeff-0011-2233-445566778899",
    "eventData": {"sandbox_metadata": {"user": "u1"},
                  "execution": {"started_at": "2025-08-06T20:58:20.000Z", "vcpu_count": 2, "memory_mb": 512,
                                "execution_time": 64000}}})"));
  event.data = R"({"changed":["deadline"],"deadline":1754513999000})";
  view = lifecycle_view(event, "sandbox.lifecycle.updated", subject("i1"));
  EXPECT_EQ(
      view["eventData"],
      nlohmann::json::parse(R"({"sandbox_metadata": {"user": "u1"}, "set_timeout": "2025-08-06T20:59:59.000Z"})"));
  EXPECT_EQ(view["sandboxExecutionId"], execution);
  event.sandbox = "i2";
  view = lifecycle_view(event, "sandbox.lifecycle.created", {});
  EXPECT_NE(view["sandboxExecutionId"], execution);
  EXPECT_TRUE(view["eventData"].is_null());
}

TEST(Lifecycle, AListenerHearsWhatItAskedFor) {
  ledger::Event event;
  event.seq = 7, event.project = "default", event.sandbox = "i1", event.data = R"({"reason":"killed"})";
  event.time = 1'754'513'964'000;
  event.kind = ledger::Kind::sandbox_created;
  EXPECT_FALSE(lifecycle_message(listener(), event, subject));
  event.kind = ledger::Kind::command_ended;
  EXPECT_FALSE(lifecycle_message(listener(), event, subject));
  event.kind = ledger::Kind::sandbox_ended;
  auto message = lifecycle_message(listener(), event, subject);
  ASSERT_TRUE(message);
  auto body = nlohmann::json::parse(message->body);
  EXPECT_EQ(body["sandbox_execution_id"].get<std::string>().size(), 36u);
  body.erase("sandbox_execution_id");
  EXPECT_EQ(body, nlohmann::json::parse(R"({
    "version": "v2", "id": "7", "type": "sandbox.lifecycle.killed", "event_category": "lifecycle",
    "event_label": "kill", "timestamp": "2025-08-06T20:59:24.000Z", "sandbox_id": "i1", "sandbox_team_id": "default",
    "sandbox_template_id": "t-id", "sandbox_build_id": "aabbccdd-eeff-0011-2233-445566778899",
    "event_data": {"sandbox_metadata": {"user": "u1"},
                   "execution": {"started_at": "2025-08-06T20:58:20.000Z", "vcpu_count": 2, "memory_mb": 512,
                                 "execution_time": 64000}}})"));
  auto again = lifecycle_message(listener(), event, subject);
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
