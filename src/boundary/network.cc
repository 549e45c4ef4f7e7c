#include "boundary/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file.h"
#include "base/log.h"
#include "kernel/fault.h"
#include "kernel/mount.h"
#include "kernel/netlink.h"
#include "kernel/netlink_route.h"
#include "kernel/nftables.h"
#include "kernel/tap.h"

namespace isola::boundary {

using kernel::NetlinkBatch;
using kernel::NetlinkSocket;
using kernel::NftChain;
using kernel::NftRule;

namespace {

// Opens the folder of the switches of the network namespace that the thread is in. The kernel keeps those folders of
// all namespaces in one list per mount of proc, and searches it from the start: with thousands of sandboxes alive, a
// look into /proc takes milliseconds. A proc of our own, thrown away now and then, has a short list.
class Switches {
 public:
  Result<Fd> open() {
    if (++uses_ > kUses || !proc_) {
      ISOLA_TRY(proc_, kernel::make_filesystem("proc", {}, {.nosuid = true, .nodev = true, .noexec = true}));
      uses_ = 1;
    }
    Fd folder(::openat(proc_.get(), "sys/net/netfilter", O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder) return sys_error("cannot open the switches of the sandbox's network");
    return folder;
  }

 private:
  static constexpr int kUses = 64;
  Fd proc_;
  int uses_ = 0;
};

}  // namespace

struct IslandNetwork::Messages {
  Shape shape = Shape::alone;
  NetlinkBatch route;
  NetlinkBatch rules;
  NetlinkBatch wire;  // for the engine's end
  NetlinkBatch hold, release;
  Fd home;  // the network namespace that we live in
  bool ipv6 = true;
  std::string expected;  // empty: not learnt yet
  Switches switches;
};

namespace {

constexpr int kBacklog = 1024;

// The cable's ends have this number in both namespaces, so that all messages but one are the same for all.
constexpr int kCable = 77;

// Ports of the gate's sockets.
constexpr std::pair<uint8_t, uint16_t> kGatePorts[] = {
    {IPPROTO_TCP, kGatePort}, {IPPROTO_TCP, kDnsPort}, {IPPROTO_UDP, kDnsPort}};

// Redirected connections of a sandbox, and DNS questions, each: far above what programs need, and together with the
// times below a bound on the kernel's records of them (docs/threat-model.md has the sum).
constexpr uint64_t kMostPerSecond = 100;
constexpr uint32_t kMostAtOnce = 1000;
constexpr uint32_t kMostOpen = 2048;

// How long the kernel remembers what is over, in seconds; switches of the network namespace.
constexpr std::pair<const char*, const char*> kMemory[] = {{"nf_conntrack_udp_timeout", "10\n"},
                                                           {"nf_conntrack_udp_timeout_stream", "10\n"},
                                                           {"nf_conntrack_tcp_timeout_time_wait", "10\n"}};

// Inside another network namespace for as long as this lives.
class Visit {
 public:
  static Result<Visit> enter(int netns_fd, int home_fd) {
    if (int e = kernel::fault::at("setns_net")) return sys_error("cannot enter the sandbox's network namespace", e);
    if (::setns(netns_fd, CLONE_NEWNET) < 0) return sys_error("cannot enter the sandbox's network namespace");
    return Visit(home_fd);
  }
  Visit(Visit&& other) noexcept : home_(std::exchange(other.home_, -1)) {}
  Visit& operator=(Visit&&) = delete;
  ~Visit() {
    if (home_ < 0 || ::setns(home_, CLONE_NEWNET) == 0) return;
    // A launcher that stays inside a sandbox's network would open its next sockets there.
    log::error("boundary", "cannot leave a sandbox's network namespace: giving up");
    std::abort();
  }

