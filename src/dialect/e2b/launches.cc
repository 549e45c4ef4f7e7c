#include "dialect/e2b/launches.h"

namespace isola::e2b {

using sandbox::BoxPtr;

void Launches::put(const BoxPtr& box, uint32_t pid, Launch launch) {
  std::lock_guard lock(mutex_);
  // Now and then, and rarer the more there are: work per call does not grow with their number.
  if (boxes_.size() >= sweep_at_) {
    std::erase_if(boxes_, [](const auto& entry) { return entry.second.box.expired(); });
    sweep_at_ = std::max<size_t>(64, boxes_.size() * 2);
  }
  auto& of_box = boxes_[box->id()];
  of_box.box = box;
  // Whoever hung up before the end left its entry here.
  if (of_box.by_pid.size() >= 512)
    std::erase_if(of_box.by_pid, [&](const auto& entry) {
      auto known = box->find_command(entry.second.command);
      return !known || known->ended != 0;
    });
  of_box.by_pid[pid] = std::move(launch);
}

void Launches::drop(const BoxPtr& box, uint32_t pid) {
  std::lock_guard lock(mutex_);
  auto at = boxes_.find(box->id());
  if (at == boxes_.end()) return;
  at->second.by_pid.erase(pid);
  if (at->second.by_pid.empty()) boxes_.erase(at);
}

std::optional<Launch> Launches::find(const BoxPtr& box, uint32_t pid) const {
  std::lock_guard lock(mutex_);
  auto at = boxes_.find(box->id());
  if (at == boxes_.end()) return std::nullopt;
  auto launch = at->second.by_pid.find(pid);
  if (launch == at->second.by_pid.end()) return std::nullopt;
  return launch->second;
}

std::optional<uint32_t> Launches::tagged(const BoxPtr& box, const std::string& tag) const {
  std::lock_guard lock(mutex_);
  auto at = boxes_.find(box->id());
  if (at == boxes_.end()) return std::nullopt;
  for (const auto& [pid, launch] : at->second.by_pid)
    if (launch.tag == tag) return pid;
  return std::nullopt;
}

void Launches::close_input(const BoxPtr& box, uint32_t pid) {
  std::lock_guard lock(mutex_);
  auto at = boxes_.find(box->id());
  if (at == boxes_.end()) return;
  if (auto launch = at->second.by_pid.find(pid); launch != at->second.by_pid.end()) launch->second.input = false;
}

}  // namespace isola::e2b
