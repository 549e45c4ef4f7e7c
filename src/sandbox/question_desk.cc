#include "sandbox/question_desk.h"

#include "base/log.h"

namespace isola::sandbox {

namespace {

Error stopping() { return {Code::unavailable, "the server is stopping"}; }

}  // namespace

QuestionDesk::QuestionDesk() : thread_([this] { run(); }) {}

QuestionDesk::~QuestionDesk() {
  stop();
  thread_.join();
}

void QuestionDesk::stop() {
  std::map<std::string, std::deque<Job>> left;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    left.swap(waiting_);
    turns_.clear();
  }
  wake_.notify_all();
  const Error gone = stopping();
  for (auto& [project, jobs] : left)
    for (auto& job : jobs) job.answer(&gone);
}

// The details are the operator's.
Error QuestionDesk::failed(const char* what) {
  log::error("sandbox", "a question threw: {}", what);
  return {Code::internal, "the question could not be answered"};
}

Result<void> QuestionDesk::add(const std::string& project, Job job) {
  {
    std::lock_guard lock(mutex_);
    if (stop_) return std::unexpected(stopping());
    auto& line = waiting_[project];
    const bool stands = !line.empty();  // it has its turn
    if (line.size() >= kMostWaiting) std::erase_if(line, [](const Job& one) { return one.asker.expired(); });
    if (line.size() >= kMostWaiting)
      return fail(Code::exhausted, "the project has asked " + std::to_string(kMostWaiting) +
                                       " questions that wait for their answers: ask one after the other");
    if (!stands) turns_.push_back(project);
    line.push_back(std::move(job));
  }
  wake_.notify_one();
  return {};
}

void QuestionDesk::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || !turns_.empty(); });
    if (stop_) return;
    std::string project = std::move(turns_.front());
    turns_.pop_front();
    auto line = waiting_.find(project);
    Job job = std::move(line->second.front());
    line->second.pop_front();
    if (line->second.empty())
      waiting_.erase(line);
    else
      turns_.push_back(std::move(project));  // behind the others
    lock.unlock();
    job.answer(nullptr);  // nothing, where nobody waits any more
    job = {};             // what it holds goes here, too
    lock.lock();
  }
}

}  // namespace isola::sandbox