 private:
  explicit Visit(int home_fd) : home_(home_fd) {}
  int home_;
};

Result<NetlinkBatch> route_messages(bool ipv6) {
  NetlinkBatch batch;
  kernel::add_link_up(batch, kernel::kLoopbackIndex);
  for (const char* own : {kOwnAddress4, kOwnAddress6}) {
    if (own == kOwnAddress6 && !ipv6) continue;
    ISOLA_CHECK(kernel::add_address(batch, kernel::kLoopbackIndex, own));
    ISOLA_CHECK(kernel::add_everything_is_local(batch, kernel::kLoopbackIndex, own));
  }
  return batch;
}

Result<NetlinkBatch> wired_route_messages(bool ipv6) {
  NetlinkBatch batch;
  kernel::add_link_up(batch, kernel::kLoopbackIndex);
  if (ipv6) kernel::add_no_own_address(batch, kCable);
  kernel::add_link_up(batch, kCable);
  for (auto [own, guest] : {std::pair{kOwnAddress4, kWireAddress4}, std::pair{kOwnAddress6, kWireAddress6}}) {
    if (own == kOwnAddress6 && !ipv6) continue;
    ISOLA_CHECK(kernel::add_address(batch, kCable, own));
    ISOLA_CHECK(kernel::add_everything_is_local(batch, kernel::kLoopbackIndex, own));
    ISOLA_CHECK(kernel::add_neighbour(batch, kCable, guest));
  }
  return batch;
}

// What the engine finds and takes over: an address, and the way to everything else.
Result<NetlinkBatch> wire_messages(bool ipv6) {
  NetlinkBatch batch;
  kernel::add_link_up(batch, kernel::kLoopbackIndex);  // else it would have no loopback of its own
  if (ipv6) kernel::add_no_own_address(batch, kCable);
  ISOLA_CHECK(kernel::add_address(batch, kCable, kWireAddress4, 30));
  if (ipv6) ISOLA_CHECK(kernel::add_address(batch, kCable, kWireAddress6, 126));
  kernel::add_link_up(batch, kCable);
  ISOLA_CHECK(kernel::add_default_route(batch, kOwnAddress4));
  if (ipv6) ISOLA_CHECK(kernel::add_default_route(batch, kOwnAddress6));
  return batch;
}

// The rules for IPv6 are there even where the host has none: they cost nothing and cannot be forgotten.
NetlinkBatch rule_messages() {
  kernel::NftBatch nft("isola");
  // Before the kernel begins to track: what stays inside is not recorded. A record belongs to no memory limit, so each
  // kind of packet that still gets one is named here, and `leave` bounds how many.
  const char* aside = "aside";
  nft.chain({.name = aside, .kind = NftChain::Kind::raw_output});
  auto tracked = [&](NftRule rule) { nft.rule(aside, std::move(rule).accept()); };
  auto untracked = [&](NftRule rule) { nft.rule(aside, std::move(rule).do_not_track().accept()); };
  for (auto [protocol, port] : kGatePorts) {
    // Answers of the gate, to be turned back; nobody inside can have these addresses and ports.
    tracked(NftRule().protocol(protocol).from_port(port).from("127.0.0.1"));
    tracked(NftRule().protocol(protocol).from_port(port).from("::1"));
    // Whoever dials the gate directly: `leave` knows them by their record, and refuses before it is kept.
    tracked(NftRule().protocol(protocol).port(port));
  }
  // "Unreachable" may be about a redirected connection, and then be turned back; of itself it makes no record.
  tracked(NftRule().protocol(IPPROTO_ICMP).icmp_type(ICMP_DEST_UNREACH));
  tracked(NftRule().protocol(IPPROTO_ICMPV6).icmp_type(ICMP6_DST_UNREACH));
  untracked(NftRule().to_loopback4());
  untracked(NftRule().to("::1"));
  for (uint8_t protocol : {IPPROTO_UDP, IPPROTO_TCP}) tracked(NftRule().protocol(protocol).port(53));
  untracked(NftRule().to(kOwnAddress4));
  untracked(NftRule().to(kOwnAddress6));

  const char* steer = "steer";  // where connections are turned towards the gate
  nft.chain({.name = steer, .kind = NftChain::Kind::nat_output});
  nft.rule(steer, NftRule().to_loopback4().accept());
  nft.rule(steer, NftRule().to("::1").accept());
  for (uint8_t protocol : {IPPROTO_UDP, IPPROTO_TCP})
    nft.rule(steer, NftRule().protocol(protocol).port(53).redirect(kDnsPort));
  nft.rule(steer, NftRule().to(kOwnAddress4).accept());
  nft.rule(steer, NftRule().to(kOwnAddress6).accept());
  nft.rule(steer, NftRule().protocol(IPPROTO_TCP).redirect(kGatePort));

  const char* leave = "leave";  // sees packets after that: what is not for a loopback or own address is going nowhere
  nft.chain({.name = leave, .kind = NftChain::Kind::filter_output, .drop_by_default = true});
  for (uint16_t port : {kGatePort, kDnsPort})
    nft.rule(leave, NftRule().protocol(IPPROTO_TCP).port(port).not_redirected().reject_with_reset());
  nft.rule(leave, NftRule().protocol(IPPROTO_UDP).port(kDnsPort).not_redirected().reject());
  // What is left is redirected and recorded. The kernel counts open TCP connections only, and keeps closed ones (and
  // questions that were answered) for a while: so both their number and their rate are bounded, the rate first, since
  // counting costs memory of its own.
  auto fresh_tcp = [] { return NftRule().fresh().protocol(IPPROTO_TCP); };
  nft.rule(leave, fresh_tcp().rate_over(kMostPerSecond, kMostAtOnce).reject_with_reset());
  nft.rule(leave, fresh_tcp().flows_over(kMostOpen).reject_with_reset());
  nft.rule(leave,
           NftRule().fresh().protocol(IPPROTO_UDP).port(kDnsPort).rate_over(kMostPerSecond, kMostAtOnce).reject());
  // The answers' port begins nothing; but between a launcher that died and the next one, a program inside could take
  // it.
  nft.rule(leave,
           NftRule().fresh().protocol(IPPROTO_UDP).from_port(kDnsPort).rate_over(kMostPerSecond, kMostAtOnce).reject());
  nft.rule(leave, NftRule().to_loopback4().accept());
  nft.rule(leave, NftRule().to(kOwnAddress4).accept());
  nft.rule(leave, NftRule().to("::1").accept());
  nft.rule(leave, NftRule().to(kOwnAddress6).accept());
  nft.rule(leave, NftRule().protocol(IPPROTO_TCP).reject_with_reset());
  nft.rule(leave, NftRule().reject());
  return nft.take();
}

// The same as rule_messages(), for what comes in by the cable. Nobody lives on this side of it but the gate's sockets.
NetlinkBatch wired_rule_messages() {
  kernel::NftBatch nft("isola");
  const char* aside = "aside";
  nft.chain({.name = aside, .kind = NftChain::Kind::raw_arriving});
  nft.rule(aside, NftRule().protocol(IPPROTO_TCP).accept());
  // The second: whoever dials it directly is known by the record, and refused before it is kept.
  for (uint16_t port : {uint16_t{53}, kDnsPort}) nft.rule(aside, NftRule().protocol(IPPROTO_UDP).port(port).accept());
  nft.rule(aside, NftRule().do_not_track().accept());

  const char* steer = "steer";
  nft.chain({.name = steer, .kind = NftChain::Kind::nat_arriving});
  for (uint8_t protocol : {IPPROTO_UDP, IPPROTO_TCP})
    nft.rule(steer, NftRule().protocol(protocol).port(53).redirect(kDnsPort));
  nft.rule(steer, NftRule().protocol(IPPROTO_TCP).redirect(kGatePort));

  const char* arrive = "arrive";
  nft.chain({.name = arrive, .kind = NftChain::Kind::filter_arriving, .drop_by_default = true});
  for (uint16_t port : {kGatePort, kDnsPort})
    nft.rule(arrive, NftRule().protocol(IPPROTO_TCP).port(port).not_redirected().reject_with_reset());
  nft.rule(arrive, NftRule().protocol(IPPROTO_UDP).port(kDnsPort).not_redirected().reject());
  auto fresh_tcp = [] { return NftRule().fresh().protocol(IPPROTO_TCP); };
  nft.rule(arrive, fresh_tcp().rate_over(kMostPerSecond, kMostAtOnce).reject_with_reset());
  nft.rule(arrive, fresh_tcp().flows_over(kMostOpen).reject_with_reset());
  nft.rule(arrive,
           NftRule().fresh().protocol(IPPROTO_UDP).port(kDnsPort).rate_over(kMostPerSecond, kMostAtOnce).reject());
  for (uint16_t port : {kGatePort, kDnsPort}) nft.rule(arrive, NftRule().protocol(IPPROTO_TCP).port(port).accept());
  nft.rule(arrive, NftRule().protocol(IPPROTO_UDP).port(kDnsPort).accept());
  // Who has which address on the cable. (For IPv4 that is ARP, which meets no rules.)
  for (uint8_t type : {ND_NEIGHBOR_SOLICIT, ND_NEIGHBOR_ADVERT})
    nft.rule(arrive, NftRule().protocol(IPPROTO_ICMPV6).icmp_type(type).accept());
  nft.rule(arrive, NftRule().protocol(IPPROTO_TCP).reject_with_reset());
  nft.rule(arrive, NftRule().reject());
  return nft.take();
}

constexpr char kHold[] = "isola-hold";

NetlinkBatch hold_messages() {
  kernel::NftBatch nft(kHold);
  const char* hold = "hold";
  nft.chain({.name = hold, .kind = NftChain::Kind::filter_output});
  nft.rule(hold, NftRule().protocol(IPPROTO_TCP).not_marked(IslandNetwork::kRestorersMark).drop());
  return nft.take();
}

NetlinkBatch hold_inner_messages() {
  kernel::NftBatch nft("isola-dump", kernel::NftBatch::Life::with_socket);
  const char* hold = "hold";
  nft.chain({.name = hold, .kind = NftChain::Kind::filter_output});
  for (uint16_t port : {kGatePort, kDnsPort}) {
    nft.rule(hold, NftRule().protocol(IPPROTO_TCP).port(port).accept());
    nft.rule(hold, NftRule().protocol(IPPROTO_TCP).from_port(port).accept());
  }
  nft.rule(hold, NftRule().protocol(IPPROTO_TCP).drop());
  return nft.take();
}

struct SocketAddress {
  SocketAddress(const char* text, uint16_t port) {
    if (inet_pton(AF_INET, text, &four.sin_addr) == 1) {
      four.sin_family = AF_INET, four.sin_port = htons(port), size = sizeof four;
    } else {
      inet_pton(AF_INET6, text, &six.sin6_addr);
      six.sin6_family = AF_INET6, six.sin6_port = htons(port), size = sizeof six;
    }
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(this); }
  union {
    sockaddr_in four;
    sockaddr_in6 six{};
  };
  socklen_t size;
};

bool set_reuse(const Fd& fd, int value) {
  return ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &value, sizeof value) == 0;
}

// `home`: the address that packets are redirected to; `guest`: whose questions come.
struct Places {
  const char *home, *guest;
};
Places places_of(IslandNetwork::Shape shape, int family) {
  if (shape != IslandNetwork::Shape::alone)
    return family == AF_INET ? Places{kOwnAddress4, kWireAddress4} : Places{kOwnAddress6, kWireAddress6};
  return family == AF_INET ? Places{"127.0.0.1", kOwnAddress4} : Places{"::1", kOwnAddress6};
}

Result<Fd> bound_socket(IslandNetwork::Shape shape, int family, int type, uint16_t port) {
  if (int e = kernel::fault::at("island_socket")) return sys_error("cannot open a socket inside the sandbox", e);
  Fd fd(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return sys_error("cannot open a socket inside the sandbox");
  // Redirected packets go to exactly this address; and a UDP answer must come from it, else connection tracking would
  // not know it for the answer and would not turn it back.
  SocketAddress address(places_of(shape, family).home, port);
  if (int e = kernel::fault::at("island_bind"))
    return sys_error("cannot take port " + std::to_string(port) + " inside the sandbox", e);
  if (::bind(fd.get(), address.get(), address.size) < 0) {
    // Connections of an earlier gate linger on the port for a minute. Shared with those, and with nobody who comes
    // later.
    if (errno != EADDRINUSE || type != SOCK_STREAM || !set_reuse(fd, 1) ||
        ::bind(fd.get(), address.get(), address.size) < 0 || !set_reuse(fd, 0))
      return sys_error("cannot take port " + std::to_string(port) + " inside the sandbox");
  }
  if (type == SOCK_DGRAM) {
    // A bound UDP socket would swallow questions that nobody reads. Connected to a peer that does not exist, it holds
    // the port and receives nothing: whoever asks is told "port unreachable". The peer has the sandbox's own address
    // because IPv6 remembers it even after start_answering() has disconnected the socket, and would go on to refuse
    // questions from any other.
    SocketAddress nobody(places_of(shape, family).guest, 1);
    if (::connect(fd.get(), nobody.get(), nobody.size) < 0) return sys_error("cannot close the sandbox's DNS port");
  }
  return fd;
}

Result<IslandSockets> open_sockets(IslandNetwork::Shape shape, bool ipv6) {
  IslandSockets out;
  ISOLA_TRY(out.tcp4, bound_socket(shape, AF_INET, SOCK_STREAM, kGatePort));
  ISOLA_TRY(out.dns_udp4, bound_socket(shape, AF_INET, SOCK_DGRAM, kDnsPort));
  ISOLA_TRY(out.dns_tcp4, bound_socket(shape, AF_INET, SOCK_STREAM, kDnsPort));
  if (!ipv6) return out;
  ISOLA_TRY(out.tcp6, bound_socket(shape, AF_INET6, SOCK_STREAM, kGatePort));
  ISOLA_TRY(out.dns_udp6, bound_socket(shape, AF_INET6, SOCK_DGRAM, kDnsPort));
  ISOLA_TRY(out.dns_tcp6, bound_socket(shape, AF_INET6, SOCK_STREAM, kDnsPort));
  return out;
}

Result<Fd> open_own_netns() {
  Fd fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!fd) return sys_error("cannot open the network namespace");
  return fd;
}

}  // namespace

Result<void> IslandSockets::start_answering() {
  for (const Fd* fd : {&tcp4, &tcp6, &dns_tcp4, &dns_tcp6}) {
    if (!fd->valid()) continue;
    if (int e = kernel::fault::at("island_listen")) return sys_error("cannot listen inside the sandbox", e);
    // Shared with what lingers of earlier connections, and by those that will be accepted, so that reopen() can have
    // the port. Nobody inside gains by it: a port that somebody listens on is never shared.
    if (!set_reuse(*fd, 1) || ::listen(fd->get(), kBacklog) < 0) return sys_error("cannot listen inside the sandbox");
  }
  sockaddr nobody{.sa_family = AF_UNSPEC};
  for (const Fd* fd : {&dns_udp4, &dns_udp6})
    if (fd->valid() && ::connect(fd->get(), &nobody, sizeof nobody) < 0)
      return sys_error("cannot open the sandbox's DNS port");
  return {};
}

Result<IslandNetwork> IslandNetwork::prepare(Shape shape) {
  auto messages = std::make_shared<Messages>();
  messages->ipv6 = ::access("/proc/sys/net/ipv6", F_OK) == 0;
  messages->shape = shape;
  if (shape != Shape::alone) {
    ISOLA_TRY(messages->route, wired_route_messages(messages->ipv6));
    if (shape == Shape::wired) {
      ISOLA_TRY(messages->wire, wire_messages(messages->ipv6));
    }
    messages->rules = wired_rule_messages();
  } else {
    ISOLA_TRY(messages->route, route_messages(messages->ipv6));
    messages->rules = rule_messages();
    messages->hold = hold_messages();
    messages->release = kernel::remove_table(kHold);
  }
  ISOLA_TRY(messages->home, open_own_netns());
  return IslandNetwork(std::move(messages));
}

struct IslandNetwork::Doors {
  NetlinkSocket netfilter, route;
  Fd switches;  // a kernel with modules may have them only when there are rules
};

Result<IslandNetwork::Doors> IslandNetwork::open_doors() const {
  ISOLA_TRY(NetlinkSocket netfilter, NetlinkSocket::open(NETLINK_NETFILTER));
  ISOLA_TRY(NetlinkSocket route, NetlinkSocket::open(NETLINK_ROUTE));
  return Doors{std::move(netfilter), std::move(route), {}};
}

Result<IslandSockets> IslandNetwork::configure(Doors& doors, int wire, Fd& tap) const {
  // Rules before the device is up: there is no moment in which a packet could go another way.
  ISOLA_CHECK(doors.netfilter.run(messages_->rules));
  ISOLA_TRY(doors.switches, messages_->switches.open());
  for (auto [name, seconds] : kMemory) {
    if (int e = kernel::fault::at("island_switch")) return sys_error(std::string("cannot set ") + name, e);
    ISOLA_CHECK(write_file_at(doors.switches.get(), name, seconds));
  }
  if (messages_->shape == Shape::wired) {
    NetlinkBatch cable;
    kernel::add_cable(cable, "gate", "eth0", wire, kCable);
    ISOLA_CHECK(doors.route.run(cable));
  }
  if (messages_->shape == Shape::tapped) {
    ISOLA_TRY(tap, kernel::make_tap("gate", kCable));
  }
  ISOLA_CHECK(doors.route.run(messages_->route));
  return open_sockets(messages_->shape, messages_->ipv6);
}

Result<std::string> IslandNetwork::read_back(const Doors& doors) const {
  ISOLA_TRY(std::string text, kernel::describe_links(doors.route));
  ISOLA_TRY(std::string rules, kernel::describe_ruleset(doors.netfilter));
  for (auto [name, wanted] : kMemory) {
    ISOLA_TRY(std::string seconds, read_file_at(doors.switches.get(), name));
    rules += std::string("switch ") + name + " " + seconds;
  }
  return text + rules;
}

Result<IslandSockets> IslandNetwork::make(int netns_fd, Answering answering, int wire) const {
  if (messages_->shape == Shape::tapped) return fail(Code::internal, "a TAP that nobody would hold");
  Fd none;
  ISOLA_TRY(Visit visit, Visit::enter(netns_fd, messages_->home.get()));
  ISOLA_TRY(Doors doors, open_doors());
  ISOLA_TRY(IslandSockets sockets, configure(doors, wire, none));
  if (answering == Answering::gate) ISOLA_CHECK(sockets.start_answering());
  return sockets;
}

Result<IslandNetwork::Made> IslandNetwork::make_and_describe(int netns_fd, int wire) const {
  Made made;
  {
    ISOLA_TRY(Visit visit, Visit::enter(netns_fd, messages_->home.get()));
    ISOLA_TRY(Doors doors, open_doors());
    ISOLA_TRY(made.sockets, configure(doors, wire, made.tap));
    ISOLA_TRY(made.description, read_back(doors));
  }
  if (messages_->shape == Shape::wired) {
    ISOLA_TRY(std::string wired, configure_wire(wire));
    made.description += wired;
  }
  return made;
}

// The engine's end; and what is there then.
Result<std::string> IslandNetwork::configure_wire(int wire) const {
  ISOLA_TRY(Visit visit, Visit::enter(wire, messages_->home.get()));
  ISOLA_TRY(NetlinkSocket route, NetlinkSocket::open(NETLINK_ROUTE));
  ISOLA_CHECK(route.run(messages_->wire));
  ISOLA_TRY(std::string text, kernel::describe_links(route));
  std::string marked;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at) + 1;
    marked += "wire " + text.substr(at, end - at);
    at = end;
  }
  return marked;
}

