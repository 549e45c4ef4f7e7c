#include "http/workers.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <exception>
#include <string>

#include "base/log.h"

namespace isola::http {

namespace {

thread_local boost::asio::io_context* this_worker = nullptr;

unsigned cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

struct Workers::Keep {
  std::vector<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> guards;
};

Workers::Workers(unsigned count) : keep_(std::make_unique<Keep>()) {
  if (count == 0) count = cores();
  for (unsigned i = 0; i < count; i++) {
    contexts_.push_back(std::make_unique<boost::asio::io_context>(1));
    keep_->guards.push_back(boost::asio::make_work_guard(*contexts_.back()));
  }
}

Workers::~Workers() { stop(); }

void Workers::start() {
  for (size_t i = threads_.size(); i < contexts_.size(); i++) {
    threads_.emplace_back([this, i] {
      this_worker = contexts_[i].get();
      ::pthread_setname_np(::pthread_self(), ("worker-" + std::to_string(i)).c_str());
      for (;;) {
        try {
          contexts_[i]->run();
          return;
        } catch (const std::exception& e) {
          // A detached handler threw. Its coroutine is gone; the others on this worker go on.
          log::error("http", "an exception reached a worker: {}", e.what());
        }
      }
    });
  }
}

void Workers::stop() {
  keep_->guards.clear();
  for (auto& context : contexts_) context->stop();
  for (auto& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  threads_.clear();
}

boost::asio::io_context& Workers::next() { return *contexts_[turn_++ % contexts_.size()]; }

boost::asio::io_context* Workers::of_this_thread() { return this_worker; }

}  // namespace isola::http
