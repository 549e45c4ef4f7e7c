#include "dialect/e2b/lifecycle.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>

#include "base/hash/sha256.h"
#include "base/ids.h"
#include "dialect/e2b/build_id.h"
#include "dialect/e2b/network.h"
#include "dialect/e2b/views.h"
#include "dialect/shared/base64.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

struct Word {
  ledger::Kind kind;
  std::string_view word;
  std::string_view label;  // what deliveries called it before there were types
};
constexpr std::string_view kSnapshotted = "sandbox.lifecycle.snapshotted", kUpdated = "sandbox.lifecycle.updated",
                           kPaused = "sandbox.lifecycle.paused", kKilled = "sandbox.lifecycle.killed";
constexpr std::array kWords = {
    Word{ledger::Kind::sandbox_created, "sandbox.lifecycle.created", "create"},
    Word{ledger::Kind::sandbox_updated, kUpdated, "update"},
    Word{ledger::Kind::sandbox_paused, kPaused, "pause"},
    Word{ledger::Kind::sandbox_resumed, "sandbox.lifecycle.resumed", "resume"},
    Word{ledger::Kind::sandbox_forked, kSnapshotted, "snapshot"},
    Word{ledger::Kind::sandbox_ended, kKilled, "kill"},
};
constexpr auto kSpellings = [] {
  std::array<std::string_view, kWords.size()> words{};
  for (size_t i = 0; i < kWords.size(); ++i) words[i] = kWords[i].word;
  return words;
}();

// As E2B's are: a UUID, out of the hash that the ledger gave the entry.
std::string id_of(const ledger::Event& event) {
  const auto& h = event.hash;
  return h.size() < 32 ? std::to_string(event.seq) : uuid_of_digest(h);
}

json data_of(const ledger::Event& event) {
  json data = json::parse(event.data, nullptr, false);
  return data.is_object() ? data : json(nullptr);
}

// What E2B tells of it; what else the ledger knows is in the logs.
json told_of(const ledger::Event& event, std::string_view word, const Subject& about) {
  json out = json::object();
  if (about.record) {
    if (auto metadata = without_notes(about.record->metadata); !metadata.empty()) out["sandbox_metadata"] = metadata;
    // Where something stopped running: what ran, and for how long.
    if (word == kKilled || word == kPaused)
      out["execution"] = {{"started_at", dialect::when(about.record->created)},
                          {"vcpu_count", vcpus_of(*about.record)},
                          {"memory_mb", about.record->limits.memory >> 20},
                          {"execution_time", std::max<store::Millis>(0, event.time - about.record->created)}};
  }
  if (word == kUpdated) {
    json data = data_of(event);
    auto deadline = data.is_object() ? data.value("deadline", json()) : json();
    const json changed = data.is_object() ? data.value("changed", json::array()) : json::array();
    bool said = false;
    for (const auto& one : changed) said |= one == "deadline";
    if (said && deadline.is_number_integer()) out["set_timeout"] = dialect::when(deadline.get<store::Millis>());
  }
  return out.empty() ? json(nullptr) : out;
}

// The names of all that both tell, camelCase in the list and snake_case in deliveries.
struct Names {
  const char *data, *sandbox, *execution, *template_id, *build, *team;
};
constexpr Names kListed{"eventData",         "sandboxId",      "sandboxExecutionId",
                        "sandboxTemplateId", "sandboxBuildId", "sandboxTeamId"};
constexpr Names kDelivered{"event_data",          "sandbox_id",       "sandbox_execution_id",
                           "sandbox_template_id", "sandbox_build_id", "sandbox_team_id"};

json told(const ledger::Event& event, std::string_view word, const Subject& about, const Names& names) {
  // One for its whole life: what runs after a pause is what ran before.
  auto execution = sha256("execution\n" + event.sandbox);
  return {{"version", "v2"},
          {"id", id_of(event)},
          {"type", word},
          {"timestamp", dialect::when(event.time)},
          {names.data, told_of(event, word, about)},
          {names.sandbox, event.sandbox},
          {names.execution, uuid_of_digest(execution.value_or(""))},
          {names.template_id, about.template_id},
          {names.build, about.record ? uuid_of_digest(about.record->digest) : ""},
          {names.team, event.project}};
}

}  // namespace

std::span<const std::string_view> lifecycle_words() { return kSpellings; }

std::optional<std::string_view> lifecycle_word(const ledger::Event& event) {
  // A snapshot is an update that names one.
  if (event.kind == ledger::Kind::sandbox_updated && event.data.find("\"snapshot\"") != std::string::npos)
    if (json data = data_of(event); data.is_object() && data.contains("snapshot")) return kSnapshotted;
  for (const auto& word : kWords)
    if (word.kind == event.kind) return word.word;
  return std::nullopt;
}

json lifecycle_view(const ledger::Event& event, std::string_view word, const Subject& about) {
  return told(event, word, about, kListed);
}

std::optional<webhook::Message> lifecycle_message(const store::WebhookRecord& to, const ledger::Event& event,
                                                  const Look& look) {
  auto word = lifecycle_word(event);
  if (!word || std::ranges::find(to.events, *word) == to.events.end()) return std::nullopt;
  webhook::Message message;
  json body = told(event, *word, look(event.sandbox), kDelivered);
  body["event_category"] = "lifecycle";
  for (const auto& one : kWords)
    if (one.word == *word) body["event_label"] = one.label;
  if (body["event_data"].is_null()) body.erase("event_data");
  message.body = dialect::dump(body);
  message.headers = {{"e2b-webhook-id", to.id},
                     {"e2b-delivery-id", new_token()},
                     {"e2b-signature-version", "v1"},
                     {"e2b-signature", lifecycle_signature(to.secret, message.body)}};
  return message;
}

std::string lifecycle_signature(std::string_view secret, std::string_view body) {
  std::string signed_text(secret), hash(SHA256_DIGEST_LENGTH, '\0');
  signed_text += body;
  ::SHA256(reinterpret_cast<const unsigned char*>(signed_text.data()), signed_text.size(),
           reinterpret_cast<unsigned char*>(hash.data()));
  std::string text = dialect::base64(hash);
  while (text.ends_with('=')) text.pop_back();
  return text;
}

}  // namespace isola::e2b
