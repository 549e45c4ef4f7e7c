// A small world for tests: a namespace for the gate, another for "the internet" behind a cable, servers there, a name
// server that says what it is told to and remembers what it was asked, a gate as a process of its own, and sandboxes.
//
//   World world;
//   world.names["a.example"] = {"203.0.113.10"};
//   Box box = world.box("allow a.example");
//   EXPECT_EQ(box.run([] { return talk("a.example", 7, "hello"); }), "hello");
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "boundary/network.h"
#include "gate/control.h"
#include "gate/dns.h"
#include "gate/gate.h"
#include "gate/loop.h"
#include "kernel/process.h"

namespace isola::gate::testing {

using namespace std::string_literals;

constexpr int kLongMs = 20'000;  // only a hang takes that long
constexpr uint16_t kEchoPort = 7, kGreetPort = 22, kTlsPort = 443, kSourcePort = 9000, kUdpPort = 9001;
inline const std::vector<std::string> kOutside = {"203.0.113.10", "203.0.113.11",    "198.51.100.7",   "10.5.0.1",
                                                  "100.64.0.9",   "169.254.169.254", "2001:db8:5::10", "fd00:ec2::254"};
inline constexpr char kNameServer[] = "203.0.113.53";

inline Fd own_netns() { return Fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)); }

// Runs `body` in another network namespace, and comes back.
inline void inside(const Fd& netns, const std::function<void()>& body) {
  Fd home = own_netns();
  if (::setns(netns.get(), CLONE_NEWNET) < 0) std::abort();
  body();
  if (::setns(home.get(), CLONE_NEWNET) < 0) std::abort();
}

inline Fd new_netns() {
  Fd home = own_netns();
  if (::unshare(CLONE_NEWNET) < 0) std::abort();
  Fd fresh = own_netns();
  if (::setns(home.get(), CLONE_NEWNET) < 0) std::abort();
  return fresh;
}

inline void ip(const std::string& arguments) {
  if (std::system(("ip " + arguments).c_str()) != 0) std::abort();
}

inline std::string error_name(int e) { return strerrorname_np(e); }

// ---- what a program inside does -------------------------------------------------------------------------------------

