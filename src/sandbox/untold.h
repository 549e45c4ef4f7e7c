// Sandboxes of which the gate has not been told yet. They reach nothing before, whatever their policy is to open; so
// whoever made one has the answer first, and its first command the machine: launcher and gate would work on this at the
// same moment. What asks for the network before that waits in the sockets, which are there. One that ends early is told
// of before. A policy that somebody sets meanwhile stands: what waits here is always a first one.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/task.h"
#include "launcher/protocol.h"
#include "sandbox/launcher_link.h"

namespace isola::sandbox {

class Untold {
 public:
  struct One {
    launcher::PolicyRequest request;
    std::function<void(const Error&)> failed = {};  // the sandbox is there, and the gate did not take it
  };

  void add(One one);
  bool has(const std::string& sandbox);
  std::optional<One> take(const std::string& sandbox);  // once

 private:
  std::mutex mutex_;
  std::map<std::string, One> waiting_;
};

Untold& untold();

// Tells of it now, unless somebody did. For co_spawn: where it begins, the request goes out at once.
Task<void> tell_gate(std::shared_ptr<LauncherLink> launcher, std::string sandbox);

// In a moment.
void tell_gate_later(boost::asio::io_context& home, std::shared_ptr<LauncherLink> launcher, Untold::One one);

}  // namespace isola::sandbox
