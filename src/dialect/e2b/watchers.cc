#include "dialect/e2b/watchers.h"

#include <algorithm>

#include "base/ids.h"

namespace isola::e2b {

Result<std::string> Watchers::add(std::shared_ptr<Watcher> watcher) {
  std::string id = "w" + new_command_id();
  std::lock_guard lock(mutex_);
  auto same = std::count_if(all_.begin(), all_.end(),
                            [&](const auto& entry) { return entry.second->sandbox == watcher->sandbox; });
  if (static_cast<size_t>(same) >= kMostPerSandbox)
    return fail(Code::exhausted, "too many watchers in this sandbox: remove some first");
  all_[id] = std::move(watcher);
  return id;
}

std::shared_ptr<Watchers::Watcher> Watchers::find(const std::string& sandbox, const std::string& id) const {
  std::lock_guard lock(mutex_);
  auto at = all_.find(id);
  if (at == all_.end() || at->second->sandbox != sandbox) return nullptr;
  return at->second;
}

void Watchers::remove(const std::string& id) {
  std::lock_guard lock(mutex_);
  all_.erase(id);
}

}  // namespace isola::e2b
