#include "gate/outside.h"

#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "gate/dns.h"
#include "kernel/netlink.h"
#include "kernel/netlink_route.h"
#include "kernel/process.h"

namespace isola::gate {

namespace {

constexpr char kGateAddress4[] = "192.0.2.1", kOutsideAddress4[] = "192.0.2.2";
constexpr char kGateAddress6[] = "2001:db8:1::1", kOutsideAddress6[] = "2001:db8:1::2";
constexpr char kOtherEnd[] = "o";
constexpr uint16_t kDnsPort = 53;
constexpr int kAskPatience = 20;  // seconds; only a hang takes that long

Result<Fd> bound(const std::string& at, uint16_t port, int type) {
  ISOLA_TRY(Address parsed, Address::parse(at));
  auto address = parsed.with_port(port);
  Fd fd(::socket(address.storage.ss_family, type | SOCK_CLOEXEC, 0));
  int one = 1;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
      ::bind(fd.get(), address.get(), address.size) < 0 || (type == SOCK_STREAM && ::listen(fd.get(), 512) < 0))
    return sys_error("cannot open a server at " + at);
  return fd;
}

void say(const Fd& fd, const std::string& text) {
  (void)!::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
  ::shutdown(fd.get(), SHUT_WR);
}

// A page that is elsewhere: /denied at a host that the policy of evasions denies, any other at the metadata address.
void redirect(const Fd& fd) {
  std::string request;
  char buffer[2048];
  while (request.find("\r\n\r\n") == std::string::npos && request.size() < 8192) {
    ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (n <= 0) return;
    request.append(buffer, static_cast<size_t>(n));
  }
  std::string to = request.starts_with("GET /denied ") ? kNeighboursName : "169.254.169.254";
  say(fd, "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nConnection: close\r\nLocation: http://" + to + ":" +
              std::to_string(kGreetPort) + "/\r\n\r\n");
}

void pour(const Fd& fd) {
  char buffer[65536];
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

void be_patient(const Fd& fd) {
  timeval limit{kAskPatience, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// Reads a hello, says that it wants another one, and sends whatever comes then back.
void ask_again(const Fd& fd) {
  char buffer[65536];
  if (::recv(fd.get(), buffer, sizeof buffer, 0) <= 0) return;
  auto request = retry_request();
  (void)!::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
}

void talk(const Fd& fd, const std::string& at, uint16_t port) {
  if (port == kRetryPort) ask_again(fd);
  if (port == kGreetPort) say(fd, "hello from " + at + "\n");
  if (port == kRedirectPort) redirect(fd);
  if (port == kSourcePort) pour(fd);
  char buffer[65536];
  for (ssize_t n; (n = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;)
    if (port == kEchoPort || port == kTlsPort || port == kRetryPort || port == kDotPort)
      if (::send(fd.get(), buffer, static_cast<size_t>(n), MSG_NOSIGNAL) != n) return;
}

Result<int> link_named(const char* name) {
  unsigned index = ::if_nametoindex(name);
  if (index == 0) return sys_error(std::string("there is no device ") + name);
  return static_cast<int>(index);
}

// One end of the cable, in the calling thread's namespace.
Result<void> furnish(const char* device, const std::string& four, const std::string& six, const std::string& via4,
                     const std::string& via6, bool outside) {
  ISOLA_TRY(int link, link_named(device));
  kernel::NetlinkBatch batch;
  ISOLA_CHECK(kernel::add_address(batch, link, four, 24));
  ISOLA_CHECK(kernel::add_address(batch, link, six, 64));
  kernel::add_link_up(batch, link);
  ISOLA_CHECK(kernel::add_default_route(batch, via4));
  if (!outside) ISOLA_CHECK(kernel::add_default_route(batch, via6));
  if (outside) {
    for (const char* at : kOutside) ISOLA_CHECK(kernel::add_address(batch, kernel::kLoopbackIndex, at));
    ISOLA_CHECK(kernel::add_address(batch, kernel::kLoopbackIndex, kNameServer));
  }
  ISOLA_TRY(auto route, kernel::NetlinkSocket::open(NETLINK_ROUTE));
  return route.run(batch);
}

}  // namespace

Fd own_netns() { return Fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)); }

void in_netns(const Fd& netns, const std::function<void()>& body) {
  Fd home = own_netns();
  // Going on in the wrong namespace would be worse than ending.
  if (!home || ::setns(netns.get(), CLONE_NEWNET) < 0) std::abort();
  body();
  if (::setns(home.get(), CLONE_NEWNET) < 0) std::abort();
}

Result<Fd> new_netns() {
  Fd home = own_netns();
  if (!home || ::unshare(CLONE_NEWNET) < 0) return sys_error("cannot make a network namespace");
  Fd fresh = own_netns();
  kernel::NetlinkBatch up;
  kernel::add_link_up(up, kernel::kLoopbackIndex);
  auto route = kernel::NetlinkSocket::open(NETLINK_ROUTE);
  Result<void> raised = route ? route->run(up) : std::unexpected(route.error());
  if (::setns(home.get(), CLONE_NEWNET) < 0) std::abort();
  ISOLA_CHECK(std::move(raised));
  return fresh;
}

Result<Cable> Cable::make() {
  Cable cable;
  ISOLA_TRY(cable.gate, new_netns());
  ISOLA_TRY(cable.outside, new_netns());
  Result<void> done;
  in_netns(cable.gate, [&] {
    kernel::NetlinkBatch batch;
    kernel::add_cable(batch, kCableEnd, kOtherEnd, cable.outside.get());
    auto route = kernel::NetlinkSocket::open(NETLINK_ROUTE);
    done = route ? route->run(batch) : std::unexpected(route.error());
  });
  ISOLA_CHECK(std::move(done));
  // A route needs a link that is up at both ends only for packets, not for being there.
  in_netns(cable.outside,
           [&] { done = furnish(kOtherEnd, kOutsideAddress4, kOutsideAddress6, kGateAddress4, kGateAddress6, true); });
  ISOLA_CHECK(std::move(done));
  in_netns(cable.gate,
           [&] { done = furnish(kCableEnd, kGateAddress4, kGateAddress6, kOutsideAddress4, kOutsideAddress6, false); });
  ISOLA_CHECK(std::move(done));
  return cable;
}

Result<std::unique_ptr<Outside>> Outside::open(const Fd& netns) {
  std::unique_ptr<Outside> outside(new Outside);
  Result<void> listening;
  in_netns(netns, [&] { listening = outside->listen(); });
  ISOLA_CHECK(std::move(listening));
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  outside->stop_read_ = std::move(pipe.first), outside->stop_write_ = std::move(pipe.second);
  outside->thread_ = std::thread([self = outside.get()] { self->serve(); });
  return outside;
}

Result<void> Outside::listen() {
  for (const char* at : kOutside)
    for (uint16_t port : {kEchoPort, kGreetPort, kRedirectPort, kTlsPort, kSourcePort, kRetryPort, kDotPort}) {
      ISOLA_TRY(Fd fd, bound(at, port, SOCK_STREAM));
      listeners_.push_back({std::move(fd), at, port});
    }
  ISOLA_TRY(udp_, bound(kForbidden, kUdpPort, SOCK_DGRAM));
  ISOLA_TRY(dns_, bound(kNameServer, kDnsPort, SOCK_DGRAM));
  ISOLA_TRY(Fd dns_tcp, bound(kNameServer, kDnsPort, SOCK_STREAM));
  listeners_.push_back({std::move(dns_tcp), kNameServer, kDnsPort});
  return {};
}

Outside::~Outside() {
  stop_write_.reset();
  if (thread_.joinable()) thread_.join();
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return talking_ == 0; });
}