inline void patience(const Fd& fd) {
  timeval limit{kLongMs / 1000, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

inline std::string make_query(std::string_view name, uint16_t type) {
  std::string out = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"s;
  while (!name.empty()) {
    auto label = name.substr(0, name.find('.'));
    out += static_cast<char>(label.size()) + std::string(label);
    name.remove_prefix(std::min(label.size() + 1, name.size()));
  }
  return out + '\0' + static_cast<char>(type >> 8) + static_cast<char>(type) + "\0\1"s;
}

// "198.18.0.1", or "code N", or the errno's name.
inline std::string read_answer(std::string_view reply, uint16_t type) {
  if (reply.size() < 12) return "short";
  if (reply[7] == 0) return "code " + std::to_string(reply[3] & 15);
  size_t size = type == 28 ? 16 : 4;
  char text[INET6_ADDRSTRLEN];
  return ::inet_ntop(type == 28 ? AF_INET6 : AF_INET, reply.data() + reply.size() - size, text, sizeof text);
}

inline Fd dial(const std::string& address, uint16_t port, int type = SOCK_STREAM) {
  auto parsed = Address::parse(address);
  if (!parsed) return errno = EINVAL, Fd();
  auto to = parsed->with_port(port);
  Fd fd(::socket(to.storage.ss_family, type | SOCK_CLOEXEC, 0));
  patience(fd);
  if (::connect(fd.get(), to.get(), to.size) < 0) return Fd();
  return fd;
}

inline std::string resolve(std::string_view name, uint16_t type = 1, bool tcp = false,
                           const std::string& server = boundary::kOwnAddress4) {
  Fd fd = dial(server, 53, tcp ? SOCK_STREAM : SOCK_DGRAM);
  if (!fd) return error_name(errno);
  auto query = make_query(name, type);
  if (tcp) query = framed(query);
  if (::send(fd.get(), query.data(), query.size(), MSG_NOSIGNAL) < 0) return error_name(errno);
  std::string stream;
  char buffer[2048];
  for (;;) {
    ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (n < 0) return error_name(errno);
    if (n == 0) return "closed";
    stream.append(buffer, static_cast<size_t>(n));
    if (!tcp) return read_answer(stream, type);
    auto whole = take_framed(stream);
    if (whole && *whole) return read_answer(**whole, type);
  }
}

// Everything that comes back until the end, or the errno's name.
inline std::string read_to_end(const Fd& fd) {
  std::string out;
  char buffer[65536];
  for (;;) {
    ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (n < 0) return out + error_name(errno);
    if (n == 0) return out;
    out.append(buffer, static_cast<size_t>(n));
  }
}

// Connects to an address, sends, says that this is all, reads to the end.
inline std::string talk_to(const std::string& address, uint16_t port, std::string_view what, size_t pieces = 0) {
  Fd fd = dial(address, port);
  if (!fd) return error_name(errno);
  int one = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof one);
  for (size_t at = 0; at < what.size();) {
    size_t size = pieces ? std::min(pieces, what.size() - at) : what.size() - at;
    ssize_t n = ::send(fd.get(), what.data() + at, size, MSG_NOSIGNAL);
    if (n < 0) return error_name(errno);
    at += static_cast<size_t>(n);
  }
  ::shutdown(fd.get(), SHUT_WR);
  return read_to_end(fd);
}

inline std::string talk(const std::string& name, uint16_t port, std::string_view what, size_t pieces = 0) {
  auto address = resolve(name);
  return Address::parse(address) ? talk_to(address, port, what, pieces) : "no address: " + address;
}

// A TLS hello that says this name; more extensions behind it.
inline std::string tls_hello(const std::string& name, const std::string& more = "") {
  auto number = [](size_t value, size_t bytes) {
    std::string out;
    for (size_t i = bytes; i-- > 0;) out.push_back(static_cast<char>(value >> 8 * i));
    return out;
  };
  auto sized = [&](const std::string& body, size_t bytes) { return number(body.size(), bytes) + body; };
  std::string extensions = more;
  if (!name.empty()) extensions += number(0, 2) + sized(sized("\0"s + sized(name, 2), 2), 2);
  std::string body =
      "\x03\x03"s + std::string(32, 'r') + "\0"s + sized("\x13\x01", 2) + "\x01\0"s + sized(extensions, 2);
  std::string message = "\x01"s + sized(body, 3), out;
  for (size_t at = 0; at < message.size(); at += 16000) out += "\x16\x03\x01"s + sized(message.substr(at, 16000), 2);
  return out;
}

// What `body` returns in a process of its own; empty if it died.
inline std::string in_child(const std::function<std::string()>& body) {
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
      ::close(hold[1]);
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

// ---- the outside ----------------------------------------------------------------------------------------------------

// Echo on 7 and 443, a greeting on 22, and a flood of bytes on 9000, at every address outside; a name server.
class Outside {
 public:
  explicit Outside(const Fd& netns) {
    inside(netns, [&] {
      for (const auto& at : kOutside)
        for (uint16_t port : {kEchoPort, kGreetPort, kTlsPort, kSourcePort})
          listeners_.push_back({listen(at, port), at, port});
      auto echo = Address::parse("203.0.113.11")->with_port(kUdpPort);
      udp_ = Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      if (::bind(udp_.get(), echo.get(), echo.size) < 0) std::abort();
      auto address = Address::parse(kNameServer)->with_port(53);
      dns_ = Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      if (::bind(dns_.get(), address.get(), address.size) < 0) std::abort();
    });
    auto pipe = kernel::make_pipe().value();
    stop_read_ = std::move(pipe.first), stop_write_ = std::move(pipe.second);
    thread_ = std::thread([this] { serve(); });
  }
  ~Outside() {
    stop_write_.reset();
    thread_.join();
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return talking_ == 0; });
  }

  std::map<std::string, std::vector<std::string>> names;  // set before the gate asks
  std::vector<std::string> asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }
  size_t connections() const { return connections_; }
  void set(const std::string& name, std::vector<std::string> addresses) {
    std::lock_guard lock(mutex_);
    names[name] = std::move(addresses);
  }

 private:
  struct Listener {
    Fd fd;
    std::string at;
    uint16_t port;
  };

  static Fd listen(const std::string& at, uint16_t port) {
    auto address = Address::parse(at)->with_port(port);
    Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int one = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (::bind(fd.get(), address.get(), address.size) < 0 || ::listen(fd.get(), 512) < 0) std::abort();
    return fd;
  }

  void begin() {
    std::lock_guard lock(mutex_);
    ++talking_;
  }
  void end() {
    std::lock_guard lock(mutex_);
    if (--talking_ == 0) idle_.notify_all();
  }

  void serve() {
    for (;;) {
      std::vector<pollfd> polls = {{stop_read_.get(), POLLIN, 0}, {dns_.get(), POLLIN, 0}, {udp_.get(), POLLIN, 0}};
      for (const auto& one : listeners_) polls.push_back({one.fd.get(), POLLIN, 0});
      if (::poll(polls.data(), polls.size(), -1) < 0) continue;
      if (polls[0].revents) return;
      if (polls[1].revents) answer();
      if (polls[2].revents) echo();
      for (size_t i = 3; i < polls.size(); ++i) {
        if (!polls[i].revents) continue;
        auto& one = listeners_[i - 3];
        Fd client(::accept4(one.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!client) continue;
        ++connections_;
        begin();
        // Detached and counted: thousands of finished threads that wait to be joined would keep their stacks.
        std::thread([this, fd = std::move(client), at = one.at, port = one.port]() mutable {
          talk(fd, at, port);
          fd.reset();
          end();
        }).detach();
      }
    }
  }

  static void talk(const Fd& fd, const std::string& at, uint16_t port) {
    patience(fd);
    char buffer[65536];
    if (port == kGreetPort) {
      auto text = "hello from " + at + "\n";
      (void)!::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
      ::shutdown(fd.get(), SHUT_WR);
    }
    if (port == kSourcePort) {
      std::memset(buffer, 's', sizeof buffer);
      size_t left = 0;
      if (::recv(fd.get(), &left, sizeof left, MSG_WAITALL) != sizeof left) return;
      while (left > 0) {
        ssize_t n = ::send(fd.get(), buffer, std::min(left, sizeof buffer), MSG_NOSIGNAL);
        if (n <= 0) return;
        left -= static_cast<size_t>(n);
      }
      ::shutdown(fd.get(), SHUT_WR);
    }
    for (ssize_t n; (n = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;)
      if (port == kEchoPort || port == kTlsPort)
        if (::send(fd.get(), buffer, static_cast<size_t>(n), MSG_NOSIGNAL) != n) return;
  }

  void echo() {
    char buffer[2048];
    SocketAddress from;
    from.size = sizeof from.storage;
    ssize_t n = ::recvfrom(udp_.get(), buffer, sizeof buffer, 0, from.get(), &from.size);
    if (n >= 0) (void)!::sendto(udp_.get(), buffer, static_cast<size_t>(n), 0, from.get(), from.size);
  }

  void answer() {
    char buffer[2048];
    SocketAddress from;
    from.size = sizeof from.storage;
    ssize_t n = ::recvfrom(dns_.get(), buffer, sizeof buffer, 0, from.get(), &from.size);
    DnsQuestion question;
    if (n <= 0 || parse_query(std::string_view(buffer, static_cast<size_t>(n)), question) != QueryState::good) return;
    std::lock_guard lock(mutex_);
    asked_.push_back(question.name);
    DnsReply reply{.ttl = 1};
    auto it = names.find(question.name);
    if (it == names.end()) reply.code = DnsCode::no_such_name;
    if (it != names.end())
      for (const auto& text : it->second) {
        auto address = Address::parse(text).value();
        if (address.is_v4() == (question.type == 1)) reply.address = address;
      }
    auto bytes = build_reply(question, reply);
    (void)!::sendto(dns_.get(), bytes.data(), bytes.size(), 0, from.get(), from.size);
  }

  std::vector<Listener> listeners_;
  Fd dns_, udp_, stop_read_, stop_write_;
  std::mutex mutex_;
  std::vector<std::string> asked_;
  std::atomic<size_t> connections_ = 0;
  size_t talking_ = 0;
  std::condition_variable idle_;
  std::thread thread_;
};

// Two namespaces and a cable between them: where the gate lives, and the outside.
struct Cable {
  Fd gate, outside;
  Cable() {
    gate = new_netns(), outside = new_netns();
    inside(gate, [] { ip("link set lo up && ip link add g type veth peer name o"); });
    inside(gate, [&] { ip("link set o netns /proc/self/fd/" + std::to_string(inherited(outside).get())); });
    inside(outside, [] {
      ip("link set lo up && ip addr add 192.0.2.2/24 dev o && ip addr add 2001:db8:1::2/64 dev o nodad && ip link set "
         "o up");
      for (const auto& at : kOutside)
        ip("addr add " + at + (at.find(':') == std::string::npos ? "/32 dev lo" : "/128 dev lo nodad"));
      ip("addr add "s + kNameServer + "/32 dev lo");
      ip("route add default via 192.0.2.1");
    });
    inside(gate, [] {
      ip("addr add 192.0.2.1/24 dev g && ip addr add 2001:db8:1::1/64 dev g nodad && ip link set g up");
      ip("route add default via 192.0.2.2 && ip -6 route add default via 2001:db8:1::2");
    });
  }

 private:
  static Fd inherited(const Fd& fd) { return Fd(::fcntl(fd.get(), F_DUPFD, 100)); }
};

class World {
 public:
  World() {
    auto network = boundary::IslandNetwork::prepare();
    if (!network) std::abort();
    network_.emplace(*network);
    outside = std::make_unique<Outside>(cable_.outside);
    start_gate();
  }
  ~World() { stop_gate(); }

  void start_gate() {
    auto pair = kernel::socket_pair().value();
    gate_ = ::fork();
    if (gate_ == 0) {
      pair.first.reset();
      // A parent that is gone closes the other end, and the gate leaves.
      if (::setns(cable_.gate.get(), CLONE_NEWNET) < 0) ::_exit(1);
      auto ran = run_gate({.control = std::move(pair.second), .servers = kNameServer + ":53"s});
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

  Box box(const std::string& policy, const std::string& ceiling = "") {
    Box out("ibox" + std::to_string(++boxes_));
    auto sockets = network_->make(out.netns().get());
    if (!sockets) ADD_FAILURE() << sockets.error().text();
    out.sockets = std::move(*sockets);
    EXPECT_EQ(add(out, policy, ceiling), "");
    return out;
  }
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
  std::string add(const Box& box, const std::string& policy, const std::string& ceiling = "") {
    AddSandbox request{box.id, policy, ceiling};
    auto fds = descriptors_of(box.sockets, request.sockets);
    Writer out;
    encode(out, request);
    return call(ControlOp::add, out.data(), fds);
  }
  std::string set_policy(const Box& box, const std::string& policy, bool cut = false) {
    Writer out;
    encode(out, SetPolicy{box.id, policy, "", cut});
    return call(ControlOp::policy, out.data());
  }
  std::string remove(const Box& box) {
    Writer out;
    out.str(box.id);
    return call(ControlOp::remove, out.data());
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
    if (in.u8() == 1) {
      in.u32();
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
  Cable cable_;
  Fd control_;
  pid_t gate_ = -1;
  int boxes_ = 0;
  uint32_t tag_ = 0;
  std::vector<Event> events_;
};

}  // namespace isola::gate::testing
