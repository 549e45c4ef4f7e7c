// Output that nobody takes holds back the end of the command as well, which comes behind it. When a write was stuck for
// a second, the service looks after the end by itself, so that ledger and budgets have it.
//
//   Unread unread(executor, service, running);  // of the coroutine
//   unread.begins();
//   auto sent = co_await ex.write(line);
//   unread.ends();
//
// Used by one coroutine, on whose executor it waits.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "sandbox/service.h"

namespace isola::dialect {

class Unread {
 public:
  Unread(const boost::asio::any_io_executor& executor, sandbox::Service& service, const sandbox::Running& running)
      : state_(std::make_shared<State>(executor)) {
    state_->service = service.weak_from_this();
    state_->box = running.box;
    state_->command = running.info.id;
    state_->pid = running.info.pid;
  }
  Unread(const Unread&) = delete;
  Unread& operator=(const Unread&) = delete;
  ~Unread() {
    state_->since.reset();
    state_->timer.cancel();
  }

  void begins() {
    state_->since = Clock::now();
    if (!state_->waits) wait(state_);
  }
  void ends() { state_->since.reset(); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kPatience = std::chrono::seconds(1);

  struct State {
    explicit State(const boost::asio::any_io_executor& executor) : timer(executor) {}
    boost::asio::steady_timer timer;
    std::weak_ptr<sandbox::Service> service;
    std::weak_ptr<sandbox::Box> box;
    std::string command;
    uint32_t pid = 0;
    std::optional<Clock::time_point> since;  // of a write that is under way
    bool waits = false;                      // the timer; for good, once the service looks after the end
  };

  // One timer over many writes: it only looks at the one that is under way when it goes off.
  static void wait(const std::shared_ptr<State>& state) {
    state->waits = true;
    state->timer.expires_at(*state->since + kPatience);
    state->timer.async_wait([state](const boost::system::error_code& error) {
      state->waits = false;
      if (error || !state->since) return;
      if (Clock::now() < *state->since + kPatience) return wait(state);
      state->waits = true;
      auto service = state->service.lock();
      auto box = state->box.lock();
      if (service && box) service->watch(box, state->command, state->pid);
    });
  }

  std::shared_ptr<State> state_;
};

}  // namespace isola::dialect