void Outside::set(const std::string& name, std::vector<std::string> addresses) {
  std::lock_guard lock(mutex_);
  names_[name] = std::move(addresses);
}

void Outside::set_names_for_evasions() {
  set("a.example", {"203.0.113.10"});
  set("rebind.example", {"169.254.169.254"});
  set("dns.google", {kPublicResolver});
  set("resolver.example", {"198.51.100.7"});
  for (const char* name :
       {"b.example", "a.example.evil.example", "evil-a.example", "wild.example", "notwild.example", ""})
    set(name, {kForbidden});
}

std::vector<std::string> Outside::asked() {
  std::lock_guard lock(mutex_);
  return asked_;
}

size_t Outside::asked_with(const std::string& text, size_t from) {
  std::lock_guard lock(mutex_);
  size_t count = 0;
  for (size_t i = from; i < asked_.size(); ++i) count += asked_[i].find(text) != std::string::npos;
  return count;
}

void Outside::serve() {
  for (;;) {
    std::vector<pollfd> polls = {{stop_read_.get(), POLLIN, 0}, {dns_.get(), POLLIN, 0}, {udp_.get(), POLLIN, 0}};
    for (const auto& one : listeners_) polls.push_back({one.fd.get(), POLLIN, 0});
    if (::poll(polls.data(), polls.size(), -1) < 0) continue;
    if (polls[0].revents) return;
    if (polls[1].revents) answer();
    if (polls[2].revents) echo();
    for (size_t i = 3; i < polls.size(); ++i)
      if (polls[i].revents) welcome(listeners_[i - 3]);
  }
}

