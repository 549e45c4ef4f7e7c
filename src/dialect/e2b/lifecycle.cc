#include "dialect/e2b/lifecycle.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>

#include "base/ids.h"
#include "dialect/shared/base64.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

struct Word {
  ledger::Kind kind;
  std::string_view word;
};
constexpr std::string_view kSnapshotted = "sandbox.lifecycle.snapshotted";
constexpr std::array kWords = {
    Word{ledger::Kind::sandbox_created, "sandbox.lifecycle.created"},
    Word{ledger::Kind::sandbox_updated, "sandbox.lifecycle.updated"},
    Word{ledger::Kind::sandbox_paused, "sandbox.lifecycle.paused"},
    Word{ledger::Kind::sandbox_resumed, "sandbox.lifecycle.resumed"},
    Word{ledger::Kind::sandbox_forked, kSnapshotted},
    Word{ledger::Kind::sandbox_ended, "sandbox.lifecycle.killed"},
};
constexpr auto kSpellings = [] {
  std::array<std::string_view, kWords.size()> words{};
  for (size_t i = 0; i < kWords.size(); ++i) words[i] = kWords[i].word;
  return words;
}();

// As E2B's are: a UUID, out of the hash that the ledger gave the entry.
std::string id_of(const ledger::Event& event) {
  const auto& h = event.hash;
  if (h.size() < 32) return std::to_string(event.seq);
  return h.substr(0, 8) + "-" + h.substr(8, 4) + "-" + h.substr(12, 4) + "-" + h.substr(16, 4) + "-" + h.substr(20, 12);
}

json data_of(const ledger::Event& event) {
  json data = json::parse(event.data, nullptr, false);
  return data.is_object() ? data : json(nullptr);
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

json lifecycle_view(const ledger::Event& event, std::string_view word) {
  return {{"version", "v2"},
          {"id", id_of(event)},
          {"type", word},
          {"timestamp", dialect::when(event.time)},
          {"eventData", data_of(event)},
          {"sandboxId", event.sandbox},
          {"sandboxTeamId", event.project}};
}

// The same with other names: deliveries are snake_case where the list is camelCase.
std::optional<webhook::Message> lifecycle_message(const store::WebhookRecord& to, const ledger::Event& event) {
  auto word = lifecycle_word(event);
  if (!word || std::ranges::find(to.events, *word) == to.events.end()) return std::nullopt;
  webhook::Message message;
  message.body = dialect::dump({{"version", "v2"},
                                {"id", id_of(event)},
                                {"type", *word},
                                {"event_category", "lifecycle"},
                                {"event_label", word->substr(word->rfind('.') + 1)},
                                {"timestamp", dialect::when(event.time)},
                                {"event_data", data_of(event)},
                                {"sandbox_id", event.sandbox},
                                {"sandbox_team_id", event.project}});
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
