// Watches that outlive the call that made them: clients that cannot hold a stream open come and fetch what happened.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "dialect/e2b/call.h"

namespace isola::e2b {

class Watchers {
 public:
  struct Watcher {
    std::string sandbox;
    sandbox::ChannelPtr channel;
    std::mutex mutex;
    nlohmann::json events = nlohmann::json::array();
    std::optional<Error> error;
  };
  static constexpr size_t kMostEvents = 65536;  // that nobody fetched
  static constexpr size_t kMostPerSandbox = 256;

  Result<std::string> add(std::shared_ptr<Watcher> watcher);  // its id
  std::shared_ptr<Watcher> find(const std::string& sandbox, const std::string& id) const;
  void remove(const std::string& id);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Watcher>> all_;
};

}  // namespace isola::e2b