void Outside::welcome(const Listener& listener) {
  Fd client(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!client) return;
  ++connections_;
  {
    std::lock_guard lock(mutex_);
    ++talking_;
  }
  // Detached and counted: thousands of finished threads that wait to be joined would keep their stacks.
  std::thread([this, fd = std::move(client), at = listener.at, port = listener.port]() mutable {
    be_patient(fd);
    if (port == kDnsPort)
      answer(fd);
    else
      talk(fd, at, port);
    fd.reset();
    std::lock_guard lock(mutex_);
    if (--talking_ == 0) idle_.notify_all();
  }).detach();
}

void Outside::echo() const {
  char buffer[2048];
  SocketAddress from;
  from.size = sizeof from.storage;
  ssize_t n = ::recvfrom(udp_.get(), buffer, sizeof buffer, 0, from.get(), &from.size);
  if (n >= 0) (void)!::sendto(udp_.get(), buffer, static_cast<size_t>(n), 0, from.get(), from.size);
}

void Outside::answer() {
  char buffer[2048];
  SocketAddress from;
  from.size = sizeof from.storage;
  ssize_t n = ::recvfrom(dns_.get(), buffer, sizeof buffer, 0, from.get(), &from.size);
  if (n <= 0) return;
  auto reply = reply_to(std::string_view(buffer, static_cast<size_t>(n)));
  if (!reply.empty()) (void)!::sendto(dns_.get(), reply.data(), reply.size(), 0, from.get(), from.size);
}

// One question over TCP.
void Outside::answer(const Fd& fd) {
  std::string stream;
  char buffer[2048];
  for (ssize_t n; (n = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) {
    stream.append(buffer, static_cast<size_t>(n));
    auto query = take_framed(stream);
    if (!query) return;
    if (*query) return say(fd, framed(reply_to(**query)));
  }
}

std::string Outside::reply_to(std::string_view query) {
  DnsQuestion question;
  if (parse_query(query, question) != QueryState::good) return "";
  std::lock_guard lock(mutex_);
  asked_.push_back(question.name);
  DnsReply reply{.ttl = 1};
  auto it = names_.find(question.name);
  if (it == names_.end()) {
    reply.code = DnsCode::no_such_name;
  } else {
    for (const auto& text : it->second)
      if (auto address = Address::parse(text); address && address->is_v4() == (question.type == 1))
        reply.address = *address;
  }
  return build_reply(question, reply);
}

}  // namespace isola::gate
