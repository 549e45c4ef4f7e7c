#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "guest/agent/process.h"

namespace isola::guest {

Result<std::shared_ptr<Process>> ProcessTable::start(const Start& start, const std::vector<std::string>& files,
                                                     bool whole) {
  if (table_.size() - exited_.size() >= kMaxRunning) return fail(Code::exhausted, "too many processes at once");
  ISOLA_TRY(User user, resolve_user(start.user));
  auto process = std::make_shared<Process>(loop_, start, whole ? &late_ : nullptr);
  ISOLA_CHECK(process->launch(start, user, defaults_, files));
  if (auto at = table_.find(process->pid()); at != table_.end()) {  // the number of one long gone, used again
    at->second->end_now();
    std::erase(late_, process->pid());
    std::erase(exited_, process->pid());
    table_.erase(at);
  }
  table_[process->pid()] = process;
  if (int64_t d = process->deadline(); d && (!next_deadline_ || d < next_deadline_)) next_deadline_ = d;
  return process;
}

Result<std::shared_ptr<Process>> ProcessTable::find(uint32_t pid) const {
  auto at = table_.find(static_cast<pid_t>(pid));
  if (at == table_.end()) return fail(Code::not_found, "no such process: " + std::to_string(pid), ESRCH);
  return at->second;
}

Processes ProcessTable::list() const {
  Processes out;
  for (const auto& [pid, process] : table_) out.list.push_back(process->info());
  std::sort(out.list.begin(), out.list.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  return out;
}

bool ProcessTable::reap() {
  for (int i = 0; i < 512; ++i) {
    int status;
    pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid <= 0) return false;
    auto at = table_.find(pid);
    if (at == table_.end() || at->second->is_reaped()) continue;  // an orphan that pid 1 inherited
    at->second->exited(status);
    if (!at->second->running()) retire(pid);
  }
  return true;
}

// Those whose end was told after they had been reaped.
void ProcessTable::retire_late() {
  for (pid_t pid : std::exchange(late_, {})) retire(pid);
}

// Exit states are small and many are kept; their output is not, so the oldest give theirs up first.
void ProcessTable::retire(pid_t pid) {
  exited_.push_back(pid);
  while (exited_.size() > kKeepExited) {
    auto done = std::find_if(exited_.begin(), exited_.end(),
                             [&](pid_t p) { return !table_[p]->draining() && table_[p]->deadline() == 0; });
    if (done == exited_.end())
      break;  // all still have a background process that writes, or one to be killed: they go when it ends
    table_.erase(*done);
    exited_.erase(done);
  }
  trim();
}

// What somebody still reads is not the past: it is given up when they are through, or gone.
void ProcessTable::trim() {
  size_t memory = 0, files = 0;
  untrimmed_ = false;
  for (auto p = exited_.rbegin(); p != exited_.rend(); ++p) {
    auto& process = *table_[*p];
    if (process.draining()) continue;
    if (process.is_read()) {
      untrimmed_ = true;
      continue;
    }
    memory += process.log().memory();
    files += process.log().on_disk();
    if (memory > kKeepMemory || (process.log().on_disk() && files > kKeepFiles)) process.log().drop();
  }
}

void ProcessTable::forget_output() {
  for (auto& [pid, process] : table_) process->log().drop();
}

int ProcessTable::timeout_ms() const {
  if (next_deadline_ == 0) return -1;
  return static_cast<int>(std::clamp<int64_t>(next_deadline_ - now_ms(), 0, INT32_MAX));
}

void ProcessTable::check_deadlines() {
  int64_t now = next_deadline_ ? now_ms() : 0;
  if (next_deadline_ == 0 || now < next_deadline_) return;
  next_deadline_ = 0;
  for (auto& [pid, process] : table_) {
    if (process->deadline() && process->deadline() <= now) process->on_deadline();
    if (int64_t d = process->deadline(); d && (!next_deadline_ || d < next_deadline_)) next_deadline_ = d;
  }
}

}  // namespace isola::guest
