#include "webhook/courier.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/ids.h"
#include "base/log.h"
#include "sandbox/box.h"

namespace isola::webhook {

namespace net = boost::asio;

namespace {

constexpr size_t kAtOnce = 100;                     // entries of the ledger that are told in a row
constexpr auto kLook = std::chrono::seconds(30);    // again, although nobody rang
constexpr auto kTrouble = std::chrono::seconds(5);  // after the store or the ledger could not be read
constexpr size_t kLongestUrl = 2048;

Result<http::Url> address_of(const std::string& text) {
  auto url = http::parse_url(text);
  if (!url || !(text.starts_with("http://") || text.starts_with("https://")) || text.size() > kLongestUrl)
    return fail(Code::invalid, "url: must be an address such as https://example.org/hook");
  return url;
}

// The operator's own may lead to a machine nearby; a tenant's may not, as its sandboxes may not.
bool may_go_inside(const store::WebhookRecord& webhook) { return webhook.project == "default"; }

}  // namespace

Result<void> Courier::start() {
  ISOLA_TRY(auto all, parts_.store.list_webhooks(""));
  for (const auto& webhook : all)
    if (webhook.enabled) begin_line(webhook.project, webhook.id);
  return {};
}

Result<store::WebhookRecord> Courier::add(store::WebhookRecord webhook) {
  ISOLA_CHECK(address_of(webhook.url));
  webhook.id = new_webhook_id();
  webhook.created = sandbox::now_millis();
  webhook.told = parts_.service->ledger().head().seq;
  ISOLA_CHECK(parts_.store.insert_webhook(webhook));
  if (webhook.enabled) begin_line(webhook.project, webhook.id);
  return webhook;
}

Result<void> Courier::change(const store::WebhookRecord& webhook) {
  ISOLA_CHECK(address_of(webhook.url));
  ISOLA_TRY(auto before, find(webhook.project, webhook.id));
  // What happened while it was off is not told.
  std::optional<uint64_t> from;
  if (webhook.enabled && !before.enabled) from = parts_.service->ledger().head().seq;
  ISOLA_CHECK(parts_.store.change_webhook(webhook, from));
  if (webhook.enabled) begin_line(webhook.project, webhook.id);
  return {};
}

Result<void> Courier::remove(const std::string& project, const std::string& id) {
  return parts_.store.remove_webhook(project, id);
}
Result<store::WebhookRecord> Courier::find(const std::string& project, const std::string& id) {
  return parts_.store.find_webhook(project, id);
}
Result<std::vector<store::WebhookRecord>> Courier::list(const std::string& project) {
  return parts_.store.list_webhooks(project);
}

void Courier::begin_line(const std::string& project, const std::string& id) {
  std::lock_guard lock(mutex_);
  if (!lines_.insert(id).second) return;
  net::co_spawn(
      parts_.next_worker(), [self = shared_from_this(), project, id] { return self->line(project, id); },
      net::detached);
}

// Looked at once more under the lock: whoever switches it on meanwhile finds either a line that goes on, or none.
bool Courier::may_end(const std::string& project, const std::string& id) {
  std::lock_guard lock(mutex_);
  auto webhook = find(project, id);
  if (webhook && webhook->enabled && !stopping_) return false;
  if (!webhook && webhook.error().code != Code::not_found && !stopping_) return false;
  lines_.erase(id);
  return true;
}

Task<void> Courier::line(std::string project, std::string id) {
  auto news = parts_.service->events().subscribe(project);
  uint64_t looked = 0;  // up to there, nothing is left to be told
  for (;;) {
    auto webhook = find(project, id);
    if (stopping_ || (webhook && !webhook->enabled) || (!webhook && webhook.error().code == Code::not_found)) {
      if (may_end(project, id)) co_return;
      continue;
    }
    if (!webhook) {
      log::warn("webhook", "{}: {}", id, webhook.error().message);
      co_await wait(kTrouble);
      continue;
    }
    auto found = co_await look(project, std::max(looked, webhook->told));
    if (!found) {
      if (stopping_) continue;  // so does the ledger's desk
      log::warn("webhook", "{}: {}", id, found.error().message);
      co_await wait(kTrouble);
      continue;
    }
    if (found->events.empty()) {
      looked = found->up_to;
      note_empty_stretch(*webhook, looked);
      if (found->all) (void)co_await news->next_for(kLook);
      continue;
    }
    for (const auto& event : found->events) {
      // Again for each: somebody may have switched it off, or pointed it elsewhere, while one was tried.
      webhook = find(project, id);
      if (!webhook || !webhook->enabled) break;
      bool something = false;
      if (event.seq > webhook->told) something = co_await tell(*webhook, event);
      if (stopping_) break;  // it may not have arrived: it comes again after the next start
      // What is not for it needs a note only where nothing else follows.
      if (!something && &event != &found->events.back()) continue;
      auto noted = parts_.store.set_webhook_told(id, event.seq);
      if (noted) continue;
      // It would be told the same again, as fast as it answers.
      log::warn("webhook", "{}: {}", id, noted.error().message);
      co_await wait(kTrouble);
      break;
    }
  }
}

// A stretch at a time: however much else was written since it was told last, no question outlasts its patience, and
// what was looked through once is not looked through again.
Task<Result<Courier::Found>> Courier::look(std::string project, uint64_t from) {
  auto flushed = co_await parts_.service->flush_ledger();
  // What the file has can be told also while nothing can be written.
  const uint64_t newest = flushed ? *flushed : parts_.service->ledger().head().seq;
  Found found{.events = {}, .up_to = from, .all = true};
  if (newest <= from) co_return found;
  found.up_to = newest - from > parts_.stretch ? from + parts_.stretch : newest;
  found.all = found.up_to == newest;
  ledger::EventFilter filter{.project = project, .kind_prefix = "sandbox.", .after = from};
  filter.before = found.up_to + 1;
  filter.limit = kAtOnce;
  ISOLA_CO_TRY(found.events, co_await parts_.service->ask_ledger(project, filter));
  co_return found;
}

// Now and then, for the server after this one: it is no harm to look again, and each note is a write.
void Courier::note_empty_stretch(const store::WebhookRecord& webhook, uint64_t looked) {
  if (looked < webhook.told + parts_.stretch) return;
  auto noted = parts_.store.set_webhook_told(webhook.id, looked);
  if (!noted) log::warn("webhook", "{}: {}", webhook.id, noted.error().message);
}

// Whether there was something to tell; whether it arrived is in the log.
Task<bool> Courier::tell(store::WebhookRecord webhook, const ledger::Event& event) {
  if (!form_ || !form_(webhook, event)) co_return false;
  std::string why;
  for (unsigned attempt = 1; attempt <= parts_.tries && !stopping_; ++attempt) {
    if (attempt > 1) {
      co_await wait(parts_.again);
      // As it is now: somebody may have put it right, or switched it off.
      auto now = find(webhook.project, webhook.id);
      if (!now || !now->enabled) co_return true;
      webhook = *now;
    }
    auto message = form_(webhook, event);
    auto url = address_of(webhook.url);
    if (!message || !url) co_return true;
    Post one{.url = *url,
             .headers = std::move(message->headers),
             .body = std::move(message->body),
             .inside = may_go_inside(webhook),
             .time = parts_.time};
    auto status = co_await post(std::move(one));
    if (status && *status >= 200 && *status < 300) co_return true;
    why = status ? "it answered " + std::to_string(*status) : status.error().message;
    // Who must not be reached will not be later.
    if (!status && status.error().code == Code::denied) break;
  }
  if (!stopping_) log::warn("webhook", "{} was not told of entry {}: {}", webhook.id, event.seq, log::quoted(why));
  co_return true;
}

Task<void> Courier::wait(std::chrono::milliseconds time) {
  net::steady_timer timer(co_await net::this_coro::executor, time);
  (void)co_await timer.async_wait(net::as_tuple(net::use_awaitable));
}

}  // namespace isola::webhook
