#include "cli/host_services.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "cli/canary_ping.h"
#include "kernel/process.h"

namespace isola::cli {

namespace {

constexpr std::string_view kAnswer = "host";
constexpr size_t kMostAddresses = 8;  // of one family: a machine with hundreds proves no more with all of them
constexpr size_t kMostTalks = 64;     // an open port on the network may be found by anybody

struct Address {
  union {
    sockaddr_in four;
    sockaddr_in6 six{};
  };
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&six); }
};

Address address_of(const std::string& text, uint16_t port) {
  Address address;
  if (::inet_pton(AF_INET, text.c_str(), &address.four.sin_addr) == 1) {
    address.four.sin_family = AF_INET, address.four.sin_port = htons(port), address.size = sizeof address.four;
  } else {
    address.six = {};
    ::inet_pton(AF_INET6, text.c_str(), &address.six.sin6_addr);
    address.six.sin6_family = AF_INET6, address.six.sin6_port = htons(port), address.size = sizeof address.six;
  }
  return address;
}

// Addresses of interfaces that are up; not those that mean nothing without the name of an interface.
std::vector<std::string> own_addresses(int family) {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) < 0) return {};
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(raw, ::freeifaddrs);
  std::vector<std::string> found;
  for (const ifaddrs* one = raw; one && found.size() < kMostAddresses; one = one->ifa_next) {
    if (!one->ifa_addr || one->ifa_addr->sa_family != family || !(one->ifa_flags & IFF_UP)) continue;
    const void* bytes = &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    if (family == AF_INET6) {
      const auto& six = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&six)) continue;
      bytes = &six;
    }
    char text[INET6_ADDRSTRLEN];
    if (::inet_ntop(family, bytes, text, sizeof text)) found.emplace_back(text);
  }
  return found;
}

bool is_loopback(std::string_view address) { return address.starts_with("127.") || address == "::1"; }

// Only to whoever asks with our words: nobody else's ping is answered twice.
void answer_ping(int fd) {
  char packet[1500];
  Address from;
  from.size = sizeof from.six;
  ssize_t n = ::recvfrom(fd, packet, sizeof packet, MSG_DONTWAIT, from.get(), &from.size);
  if (n < static_cast<ssize_t>(sizeof(iphdr))) return;
  const std::string_view bytes(packet, static_cast<size_t>(n));
  const size_t start = static_cast<size_t>(packet[0] & 0xf) * 4;  // behind the IP header
  if (bytes.size() < start + sizeof(icmphdr)) return;
  icmphdr header;
  std::memcpy(&header, packet + start, sizeof header);
  if (header.type != ICMP_ECHO || !bytes.substr(start + sizeof header).starts_with(kPingQuestion)) return;
  header.type = ICMP_ECHOREPLY;
  const std::string reply = echo_message(header, kPingAnswer);
  ::sendto(fd, reply.data(), reply.size(), MSG_DONTWAIT, from.get(), from.size);
}

void answer_datagram(int fd) {
  char question[512];
  Address from;
  from.size = sizeof from.six;
  ssize_t n = ::recvfrom(fd, question, sizeof question, MSG_DONTWAIT, from.get(), &from.size);
  // Not to an answer: two of us would have each other to talk to for ever.
  if (n >= 0 && !std::string_view(question, static_cast<size_t>(n)).starts_with(kAnswer))
    ::sendto(fd, kAnswer.data(), kAnswer.size(), MSG_DONTWAIT, from.get(), from.size);
}

// Closed only when the other side has: a close with a question unread would take the answer back.
void greet(int listener, std::vector<Fd>& talks) {
  Fd peer(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer || ::send(peer.get(), kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL) < 0) return;
  ::shutdown(peer.get(), SHUT_WR);
  if (talks.size() == kMostTalks) talks.erase(talks.begin());
  talks.push_back(std::move(peer));
}

bool is_over(const Fd& talk) {
  char rest[4096];
  // One that never stops talking has had its answer, and keeps us from nobody.
  for (int i = 0; i < 16; ++i) {
    ssize_t n = ::recv(talk.get(), rest, sizeof rest, 0);
    if (n <= 0) return n == 0 || errno != EAGAIN;
  }
  return true;
}

}  // namespace

