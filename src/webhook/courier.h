// Tells those outside who asked for it what happens to a project's sandboxes: a line for each webhook, which walks the
// ledger from where it was told last, in order, and comes back to it after a restart. So an event is told at least
// once; one that cannot be told is tried a few times and then given up, so that one deaf listener does not hold up its
// news for ever.
//
//   auto courier = std::make_shared<Courier>(parts);
//   courier->set_form([](const store::WebhookRecord& to, const ledger::Event& event) { … });
//   ISOLA_CHECK(courier->start());
//
// What a message looks like is the business of the dialect whose clients ask for webhooks. Any thread may call.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ledger/event.h"
#include "sandbox/service.h"
#include "store/records.h"
#include "webhook/post.h"

namespace isola::webhook {

struct Message {
  http::Pairs headers;
  std::string body;
};

class Courier : public std::enable_shared_from_this<Courier> {
 public:
  struct Parts {
    std::function<boost::asio::io_context&()> next_worker;
    std::shared_ptr<sandbox::Service> service;
    store::Store& store;
    std::chrono::milliseconds again{10'000};  // after a try that failed
    unsigned tries = 4;
    std::chrono::milliseconds time{10'000};  // of one try
    uint64_t stretch = 50'000;               // entries of the ledger that one question looks through
  };
  // Asked for each try. Nothing: this event is not for that webhook.
  using Form = std::function<std::optional<Message>(const store::WebhookRecord& to, const ledger::Event& event)>;

  explicit Courier(Parts parts) : parts_(std::move(parts)) {}
  void set_form(Form form) { form_ = std::move(form); }
  // The lines of all webhooks that there are.
  Result<void> start();
  void stop() { stopping_ = true; }

  // Tells what happens from now on. invalid: the address is none.
  Result<store::WebhookRecord> add(store::WebhookRecord webhook);
  Result<void> change(const store::WebhookRecord& webhook);
  Result<void> remove(const std::string& project, const std::string& id);
  Result<store::WebhookRecord> find(const std::string& project, const std::string& id);
  Result<std::vector<store::WebhookRecord>> list(const std::string& project);

 private:
  void begin_line(const std::string& project, const std::string& id);
  bool may_end(const std::string& project, const std::string& id);
  Task<void> line(std::string project, std::string id);
  // What there is for it behind `from`, and how far that was looked for.
  struct Found {
    std::vector<ledger::Event> events;
    uint64_t up_to = 0;
    bool all = false;  // nothing stands behind it
  };
  Task<Result<Found>> look(std::string project, uint64_t from);
  void note_empty_stretch(const store::WebhookRecord& webhook, uint64_t looked);
  Task<bool> tell(store::WebhookRecord webhook, const ledger::Event& event);
  Task<void> wait(std::chrono::milliseconds time);

  Parts parts_;
  Form form_;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::set<std::string> lines_;  // webhooks that have one; under mutex_
};

}  // namespace isola::webhook
