// What was started through this dialect, as it was asked for: clients want it back in lists, and how its input stands.
#pragma once

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "sandbox/box.h"

namespace isola::e2b {

struct Launch {
  std::string command;    // our id of it
  nlohmann::json config;  // cmd, args, envs, cwd
  std::optional<std::string> tag;
  bool pty = false;
  bool input = false;  // has one that is open
};

// Any thread. Entries go with their sandboxes.
class Launches {
 public:
  void put(const sandbox::BoxPtr& box, uint32_t pid, Launch launch);
  void drop(const sandbox::BoxPtr& box, uint32_t pid);
  std::optional<Launch> find(const sandbox::BoxPtr& box, uint32_t pid) const;
  std::optional<uint32_t> tagged(const sandbox::BoxPtr& box, const std::string& tag) const;
  void close_input(const sandbox::BoxPtr& box, uint32_t pid);

 private:
  struct OfBox {
    std::weak_ptr<sandbox::Box> box;
    std::map<uint32_t, Launch> by_pid;
  };
  mutable std::mutex mutex_;
  std::map<std::string, OfBox> boxes_;
  size_t sweep_at_ = 64;
};

}  // namespace isola::e2b
