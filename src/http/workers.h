// The threads that all coroutines run on: one io_context each, as many as there are cores. What starts on a worker
// stays there, so that nothing on it needs a lock or a strand.
//
//   Workers workers(4);
//   workers.start();
//   boost::asio::co_spawn(workers.next(), job(), boost::asio::detached);
//   …
//   workers.stop();       // the loops end; ~Workers destroys what was still waiting on them
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace boost::asio {
class io_context;
}

namespace isola::http {

class Workers {
 public:
  explicit Workers(unsigned count = 0);  // 0: as many as this process may use cores
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void start();
  void stop();  // from any thread but a worker; returns when the threads have ended

  size_t size() const { return contexts_.size(); }
  boost::asio::io_context& operator[](size_t i) { return *contexts_[i]; }
  boost::asio::io_context& next();  // in turn
  // The worker that calls; nullptr on any other thread.
  static boost::asio::io_context* of_this_thread();

 private:
  struct Keep;
  std::vector<std::unique_ptr<boost::asio::io_context>> contexts_;
  std::unique_ptr<Keep> keep_;
  std::vector<std::thread> threads_;
  std::atomic<unsigned> turn_ = 0;
};

}  // namespace isola::http