// `port` 0: any that is free.
Result<HostServices::Service> HostServices::listen(Kind kind, const std::string& address, uint16_t port) {
  const int family = kind == Kind::tcp6 ? AF_INET6 : AF_INET;
  const int type = kind == Kind::ping4 ? SOCK_RAW : kind == Kind::udp4 ? SOCK_DGRAM : SOCK_STREAM;
  const std::string where = fmt::format("cannot listen on {}", address);
  Service service{kind, address, port,
                  Fd(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, kind == Kind::ping4 ? IPPROTO_ICMP : 0))};
  const int fd = service.fd.get();
  if (fd < 0) return sys_error(where);
  const int on = 1;
  // For open_again(): where that is, the address may not be.
  if (family == AF_INET6 ? ::setsockopt(fd, IPPROTO_IPV6, IPV6_FREEBIND, &on, sizeof on) < 0
                         : ::setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof on) < 0)
    return sys_error(where);
  Address at = address_of(address, kind == Kind::ping4 ? 0 : port);
  if (::bind(fd, at.get(), at.size) < 0) return sys_error(where);
  if (type == SOCK_STREAM && ::listen(fd, 128) < 0) return sys_error(where);
  if (::getsockname(fd, at.get(), &at.size) < 0) return sys_error(where);
  if (kind != Kind::ping4) service.port = ntohs(family == AF_INET ? at.four.sin_port : at.six.sin6_port);
  return service;
}

Result<std::unique_ptr<HostServices>> HostServices::open() {
  std::unique_ptr<HostServices> host(new HostServices);
  for (int family : {AF_INET, AF_INET6})
    for (const auto& address : own_addresses(family)) {
      std::vector<Kind> kinds = {Kind::tcp4, Kind::udp4, Kind::ping4};
      if (family == AF_INET6) kinds = {Kind::tcp6};
      for (Kind kind : kinds)
        // An address that cannot be listened on (just given up, a container without raw sockets) is left out: lacks()
        // says so when none is left.
        if (auto service = listen(kind, address, 0)) host->services_.push_back(std::move(*service));
    }
  ISOLA_CHECK(host->start());
  return host;
}

Result<std::unique_ptr<HostServices>> HostServices::open_again() const {
  std::unique_ptr<HostServices> there(new HostServices);
  for (const auto& one : services_) {
    ISOLA_TRY(Service service, listen(one.kind, one.address, one.port));
    there->services_.push_back(std::move(service));
  }
  ISOLA_CHECK(there->start());
  return there;
}

Result<void> HostServices::start() {
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  stop_read_ = std::move(pipe.first), stop_write_ = std::move(pipe.second);
  thread_ = std::thread([this] { serve(); });
  return {};
}

HostServices::~HostServices() {
  stop_write_.reset();
  if (thread_.joinable()) thread_.join();
}

void HostServices::answer(const Service& service, std::vector<Fd>& talks) const {
  switch (service.kind) {
    case Kind::tcp4:
    case Kind::tcp6: return greet(service.fd.get(), talks);
    case Kind::udp4: return answer_datagram(service.fd.get());
    case Kind::ping4: return answer_ping(service.fd.get());
  }
}

void HostServices::serve() {
  std::vector<Fd> talks;
  while (true) {
    std::vector<pollfd> waits = {{stop_read_.get(), POLLIN, 0}};
    for (const auto& service : services_) waits.push_back({service.fd.get(), POLLIN, 0});
    for (const auto& talk : talks) waits.push_back({talk.get(), POLLIN, 0});
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;  // a signal
    if (waits[0].revents) return;
    std::erase_if(talks, is_over);
    for (size_t i = 0; i < services_.size(); ++i)
      if (waits[i + 1].revents & POLLIN) answer(services_[i], talks);
  }
}

std::string HostServices::places(Kind kind) const {
  std::string list;
  // What leads to the host from elsewhere first: a program that was answered asks no further.
  for (bool loopback : {false, true})
    for (const auto& one : services_)
      if (one.kind == kind && is_loopback(one.address) == loopback)
        list += fmt::format("{}{} {}", list.empty() ? "" : ",", one.address, one.port);
  return list;
}

namespace {
constexpr struct {
  std::string_view program, variable;
  HostServices::Kind kind;
} kAskers[] = {{"tcp-out", "ISOLA_CANARY_TCP", HostServices::Kind::tcp4},
               {"tcp6-out", "ISOLA_CANARY_TCP6", HostServices::Kind::tcp6},
               {"udp-out", "ISOLA_CANARY_UDP", HostServices::Kind::udp4},
               {"metadata-out", "ISOLA_CANARY_METADATA", HostServices::Kind::tcp4},
               {"ping-out", "ISOLA_CANARY_PING", HostServices::Kind::ping4}};
}  // namespace

std::vector<std::string> HostServices::variables() const {
  std::vector<std::string> all;
  for (const auto& one : kAskers)
    if (auto list = places(one.kind); !list.empty()) all.push_back(fmt::format("{}={}", one.variable, list));
  return all;
}

bool HostServices::asked_by(std::string_view program) {
  return std::ranges::any_of(kAskers, [&](const auto& one) { return one.program == program; });
}

std::string HostServices::lacks(std::string_view program) const {
  auto nobody = [&](const auto& one) { return one.program == program && places(one.kind).empty(); };
  return std::ranges::any_of(kAskers, nobody) ? "this machine can open nothing for it to ask" : "";
}

bool HostServices::only_loopback() const {
  return std::ranges::all_of(services_, [](const auto& one) { return is_loopback(one.address); });
}

}  // namespace isola::cli
