// Webhooks: who is told what happens to a project's sandboxes.
#include <algorithm>

#include "dialect/e2b/api.h"
#include "dialect/e2b/body.h"
#include "dialect/e2b/lifecycle.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

using nlohmann::json;
using webhook::Courier;

namespace {

constexpr size_t kLongestHookName = 200, kLongestSecret = 1024;

// The secret is never shown again.
json view(const store::WebhookRecord& webhook) {
  return {{"id", webhook.id},          {"teamID", webhook.project},
          {"teamId", webhook.project}, {"name", webhook.name},
          {"url", webhook.url},        {"enabled", webhook.enabled},
          {"events", webhook.events},  {"createdAt", dialect::when(webhook.created)}};
}

Result<std::vector<std::string>> events_of(const json& list) {
  if (!list.is_array() || list.empty()) return fail(Code::invalid, "events: must be a list with at least one type");
  std::vector<std::string> events;
  auto words = lifecycle_words();
  for (const auto& word : list) {
    if (!word.is_string() || std::ranges::find(words, word.get_ref<const std::string&>()) == words.end()) {
      std::string known;
      for (auto one : words) known += (known.empty() ? "" : ", ") + std::string(one);
      return fail(Code::invalid, "events: the types are " + known);
    }
    if (std::ranges::find(events, word.get<std::string>()) == events.end()) events.push_back(word);
  }
  return events;
}

// What the body says, into what there is.
Result<void> take_over(const json& body, store::WebhookRecord& webhook) {
  for (auto [name, field, most] : {std::tuple("name", &webhook.name, kLongestHookName),
                                   std::tuple("signatureSecret", &webhook.secret, kLongestSecret),
                                   std::tuple("url", &webhook.url, size_t{2048})}) {
    if (!given(body, name)) continue;
    ISOLA_TRY(*field, text(body, name));
    if (field->empty() || field->size() > most)
      return fail(Code::invalid, std::string(name) + ": must have between 1 and " + std::to_string(most) + " bytes");
  }
  if (given(body, "enabled")) {
    if (!body["enabled"].is_boolean()) return fail(Code::invalid, "enabled: must be true or false");
    webhook.enabled = body["enabled"];
  }
  if (given(body, "events")) {
    ISOLA_TRY(webhook.events, events_of(body["events"]));
  }
  return {};
}

Task<Result<void>> create(Courier& courier, http::Exchange& ex) {
  ISOLA_CO_TRY(json body, co_await read_body(ex));
  for (const char* name : {"name", "url", "events", "signatureSecret"})
    if (!given(body, name)) co_return fail(Code::invalid, std::string(name) + ": is missing");
  store::WebhookRecord webhook;
  webhook.project = dialect::project_of(ex);
  ISOLA_CO_CHECK(take_over(body, webhook));
  ISOLA_CO_TRY(webhook, courier.add(std::move(webhook)));
  ex.reply(201, dialect::dump(view(webhook)));
  co_return Result<void>();
}

Task<Result<void>> change(Courier& courier, http::Exchange& ex) {
  ISOLA_CO_TRY(json body, co_await read_body(ex));
  ISOLA_CO_TRY(auto webhook, courier.find(dialect::project_of(ex), std::string(ex.param("webhook"))));
  ISOLA_CO_CHECK(take_over(body, webhook));
  ISOLA_CO_CHECK(courier.change(webhook));
  ex.reply(200, dialect::dump(view(webhook)));
  co_return Result<void>();
}

Result<void> list_webhooks(Courier& courier, http::Exchange& ex) {
  ISOLA_TRY(auto all, courier.list(dialect::project_of(ex)));
  json out = json::array();
  for (const auto& webhook : all) out.push_back(view(webhook));
  ex.reply(200, dialect::dump(out));
  return {};
}

}  // namespace

void Api::add_webhooks(http::Router& router) {
  auto courier = courier_;
  if (courier)
    courier->set_form([look = subjects()](const store::WebhookRecord& to, const ledger::Event& event) {
      return lifecycle_message(to, event, look);
    });
  auto& all = group(router, "/events");
  all.add("POST", "/events/webhooks", handled([courier](http::Exchange& ex) { return create(*courier, ex); }));
  all.add("GET", "/events/webhooks",
          handled([courier](http::Exchange& ex) -> Task<Result<void>> { co_return list_webhooks(*courier, ex); }));
  all.add("GET", "/events/webhooks/{webhook}", handled([courier](http::Exchange& ex) -> Task<Result<void>> {
            ISOLA_CO_TRY(auto webhook, courier->find(dialect::project_of(ex), std::string(ex.param("webhook"))));
            ex.reply(200, dialect::dump(view(webhook)));
            co_return Result<void>();
          }));
  all.add("PATCH", "/events/webhooks/{webhook}",
          handled([courier](http::Exchange& ex) { return change(*courier, ex); }));
  all.add("DELETE", "/events/webhooks/{webhook}", handled([courier](http::Exchange& ex) -> Task<Result<void>> {
            ISOLA_CO_CHECK(courier->remove(dialect::project_of(ex), std::string(ex.param("webhook"))));
            ex.reply(200, "{}");
            co_return Result<void>();
          }));
}

}  // namespace isola::e2b
