// Questions that may take long, such as those to the ledger: a thread of its own answers them, and no worker stands
// still for one.
//
//   ISOLA_CO_TRY(auto events, co_await desk.ask<Events>(project, [=, this] { return ledger.query(filter); }));
//
// One at a time; each project in its turn, whoever of them asks more often. Any worker may ask. Who does not wait for
// the answer any more (a coroutine that was cancelled, such as the loser of `||`) has no place in the line either; what
// was begun for him goes on to its end. A question that throws is answered with Code::internal.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/task.h"
#include "sandbox/bell.h"

namespace isola::sandbox {

class QuestionDesk {
 public:
  static constexpr size_t kMostWaiting = 128;  // of one project: Code::exhausted beyond

  QuestionDesk();
  ~QuestionDesk();
  QuestionDesk(const QuestionDesk&) = delete;
  QuestionDesk& operator=(const QuestionDesk&) = delete;

  // What was not begun is answered with Code::unavailable, and so is what is asked from now on.
  void stop();

  template <typename T>
  Task<Result<T>> ask(std::string project, std::function<Result<T>()> question) {
    struct Answer {
      std::mutex mutex;
      Bell bell;
      std::optional<Result<T>> said;
    };
    auto answer = std::make_shared<Answer>();
    auto job = [asker = std::weak_ptr(answer), question = std::move(question)](const Error* refused) {
      auto answer = asker.lock();
      if (!answer) return;
      Result<T> said = refused ? Result<T>(std::unexpected(*refused)) : answered(question);
      {
        std::lock_guard lock(answer->mutex);
        answer->said = std::move(said);
      }
      answer->bell.ring();
    };
    auto added = add(project, {answer, std::move(job)});
    if (!added) co_return std::unexpected(std::move(added).error());
    for (;;) {
      uint64_t ticket = answer->bell.ticket();
      {
        std::lock_guard lock(answer->mutex);
        if (answer->said) co_return std::move(*answer->said);
      }
      co_await answer->bell.wait(ticket);
    }
  }

 private:
  // Nobody stands behind the thread: what is thrown past it would end the server.
  template <typename T>
  static Result<T> answered(const std::function<Result<T>()>& question) {
    try {
      return question();
    } catch (const std::exception& e) {
      return std::unexpected(failed(e.what()));
    }
  }
  static Error failed(const char* what);
  struct Job {
    std::weak_ptr<void> asker;
    std::function<void(const Error* refused)> answer;
  };
  Result<void> add(const std::string& project, Job job);
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::map<std::string, std::deque<Job>> waiting_;  // by project
  std::deque<std::string> turns_;                   // projects that wait, in the order of their turns
  std::thread thread_;
};

}  // namespace isola::sandbox
