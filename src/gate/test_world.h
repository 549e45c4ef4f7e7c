// A small world for tests: a gate as a process of its own, sandboxes before it and the servers of outside.h behind it.
//
//   World world;
//   world.outside->set("a.example", {"203.0.113.10"});
//   Box box = world.box("allow a.example");
//   EXPECT_EQ(box.run([] { return talk("a.example", 7, "hello"); }), "hello");
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "boundary/network.h"
#include "gate/control.h"
#include "gate/gate.h"
#include "gate/loop.h"
#include "gate/outside.h"
#include "hostile/dialog.h"
#include "kernel/process.h"

namespace isola::gate::testing {

using namespace std::string_literals;

using hostile::dial, hostile::is_address, hostile::kLongMs, hostile::make_query, hostile::patience,
    hostile::read_answer, hostile::read_to_end, hostile::resolve, hostile::talk, hostile::talk_to, hostile::tls_hello;

// Held from the opening of a pipe to the closing of the end that is a child's: another child must not have it, too.
inline std::mutex fork_mutex;

// What `body` returns in a process of its own; empty if it died.
inline std::string in_child(const std::function<std::string()>& body) {
  std::unique_lock lock(fork_mutex);
  auto pipe = kernel::make_pipe().value();
  pid_t pid = ::fork();
  if (pid == 0) {
    auto text = body();
    for (size_t at = 0; at < text.size();) {
      ssize_t n = ::write(pipe.second.get(), text.data() + at, text.size() - at);
      if (n <= 0) ::_exit(1);
      at += static_cast<size_t>(n);
    }
    ::_exit(0);
  }
  pipe.second.reset();
  lock.unlock();
  std::string out;
  char buffer[65536];
  for (ssize_t n; (n = ::read(pipe.first.get(), buffer, sizeof buffer)) > 0;)
    out.append(buffer, static_cast<size_t>(n));
  ::waitpid(pid, nullptr, 0);
  return out;
}

// ---- a sandbox ------------------------------------------------------------------------------------------------------

class Box {
 public:
  explicit Box(std::string name) : id(std::move(name)) {
    int ready[2], hold[2];
    if (::pipe2(ready, O_CLOEXEC) < 0 || ::pipe2(hold, O_CLOEXEC) < 0) std::abort();
    holder_ = ::fork();
    if (holder_ == 0) {
      // Nothing else is kept open: a thousand of these would each hold the sockets of all before them.
      auto [low, high] = std::minmax(ready[1], hold[0]);
      ::close_range(3, static_cast<unsigned>(low) - 1, 0);
      if (high - low > 1) ::close_range(static_cast<unsigned>(low) + 1, static_cast<unsigned>(high) - 1, 0);
      ::close_range(static_cast<unsigned>(high) + 1, ~0u, 0);
      char c = ::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 ? 'r' : 'u';
      if (::write(ready[1], &c, 1) != 1) ::_exit(1);
      ::_exit(::read(hold[0], &c, 1) == 0 ? 0 : 1);
    }
    ::close(ready[1]), ::close(hold[0]);
    hold_ = Fd(hold[1]);
    Fd told(ready[0]);
    char c = 0;
    if (::read(told.get(), &c, 1) != 1 || c != 'r') std::abort();
    netns_ = Fd(::open(("/proc/" + std::to_string(holder_) + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
    userns_ = Fd(::open(("/proc/" + std::to_string(holder_) + "/ns/user").c_str(), O_RDONLY | O_CLOEXEC));
  }
  Box(Box&& other) noexcept
      : id(std::move(other.id)),
        sockets(std::move(other.sockets)),
        holder_(std::exchange(other.holder_, -1)),
        hold_(std::move(other.hold_)),
        netns_(std::move(other.netns_)),
        userns_(std::move(other.userns_)) {}
  ~Box() {
    if (holder_ <= 0) return;
    ::kill(holder_, SIGKILL);
    ::waitpid(holder_, nullptr, 0);
  }

  const Fd& netns() const { return netns_; }
  // In a process of its own in there, without any capability.
  std::string run(const std::function<std::string()>& body) const {
    return in_child([&] {
      if (::setns(netns_.get(), CLONE_NEWNET) < 0 || ::setns(userns_.get(), CLONE_NEWUSER) < 0) ::_exit(1);
      __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
      __user_cap_data_struct none[2] = {};
      ::syscall(SYS_capset, &head, none);
      return body();
    });
  }

  std::string id;
  boundary::IslandSockets sockets;  // the launcher's copies

 private:
  pid_t holder_ = -1;
  Fd hold_, netns_, userns_;
};

// ---- all of it ------------------------------------------------------------------------------------------------------

class World {
 public:
  World() {
    auto network = boundary::IslandNetwork::prepare();
    if (!network) std::abort();
    network_.emplace(*network);
    // Before there is a thread: it could hold a lock of the allocator's while the gate is forked, which then hangs.
    start_gate();
    outside = Outside::open(cable_.outside).value();
  }
  ~World() { stop_gate(); }

  // How its gate is, beside what it has from the world. `resolv_conf`: a file that it takes for the host's.
  struct GateIs {
    std::chrono::milliseconds tell_after = std::chrono::seconds(10);
    size_t events_most = 1024;
    std::string resolv_conf;
    std::string authorities;
  };
  void start_gate() { start_gate(GateIs{}); }
  void start_gate(const GateIs& is) {
    std::lock_guard lock(fork_mutex);
    auto pair = kernel::socket_pair().value();
    gate_ = ::fork();
    if (gate_ == 0) {
      pair.first.reset();
      // A parent that is gone closes the other end, and the gate leaves.
      if (::setns(cable_.gate.get(), CLONE_NEWNET) < 0) ::_exit(1);
      if (!is.resolv_conf.empty() &&
          (::unshare(CLONE_NEWNS) < 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0 ||
           ::mount(is.resolv_conf.c_str(), "/etc/resolv.conf", nullptr, MS_BIND, nullptr) < 0))
        ::_exit(1);
      auto ran = run_gate({.control = std::move(pair.second),
                           .servers = is.resolv_conf.empty() ? kNameServer + ":53"s : "",
                           .authorities = is.authorities,
                           .tell_after = is.tell_after,
                           .events_most = is.events_most});
      if (!ran) std::fprintf(stderr, "gate: %s\n", ran.error().text().c_str());
      ::_exit(ran ? 0 : 1);
    }
    control_ = std::move(pair.first);
  }
  int stop_gate(int signal = 0) {
    if (signal) ::kill(gate_, signal);
    control_.reset();
    int status = 0;
    if (gate_ > 0) ::waitpid(gate_, &status, 0);
    gate_ = -1;
    return status;
  }
  pid_t gate() const { return gate_; }

  Box box(const std::string& policy, const std::string& ceiling = "", const std::string& bindings = "") {
    Box out("ibox" + std::to_string(++boxes_));
    auto sockets = network_->make(out.netns().get());
    if (!sockets) ADD_FAILURE() << sockets.error().text();
    out.sockets = std::move(*sockets);
    EXPECT_EQ(add(out, policy, ceiling, bindings), "");
    return out;
  }
  // The gate's own namespace.
  const Fd& gate_netns() const { return cable_.gate; }
  const Fd& outside_netns() const { return cable_.outside; }
  // In a namespace that has a way out like any other, as root.
  std::string run_plainly(const std::function<std::string()>& body) const {
    return in_child([&] {
      if (::setns(cable_.gate.get(), CLONE_NEWNET) < 0) ::_exit(1);
      return body();
    });
  }
  // A program there.
  pid_t spawn_plainly(std::vector<std::string> argv) const {
    pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    std::vector<char*> words;
    for (auto& word : argv) words.push_back(word.data());
    words.push_back(nullptr);
    if (::setns(cable_.gate.get(), CLONE_NEWNET) == 0) ::execvp(words[0], words.data());
    ::_exit(127);
  }
  // "" or why not.
  std::string add(const Box& box, const std::string& policy, const std::string& ceiling = "",
                  const std::string& bindings = "", const std::string& birth = "", const std::string& past = "") {
    AddSandbox request{
        .id = box.id, .policy = policy, .ceiling = ceiling, .bindings = bindings, .past = past, .birth = birth};
    auto fds = descriptors_of(box.sockets, request.sockets);
    Writer out;
    encode(out, request);
    return call(ControlOp::add, out.data(), fds);
  }
  // Everything that is told until `enough` says so.
  std::vector<Event> events_until(const std::function<bool(const Event&)>& enough) {
    std::vector<Event> out;
    for (;;) {
      while (!events_.empty()) {
        out.push_back(std::move(events_.front()));
        events_.erase(events_.begin());
        if (enough(out.back())) return out;
      }
      if (!receive(nullptr)) return out;
    }
  }
  std::string set_policy(const Box& box, const std::string& policy, bool cut = false,
                         const std::string& bindings = "") {
    Writer out;
    encode(out, SetPolicy{box.id, policy, "", cut, bindings});
    return call(ControlOp::policy, out.data());
  }
  std::string remove(const Box& box) {
    Writer out;
    out.str(box.id);
    return call(ControlOp::remove, out.data());
  }
  std::string give_key(std::string_view key) {
    Writer out;
    out.str(key);
    return call(ControlOp::key, out.data());
  }
  std::string certificate(const Box& box) {
    Writer out;
    out.str(box.id);
    return call(ControlOp::certificate, out.data());
  }
  std::string report(const Box& box) {
    Writer out;
    out.str(box.id);
    return call(ControlOp::report, out.data());
  }
  std::string call(ControlOp op, const std::string& arguments, const std::vector<int>& fds = {}) {
    uint32_t tag = ++tag_;
    Writer out;
    out.u8(static_cast<uint8_t>(op));
    out.u32(tag);
    out.bytes(arguments);
    if (!kernel::send_message(control_.get(), out.data(), fds)) return "cannot send";
    std::optional<std::string> answer;
    while (!answer)
      if (!receive(&answer)) return "no answer";
    return *answer;
  }
  // The next event of this kind (others are passed over).
  std::optional<Event> next(Event::Kind kind) {
    for (;;) {
      while (!events_.empty()) {
        Event event = std::move(events_.front());
        events_.erase(events_.begin());
        if (event.kind == kind) return event;
      }
      if (!receive(nullptr)) return std::nullopt;
    }
  }
  // The next sandbox that values are wanted for.
  std::string next_wanted() {
    while (wanted_.empty())
      if (!receive(nullptr)) return "none";
    auto id = wanted_.front();
    wanted_.erase(wanted_.begin());
    return id;
  }
  // What has come so far.
  std::vector<Event> told() { return std::exchange(events_, {}); }
  bool pending_events() {
    pollfd ready{control_.get(), POLLIN, 0};
    return !events_.empty() || ::poll(&ready, 1, 0) == 1;
  }
  void drop_event() {
    if (events_.empty()) (void)receive(nullptr);
    events_.clear();
  }
  // "reason name address:port rule" of the next denial.
  std::string next_denial() {
    auto event = next(Event::Kind::denied);
    if (!event) return "none";
    return std::string(to_string(event->reason)) + " " + (event->name.empty() ? event->address : event->name) + ":" +
           std::to_string(event->port);
  }

  std::unique_ptr<Outside> outside;

 private:
  bool receive(std::optional<std::string>* answer) {
    pollfd ready{control_.get(), POLLIN, 0};
    if (::poll(&ready, 1, kLongMs) != 1) return false;
    auto message = kernel::receive_message(control_.get(), kMaxControl);
    if (!message || message->bytes.empty()) return false;
    Reader in(message->bytes);
    const auto kind = in.u8();
    if (kind == 2) {
      wanted_.push_back(in.str());
      return true;
    }
    if (kind == 1) {
      Event event;
      decode(in, event);
      EXPECT_TRUE(in.done());
      events_.push_back(std::move(event));
      return true;
    }
    EXPECT_EQ(in.u32(), tag_);
    in.u8();
    if (answer) *answer = in.str();
    return true;
  }

  std::optional<boundary::IslandNetwork> network_;
  Cable cable_ = Cable::make().value();
  Fd control_;
  pid_t gate_ = -1;
  int boxes_ = 0;
  uint32_t tag_ = 0;
  std::vector<Event> events_;
  std::vector<std::string> wanted_;
};

}  // namespace isola::gate::testing
