#include "sandbox/task_spans.h"

#include <algorithm>
#include <set>

namespace isola::sandbox {

uint64_t TaskSpans::begin(const std::string& task, Millis now) {
  auto at = std::ranges::find(running_, task, &Span::task);
  if (at == running_.end()) at = running_.insert(at, {.task = task, .since = now});
  at->since = std::min(at->since, now);
  ++at->commands;
  return generation_;
}

void TaskSpans::end(const std::string& task, Millis now, uint64_t born) {
  if (born != generation_) return;
  auto at = std::ranges::find(running_, task, &Span::task);
  if (at == running_.end() || --at->commands > 0) return;
  keep(std::move(*at), now);
  running_.erase(at);
}

void TaskSpans::end_all(Millis now) {
  for (auto& span : running_) keep(std::move(span), now);
  running_.clear();
  ++generation_;
}

void TaskSpans::keep(Span span, Millis now) {
  span.until = now;
  over_.push_back(std::move(span));
  if (over_.size() > kKept) over_.pop_front();
}

std::vector<std::string> TaskSpans::during(Millis from, Millis to) const {
  std::set<std::string> tasks;
  for (const auto& span : running_)
    if (span.since <= to) tasks.insert(span.task);
  const Span* last = nullptr;
  for (const auto& span : over_) {
    if (span.since > to) continue;
    if (span.until >= from)
      tasks.insert(span.task);
    else if (span.until >= from - kShortly && (!last || span.until >= last->until))
      last = &span;
  }
  if (tasks.empty() && last) tasks.insert(last->task);
  return {tasks.begin(), tasks.end()};
}

}  // namespace isola::sandbox
