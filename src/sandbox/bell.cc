#include "sandbox/bell.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace isola::sandbox {

namespace net = boost::asio;

struct Bell::Waiter {
  explicit Waiter(const net::any_io_executor& executor) : timer(executor) {}
  net::steady_timer timer;
  bool rung = false;  // only touched on the timer's own executor
};

struct Bell::Inner {
  mutable std::mutex mutex;
  uint64_t rings = 0;
  std::vector<std::shared_ptr<Waiter>> waiters;
};

Bell::Bell() : inner_(std::make_shared<Inner>()) {}
Bell::~Bell() { ring(); }

uint64_t Bell::ticket() const {
  std::lock_guard lock(inner_->mutex);
  return inner_->rings;
}

void Bell::ring() {
  std::vector<std::shared_ptr<Waiter>> waiters;
  {
    std::lock_guard lock(inner_->mutex);
    ++inner_->rings;
    waiters.swap(inner_->waiters);
  }
  for (auto& waiter : waiters) {
    auto executor = waiter->timer.get_executor();
    net::post(executor, [waiter = std::move(waiter)] {
      waiter->rung = true;
      waiter->timer.cancel();
    });
  }
}

Task<void> Bell::wait(uint64_t ticket) { co_await wait_for(ticket, std::chrono::hours(24 * 365)); }

Task<bool> Bell::wait_for(uint64_t ticket, std::chrono::steady_clock::duration time) {
  auto inner = inner_;  // the bell may go while we wait
  net::any_io_executor executor = co_await net::this_coro::executor;
  auto waiter = std::make_shared<Waiter>(executor);
  waiter->timer.expires_after(time);
  {
    std::lock_guard lock(inner->mutex);
    if (inner->rings != ticket) co_return true;
    inner->waiters.push_back(waiter);
  }
  // A ring that comes before the wait has begun is posted behind us on this same executor: it cannot be missed.
  boost::system::error_code ignored;
  co_await waiter->timer.async_wait(net::redirect_error(net::use_awaitable, ignored));
  if (!waiter->rung) {
    std::lock_guard lock(inner->mutex);
    std::erase(inner->waiters, waiter);
  }
  co_return waiter->rung;
}

}  // namespace isola::sandbox
