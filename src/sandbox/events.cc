#include "sandbox/events.h"

namespace isola::sandbox {

std::shared_ptr<Subscription> EventBus::subscribe(std::string project, std::string sandbox) {
  auto subscription = std::make_shared<Subscription>();
  subscription->project_ = std::move(project);
  subscription->sandbox_ = std::move(sandbox);
  std::lock_guard lock(mutex_);
  std::erase_if(subscriptions_, [](const auto& weak) { return weak.expired(); });
  subscriptions_.push_back(subscription);
  return subscription;
}

void EventBus::publish(const ledger::Event& event) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<const ledger::Event> shared;
  for (const auto& weak : subscriptions_) {
    auto subscription = weak.lock();
    if (!subscription || subscription->project_ != event.project) continue;
    if (!subscription->sandbox_.empty() && subscription->sandbox_ != event.sandbox) continue;
    {
      std::lock_guard inner(subscription->mutex_);
      if (subscription->queue_.size() >= kQueue) {
        subscription->queue_.pop_front();
        ++subscription->lost_;
      }
      if (!shared) shared = std::make_shared<const ledger::Event>(event);
      subscription->queue_.push_back(shared);
    }
    subscription->bell_.ring();
  }
}

Task<std::optional<ledger::Event>> Subscription::next_for(std::chrono::milliseconds time) {
  auto until = std::chrono::steady_clock::now() + time;
  for (;;) {
    uint64_t ticket = bell_.ticket();
    {
      std::lock_guard lock(mutex_);
      if (!queue_.empty()) {
        auto event = std::move(queue_.front());
        queue_.pop_front();
        co_return *event;
      }
    }
    auto left = until - std::chrono::steady_clock::now();
    if (left.count() <= 0) co_return std::nullopt;
    (void)co_await bell_.wait_for(ticket, left);
  }
}

uint64_t Subscription::take_lost() {
  std::lock_guard lock(mutex_);
  return std::exchange(lost_, 0);
}

}  // namespace isola::sandbox
