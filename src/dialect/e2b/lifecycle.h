// What happens to a sandbox, in E2B's words: in the list of events, and in what webhooks are told.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ledger/event.h"
#include "store/records.h"
#include "webhook/courier.h"

namespace isola::e2b {

// Every word that there is, "sandbox.lifecycle.created" …
std::span<const std::string_view> lifecycle_words();
// Nothing: E2B does not tell of such an event.
std::optional<std::string_view> lifecycle_word(const ledger::Event& event);
// Whom an event is about: also of one that has ended, as long as it is remembered.
struct Subject {
  std::optional<store::SandboxRecord> record;
  std::string template_id;
};
nlohmann::json lifecycle_view(const ledger::Event& event, std::string_view word, const Subject& about);

// What a webhook is told, signed with its secret; nothing: it did not ask for that. `look`: asked if there is something
// to tell.
using Look = std::function<Subject(const std::string& sandbox)>;
std::optional<webhook::Message> lifecycle_message(const store::WebhookRecord& to, const ledger::Event& event,
                                                  const Look& look);
// base64(SHA-256(secret, body)) without padding: what a listener computes to know who speaks.
std::string lifecycle_signature(std::string_view secret, std::string_view body);

}  // namespace isola::e2b
