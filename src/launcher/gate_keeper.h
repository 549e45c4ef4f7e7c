// The launcher's hand on the gate: starts `isola gate` when the first sandbox gets a policy, tells it which sockets and
// policies there are, and starts another with the same ones when it dies. Without it nothing gets out: what is not
// answered goes nowhere.
//
// Policies are also written to DIR/gate/<id>, so that a launcher that takes over gives its sandboxes back what they
// had.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/fd.h"
#include "boundary/network.h"
#include "kernel/process.h"
#include "launcher/event_loop.h"
#include "launcher/protocol.h"

namespace isola::launcher {

class GateKeeper {
 public:
  struct Options {
    std::string folder;   // of the policies
    std::string servers;  // name servers instead of the host's
  };
  using Sockets = std::function<Result<const boundary::IslandSockets*>(const std::string& id)>;
  using Done = std::function<void(Result<std::string>)>;

  GateKeeper(EventLoop& loop, Options options, Sockets sockets)
      : loop_(loop), options_(std::move(options)), sockets_(std::move(sockets)) {}
  ~GateKeeper();
  GateKeeper(const GateKeeper&) = delete;
  GateKeeper& operator=(const GateKeeper&) = delete;

  // After the sandboxes of an earlier launcher were adopted.
  Result<void> restore();
  // In force for the next connection when `done` is called.
  void set_policy(const PolicyRequest& request, Done done);
  void report(const std::string& id, Done done);
  void forget(const std::string& id);  // the sandbox ends; its sockets are still there
  pid_t pid() const { return child_.pid; }

  // An event of the gate as it came, {u32 dropped, Event}, checked to be readable.
  std::function<void(std::string_view event)> on_event;

 private:
  struct Entry {
    std::string policy, ceiling;
    bool told = false;  // the gate that runs now has its sockets
  };

  Result<void> start();
  void add(const std::string& id, Done done);
  void add_again(const std::string& id);
  void request(uint8_t op, const std::string& arguments, Done done, std::span<const int> fds = {});
  void ready(uint32_t events);
  void flush();
  void died();
  void give_up(const Error& error);
  Result<void> keep(const std::string& id, const Entry& entry) const;

  EventLoop& loop_;
  Options options_;
  Sockets sockets_;
  kernel::Child child_;
  Fd socket_;
  std::map<std::string, Entry> entries_;
  struct Outgoing {
    std::string bytes;
    std::vector<Fd> fds;
  };
  std::deque<Outgoing> queue_;
  bool waits_for_room_ = false;
  std::map<uint32_t, Done> calls_;  // by tag
  uint32_t last_tag_ = 0;
  std::chrono::steady_clock::time_point started_{};
  std::optional<EventLoop::TimerId> restart_;
};

}  // namespace isola::launcher
