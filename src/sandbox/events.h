// What happens, as it happens: the ledger's events to whoever listens now. A listener that does not keep up loses the
// oldest ones and is told how many; the ledger has them all.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/task.h"
#include "ledger/event.h"
#include "sandbox/bell.h"

namespace isola::sandbox {

class Subscription {
 public:
  // The next event; nullopt: none within the time.
  Task<std::optional<ledger::Event>> next_for(std::chrono::milliseconds time);
  uint64_t take_lost();  // how many were dropped since the last call

 private:
  friend class EventBus;
  std::string project_, sandbox_;  // sandbox empty: all of the project's
  std::mutex mutex_;
  Bell bell_;
  std::deque<std::shared_ptr<const ledger::Event>> queue_;  // one copy for all who listen
  uint64_t lost_ = 0;
};

class EventBus {
 public:
  std::shared_ptr<Subscription> subscribe(std::string project, std::string sandbox = {});
  void publish(const ledger::Event& event);

 private:
  static constexpr size_t kQueue = 1024;
  std::mutex mutex_;
  std::vector<std::weak_ptr<Subscription>> subscriptions_;
};

}  // namespace isola::sandbox
