// Sandboxes that reach nothing, and of which the gate has not been told yet. They are as closed without it, which only
// knows better what was tried; so whoever made one has the answer first, and its first command the machine: launcher
// and gate would work on this at the same moment. What asks for the network before that waits in the sockets, which are
// there. One that ends early is told of before.
#pragma once

#include <boost/asio/io_context.hpp>
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
  void add(launcher::PolicyRequest request);
  bool has(const std::string& sandbox);
  std::optional<launcher::PolicyRequest> take(const std::string& sandbox);  // once

 private:
  std::mutex mutex_;
  std::map<std::string, launcher::PolicyRequest> waiting_;
};

Untold& untold();

// Tells of it now, unless somebody did. For co_spawn: where it begins, the request goes out at once.
Task<void> tell_gate(std::shared_ptr<LauncherLink> launcher, std::string sandbox);

// In a moment.
void tell_gate_later(boost::asio::io_context& home, std::shared_ptr<LauncherLink> launcher,
                     launcher::PolicyRequest request);

}  // namespace isola::sandbox