Result<IslandSockets> IslandNetwork::reopen(int netns_fd) const {
  ISOLA_TRY(Visit visit, Visit::enter(netns_fd, messages_->home.get()));
  return open_sockets(messages_->shape, messages_->ipv6);
}

Result<NetlinkSocket> hold_inner_connections(int netns_fd) {
  ISOLA_TRY(Fd home, open_own_netns());
  ISOLA_TRY(Visit visit, Visit::enter(netns_fd, home.get()));
  ISOLA_TRY(NetlinkSocket netfilter, NetlinkSocket::open(NETLINK_NETFILTER));
  ISOLA_CHECK(netfilter.run(hold_inner_messages()));
  return netfilter;
}

Result<void> IslandNetwork::hold_connections(int netns_fd) const {
  ISOLA_TRY(Visit visit, Visit::enter(netns_fd, messages_->home.get()));
  ISOLA_TRY(NetlinkSocket netfilter, NetlinkSocket::open(NETLINK_NETFILTER));
  return netfilter.run(messages_->hold);
}

Result<void> IslandNetwork::release_connections(int netns_fd) const {
  ISOLA_TRY(Visit visit, Visit::enter(netns_fd, messages_->home.get()));
  ISOLA_TRY(NetlinkSocket netfilter, NetlinkSocket::open(NETLINK_NETFILTER));
  return netfilter.run(messages_->release);
}

Result<std::string> IslandNetwork::describe(int netns_fd) const {
  ISOLA_TRY(Visit visit, Visit::enter(netns_fd, messages_->home.get()));
  ISOLA_TRY(Doors doors, open_doors());
  ISOLA_TRY(doors.switches, messages_->switches.open());
  return read_back(doors);
}

Result<std::string> IslandNetwork::expected() const {
  if (messages_->expected.empty()) {
    Fd fresh, wire;
    {
      ISOLA_TRY(Visit visit,
                Visit::enter(messages_->home.get(), messages_->home.get()));  // whatever happens: back home
      for (Fd* netns : {&wire, &fresh}) {
        if (::unshare(CLONE_NEWNET) < 0) return sys_error("cannot make a network namespace");
        ISOLA_TRY(*netns, open_own_netns());
      }
    }
    ISOLA_TRY(Made made, make_and_describe(fresh.get(), wire.get()));
    messages_->expected = made.description;
  }
  return messages_->expected;
}

}  // namespace isola::boundary
