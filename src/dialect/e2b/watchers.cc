#include "dialect/e2b/watchers.h"

#include <algorithm>
#include <vector>

#include "base/ids.h"

namespace isola::e2b {

Watchers::Watcher::~Watcher() { *of_box_ -= events_.size(); }

bool Watchers::Watcher::put(std::string_view event) {
  std::lock_guard lock(mutex_);
  if (error_) return false;
  size_t more = event.size() + 1;
  if (events_.size() + more > kMostBytes) return false;
  if (*of_box_ + more > kMostBytesOfBox) return false;
  if (!events_.empty()) events_ += ',', *of_box_ += 1;
  events_ += event;
  *of_box_ += event.size();
  return true;
}

void Watchers::Watcher::fail(Error why) {
  {
    std::lock_guard lock(mutex_);
    error_ = std::move(why);
    *of_box_ -= events_.size();
    events_ = {};
  }
  cancel();
}

Result<std::string> Watchers::Watcher::take() {
  std::lock_guard lock(mutex_);
  if (error_) return std::unexpected(*error_);
  *of_box_ -= events_.size();
  return std::exchange(events_, {});
}

void Watchers::Watcher::set_ended() {
  std::lock_guard lock(mutex_);
  ended_ = true;
}

void Watchers::Watcher::cancel() {
  if (channel_) channel_->cancel();
}

Result<std::string> Watchers::add(const sandbox::BoxPtr& box, const WatcherPtr& watcher) {
  std::string id = "w" + new_command_id();
  std::vector<OfBox> ended;  // let go outside of the lock
  std::vector<WatcherPtr> over;
  std::lock_guard lock(mutex_);
  // Now and then, and rarer the more there are: work per call does not grow with their number.
  if (boxes_.size() >= sweep_at_) {
    for (auto at = boxes_.begin(); at != boxes_.end();) {
      auto known = at->second.box.lock();
      if (known && known->state() != State::ended) {
        ++at;
        continue;
      }
      ended.push_back(std::move(at->second));
      at = boxes_.erase(at);
    }
    sweep_at_ = std::max<size_t>(64, boxes_.size() * 2);
  }
  auto& of_box = boxes_[box->id()];
  of_box.box = box;
  // Those of which nothing is to come any more make room.
  if (of_box.by_id.size() >= kMostPerSandbox)
    std::erase_if(of_box.by_id, [&](const auto& entry) {
      std::unique_lock one(entry.second->mutex_);
      if (!entry.second->ended_) return false;
      one.unlock();
      over.push_back(entry.second);
      return true;
    });
  if (of_box.by_id.size() >= kMostPerSandbox)
    return isola::fail(Code::exhausted, "too many watchers in this sandbox: remove some first");
  watcher->of_box_ = of_box.bytes;
  of_box.by_id[id] = watcher;
  return id;
}

Watchers::WatcherPtr Watchers::find(const std::string& sandbox, const std::string& id) const {
  std::lock_guard lock(mutex_);
  auto of_box = boxes_.find(sandbox);
  if (of_box == boxes_.end()) return nullptr;
  auto at = of_box->second.by_id.find(id);
  return at == of_box->second.by_id.end() ? nullptr : at->second;
}

void Watchers::remove(const std::string& sandbox, const std::string& id) {
  WatcherPtr gone;  // let go outside of the lock
  std::lock_guard lock(mutex_);
  auto of_box = boxes_.find(sandbox);
  if (of_box == boxes_.end()) return;
  if (auto at = of_box->second.by_id.find(id); at != of_box->second.by_id.end()) {
    gone = std::move(at->second);
    of_box->second.by_id.erase(at);
  }
  if (of_box->second.by_id.empty()) boxes_.erase(of_box);
}

size_t Watchers::size() const {
  std::lock_guard lock(mutex_);
  size_t all = 0;
  for (const auto& [sandbox, of_box] : boxes_) all += of_box.by_id.size();
  return all;
}

}  // namespace isola::e2b
