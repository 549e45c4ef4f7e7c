// An island's network, seen from inside: a child in a user and network namespace of its own, as in a jail, without
// any capability; the test plays the gate.
#include "boundary/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/netfilter_ipv4.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <optional>

#include "base/file.h"
#include "boundary/network_rules_golden.h"
#include "kernel/fault.h"
#include "kernel/netlink.h"
#include "kernel/netlink_route.h"
#include "kernel/nftables.h"

namespace isola::boundary {
namespace {

constexpr int kLongMs = 20'000;  // only a hang takes that long

struct Address {
  Address(const char* text, uint16_t port) {
    auto* four = reinterpret_cast<sockaddr_in*>(&storage);
    auto* six = reinterpret_cast<sockaddr_in6*>(&storage);
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
      four->sin_family = AF_INET, four->sin_port = htons(port), size = sizeof *four;
    } else {
      inet_pton(AF_INET6, text, &six->sin6_addr);
      six->sin6_family = AF_INET6, six->sin6_port = htons(port), size = sizeof *six;
    }
  }
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr_storage storage{};
  socklen_t size;
};

std::string error_name(int e) { return e == 0 ? "ok" : strerrorname_np(e); }

// Connects (TCP) or sends and waits for an answer (UDP); the answer's text, or the errno's name.
std::string talk(int type, const char* to, uint16_t port) {
  Address address(to, port);
  Fd fd(::socket(address.family(), type | SOCK_CLOEXEC, 0));
  timeval limit{kLongMs / 1000, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (::connect(fd.get(), address.get(), address.size) < 0) return error_name(errno);
  if (type == SOCK_DGRAM && ::send(fd.get(), "question", 8, 0) < 0) return error_name(errno);
  char text[64];
  ssize_t n = ::recv(fd.get(), text, sizeof text, 0);
  return n < 0 ? error_name(errno) : std::string(text, static_cast<size_t>(n));
}

std::string take_port(int type, const char* at, uint16_t port, std::initializer_list<int> options) {
  Address address(at, port);
  Fd fd(::socket(address.family(), type | SOCK_CLOEXEC, 0));
  int one = 1;
  for (int option : options) ::setsockopt(fd.get(), SOL_SOCKET, option, &one, sizeof one);
  return ::bind(fd.get(), address.get(), address.size) < 0 ? error_name(errno) : "ok";
}

// talk() one after the other ("a" + talk() + talk() would leave the order open).
struct Call {
  int type;
  const char* to;
  uint16_t port;
};
std::string talk_to(std::initializer_list<Call> calls) {
  std::string out;
  for (const auto& call : calls) out += (out.empty() ? "" : " ") + talk(call.type, call.to, call.port);
  return out;
}

// A child in namespaces of its own that runs `work` when told, and whose result is a text.
class Guest {
 public:
  explicit Guest(std::function<std::string()> work) {
    int to[2], from[2];
    if (::pipe2(to, O_CLOEXEC) < 0 || ::pipe2(from, O_CLOEXEC) < 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(to[1]);
      char c = ::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 ? 'r' : 'u';
      __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
      __user_cap_data_struct none[2] = {};
      ::syscall(SYS_capset, &head, none);
      if (::write(from[1], &c, 1) != 1 || ::read(to[0], &c, 1) != 1) ::_exit(1);
      auto text = work();
      ::_exit(::write(from[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    ::close(to[0]), ::close(from[1]);
    to_ = Fd(to[1]), from_ = Fd(from[0]);
    char c = 0;
    ready_ = ::read(from_.get(), &c, 1) == 1 && c == 'r';
    netns_ = Fd(::open(("/proc/" + std::to_string(pid_) + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
  }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;
  ~Guest() { ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0); }

  bool ready() const { return ready_; }
  int netns() const { return netns_.get(); }
  void go() { ASSERT_EQ(::write(to_.get(), "g", 1), 1); }
  std::string result() {
    std::string out;
    char buffer[256];
    for (ssize_t n; (n = ::read(from_.get(), buffer, sizeof buffer)) > 0;) out.append(buffer, static_cast<size_t>(n));
    return out;
  }

 private:
  pid_t pid_;
  bool ready_;
  Fd to_, from_, netns_;
};

bool readable(const Fd& fd) {
  pollfd p{fd.get(), POLLIN, 0};
  return ::poll(&p, 1, kLongMs) == 1;
}

ino_t own_netns() {
  struct stat st{};
  ::stat("/proc/thread-self/ns/net", &st);
  return st.st_ino;
}

class Island : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    home_ = own_netns();
    auto network = IslandNetwork::prepare();
    ASSERT_TRUE(network) << network.error().text();
    network_.emplace(*network);
  }
  void TearDown() override {
    kernel::fault::disarm();
    EXPECT_EQ(own_netns(), home_) << "not back home";
  }
  // Makes the island of this guest and lets it work.
  void run(Guest& guest, Answering answering) {
    if (!guest.ready()) GTEST_SKIP() << "no user and network namespaces here";
    auto sockets = network_->make(guest.netns(), answering);
    ASSERT_TRUE(sockets) << sockets.error().text();
    EXPECT_EQ(own_netns(), home_);
    sockets_ = std::move(*sockets);
    guest.go();
  }
  std::optional<IslandNetwork> network_;
  IslandSockets sockets_;
  ino_t home_ = 0;
};

TEST_F(Island, TcpToAnywhereReachesTheGateWithItsDestination) {
  Guest guest([] { return talk_to({{SOCK_STREAM, "93.184.216.34", 443}, {SOCK_STREAM, "2001:db8::7", 8080}}); });
  run(guest, Answering::gate);
  if (IsSkipped() || HasFatalFailure()) return;

  ASSERT_TRUE(readable(sockets_.tcp4));
  Fd four(::accept4(sockets_.tcp4.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(four);
  sockaddr_in to4{};
  socklen_t size = sizeof to4;
  ASSERT_EQ(::getsockopt(four.get(), SOL_IP, SO_ORIGINAL_DST, &to4, &size), 0);
  char text[INET6_ADDRSTRLEN];
  EXPECT_STREQ(inet_ntop(AF_INET, &to4.sin_addr, text, sizeof text), "93.184.216.34");
  EXPECT_EQ(ntohs(to4.sin_port), 443);
  sockaddr_in peer{};
  size = sizeof peer;
  ASSERT_EQ(::getpeername(four.get(), reinterpret_cast<sockaddr*>(&peer), &size), 0);
  EXPECT_STREQ(inet_ntop(AF_INET, &peer.sin_addr, text, sizeof text), kOwnAddress4);
  ASSERT_EQ(::write(four.get(), "four", 4), 4);
  four.reset();

  ASSERT_TRUE(readable(sockets_.tcp6));
  Fd six(::accept4(sockets_.tcp6.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(six);
  sockaddr_in6 to6{};
  size = sizeof to6;
  ASSERT_EQ(::getsockopt(six.get(), SOL_IPV6, SO_ORIGINAL_DST, &to6, &size), 0);
  EXPECT_STREQ(inet_ntop(AF_INET6, &to6.sin6_addr, text, sizeof text), "2001:db8::7");
  EXPECT_EQ(ntohs(to6.sin6_port), 8080);
  ASSERT_EQ(::write(six.get(), "six", 3), 3);
  six.reset();
  EXPECT_EQ(guest.result(), "four six");
}

TEST_F(Island, DnsReachesItsSockets) {
  Guest guest([] {
    return talk_to({{SOCK_DGRAM, "8.8.8.8", 53},
                    {SOCK_DGRAM, kOwnAddress4, 53},
                    {SOCK_DGRAM, "2001:4860:4860::8888", 53},
                    {SOCK_STREAM, "8.8.4.4", 53}});
  });
  run(guest, Answering::gate);
  if (IsSkipped() || HasFatalFailure()) return;
  for (auto [fd, answer] : {std::pair{&sockets_.dns_udp4, "a"}, {&sockets_.dns_udp4, "b"}, {&sockets_.dns_udp6, "c"}}) {
    ASSERT_TRUE(readable(*fd)) << answer;
    char question[64];
    sockaddr_storage from;
    socklen_t size = sizeof from;
    ASSERT_EQ(::recvfrom(fd->get(), question, sizeof question, 0, reinterpret_cast<sockaddr*>(&from), &size), 8);
    ASSERT_EQ(::sendto(fd->get(), answer, 1, 0, reinterpret_cast<sockaddr*>(&from), size), 1);
  }
  ASSERT_TRUE(readable(sockets_.dns_tcp4));
  Fd tcp(::accept4(sockets_.dns_tcp4.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_EQ(::write(tcp.get(), "d", 1), 1);
  tcp.reset();
  EXPECT_EQ(guest.result(), "a b c d");
}

TEST_F(Island, WithoutAGateEverythingIsRefusedAtOnce) {
  Guest guest([] {
    std::string out;
    for (const char* to : {"93.184.216.34", "2001:db8::7", "10.0.0.1", "169.254.169.254", "198.18.0.9"})
      out += talk(SOCK_STREAM, to, 443) + " ";
    for (const char* to : {"8.8.8.8", "2001:4860:4860::8888", kOwnAddress4, kOwnAddress6})
      out += talk(SOCK_DGRAM, to, 53) + " ";
    return out + talk(SOCK_STREAM, "8.8.8.8", 53);
  });
  run(guest, Answering::nobody);
  if (IsSkipped() || HasFatalFailure()) return;
  std::string expected;
  for (int i = 0; i < 9; ++i) expected += "ECONNREFUSED ";
  EXPECT_EQ(guest.result(), expected + "ECONNREFUSED");
}

TEST_F(Island, AnsweringCanBeSwitchedOnLater) {
  Guest guest([] { return talk_to({{SOCK_DGRAM, "8.8.8.8", 53}, {SOCK_STREAM, "1.2.3.4", 80}}); });
  if (!guest.ready()) GTEST_SKIP();
  auto sockets = network_->make(guest.netns());
  ASSERT_TRUE(sockets) << sockets.error().text();
  ASSERT_TRUE(sockets->start_answering());
  guest.go();
  ASSERT_TRUE(readable(sockets->dns_udp4));
  char question[64];
  sockaddr_in from;
  socklen_t size = sizeof from;
  ASSERT_GT(
      ::recvfrom(sockets->dns_udp4.get(), question, sizeof question, 0, reinterpret_cast<sockaddr*>(&from), &size), 0);
  ASSERT_EQ(::sendto(sockets->dns_udp4.get(), "x", 1, 0, reinterpret_cast<sockaddr*>(&from), size), 1);
  ASSERT_TRUE(readable(sockets->tcp4));
  Fd tcp(::accept4(sockets->tcp4.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_EQ(::write(tcp.get(), "y", 1), 1);
  tcp.reset();
  EXPECT_EQ(guest.result(), "x y");
}

TEST_F(Island, OtherUdpGoesNowhere) {
  Guest guest([] {
    std::string out;
    for (const char* to : {"1.1.1.1", "2001:db8::7", "10.0.0.1", "224.0.0.251"}) out += talk(SOCK_DGRAM, to, 443) + " ";
    return out;
  });
  run(guest, Answering::gate);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(guest.result(), "EPERM EPERM EPERM EPERM ");
}

TEST_F(Island, ServicesInsideWorkUntouched) {
  Guest guest([] {
    std::string out;
    for (const char* at : {"127.0.0.1", "127.9.9.9", "::1", kOwnAddress4, kOwnAddress6}) {
      Address address(at, 8000);
      Fd server(::socket(address.family(), SOCK_STREAM, 0));
      if (::bind(server.get(), address.get(), address.size) < 0 || ::listen(server.get(), 1) < 0)
        return error_name(errno);
      Fd client(::socket(address.family(), SOCK_STREAM, 0));
      if (::connect(client.get(), address.get(), address.size) < 0) return std::string(at) + " " + error_name(errno);
      Fd conversation(::accept(server.get(), nullptr, nullptr));
      sockaddr_storage seen;
      socklen_t size = sizeof seen;
      out += ::getsockname(conversation.get(), reinterpret_cast<sockaddr*>(&seen), &size) == 0 && size == address.size
                 ? "t"
                 : "?";
    }
    // UDP, and a resolver of the guest's own.
    for (auto [at, port] :
         {std::pair<const char*, uint16_t>{"127.0.0.1", 9000}, {kOwnAddress6, 9000}, {"127.0.0.53", 5353}}) {
      Address address(at, port);
      Fd server(::socket(address.family(), SOCK_DGRAM, 0));
      if (::bind(server.get(), address.get(), address.size) < 0) return error_name(errno);
      Fd client(::socket(address.family(), SOCK_DGRAM, 0));
      if (::sendto(client.get(), "q", 1, 0, address.get(), address.size) != 1) return error_name(errno);
      char c;
      out += ::recv(server.get(), &c, 1, 0) == 1 ? "u" : "?";
    }
    // Nobody listens: refused by the kernel, as anywhere.
    return out + " " + talk(SOCK_STREAM, "127.0.0.1", 81) + " " + talk(SOCK_DGRAM, "127.0.0.53", 53);
  });
  run(guest, Answering::gate);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(guest.result(), "tttttuuu ECONNREFUSED ECONNREFUSED");
}

TEST_F(Island, ThePortsCannotBeDialledOrTaken) {
  Guest guest([] {
    std::string out = talk(SOCK_STREAM, "127.0.0.1", kGatePort) + " " + talk(SOCK_STREAM, "::1", kGatePort) + " " +
                      talk(SOCK_STREAM, "127.0.0.1", kDnsPort) + " " + talk(SOCK_DGRAM, "127.0.0.1", kDnsPort) + " ";
    for (const char* at : {"127.0.0.1", "0.0.0.0", "::1", "::"})
      for (int type : {SOCK_STREAM, SOCK_DGRAM})
        out += take_port(type, at, type == SOCK_STREAM ? kGatePort : kDnsPort, {SO_REUSEADDR, SO_REUSEPORT}) + " ";
    return out;
  });
  run(guest, Answering::gate);
  if (IsSkipped() || HasFatalFailure()) return;
  std::string expected = "ECONNREFUSED ECONNREFUSED ECONNREFUSED EPERM ";
  for (int i = 0; i < 8; ++i) expected += "EADDRINUSE ";
  EXPECT_EQ(guest.result(), expected);
  pollfd p{sockets_.tcp4.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 0), 0) << "a connection that was not redirected reached the gate";
}

// The kernel's records of connections in the network namespace of the caller.
std::string tracked() {
  Fd fd(::open("/proc/sys/net/netfilter/nf_conntrack_count", O_RDONLY | O_CLOEXEC));
  char text[32];
  ssize_t n = ::read(fd.get(), text, sizeof text);
  return n > 0 ? std::string(text, static_cast<size_t>(n) - 1) : error_name(errno);
}

TEST_F(Island, WhatStaysInsideIsNotRecorded) {
  Guest guest([] {
    for (const char* at : {"127.0.0.1", "127.9.9.9", "::1", kOwnAddress4, kOwnAddress6}) {
      for (int socket = 0; socket < 4; ++socket) {
        Address any(at, 0);
        Fd fd(::socket(any.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
        for (uint16_t port = 20000; port < 20500; ++port) {
          Address to(at, port);
          ::sendto(fd.get(), "x", 1, 0, to.get(), to.size);
        }
      }
      Address address(at, 8000);
      Fd server(::socket(address.family(), SOCK_STREAM, 0));
      if (::bind(server.get(), address.get(), address.size) < 0 || ::listen(server.get(), 64) < 0)
        return error_name(errno);
      for (int i = 0; i < 50; ++i) {
        Fd client(::socket(address.family(), SOCK_STREAM, 0));
        if (::connect(client.get(), address.get(), address.size) < 0) return error_name(errno);
        Fd conversation(::accept(server.get(), nullptr, nullptr));
      }
    }
    std::string inside = tracked();
    Address resolver("8.8.8.8", 53);
    Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ::sendto(fd.get(), "x", 1, 0, resolver.get(), resolver.size);
    return inside + " then " + tracked();
  });
  run(guest, Answering::gate);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(guest.result(), "0 then 1") << "a redirected one is, or the count would show nothing";
}

TEST_F(Island, RecordsOfWhatIsRedirectedAreBounded) {
  constexpr int kTries = 6000;
  static constexpr long kMany = 4000;  // a burst of 1000 each, and 100 each per second that this takes
  Guest guest([] {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    int refused = 0;
    for (int i = 0; i < kTries; ++i) {
      Address to("8.8.8.8", 53);
      Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      if (::sendto(fd.get(), "x", 1, 0, to.get(), to.size) < 0 && errno == EPERM) ++refused;
    }
    std::string out = refused > kTries / 2 ? "few questions" : std::to_string(kTries - refused) + " questions";
    std::vector<Fd> open;
    refused = 0;
    for (int i = 0; i < kTries; ++i) {
      Address to("198.51.100.7", static_cast<uint16_t>(1000 + i));
      open.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!open.back()) return error_name(errno);
      ::connect(open.back().get(), to.get(), to.size);
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(open.back().get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == ECONNREFUSED) ++refused;
    }
    out += refused > kTries / 2 ? ", few connections" : ", " + std::to_string(kTries - refused) + " connections";
    long count = std::stol(tracked());
    return out + (count >= 1000 && count < kMany ? ", few records" : ", " + tracked() + " records");
  });
  run(guest, Answering::gate);  // it answers nothing, so every connection stays open
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(guest.result(), "few questions, few connections, few records");
}

// A launcher that died holds the ports no longer, and the next one not yet.
TEST_F(Island, RecordsAreBoundedForWhoeverTakesTheGatesPorts) {
  Guest guest([] {
    Fd udp(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    Address port("127.0.0.1", kDnsPort);
    if (::bind(udp.get(), port.get(), port.size) < 0) return error_name(errno);
    for (int i = 0; i < 10000; ++i) {
      Address to(i % 2 ? kOwnAddress4 : "127.0.0.9", static_cast<uint16_t>(20000 + i));
      ::sendto(udp.get(), "x", 1, 0, to.get(), to.size);
    }
    long count = std::stol(tracked());
    return count > 0 && count < 4000 ? std::string("few") : tracked();
  });
  if (!guest.ready()) GTEST_SKIP() << "no user and network namespaces here";
  ASSERT_TRUE(network_->make(guest.netns()));  // and its sockets are gone
  guest.go();
  EXPECT_EQ(guest.result(), "few");
}

// The rules as the kernel has them. A change of them is a change of the boundary: it has to be seen here.
TEST_F(Island, TheRulesAreTheseAndNoOthers) {
  Guest guest([] { return ""; });
  if (!guest.ready()) GTEST_SKIP() << "no user and network namespaces here";
  auto sockets = network_->make(guest.netns());
  ASSERT_TRUE(sockets) << sockets.error().text();
  Fd home(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::setns(guest.netns(), CLONE_NEWNET), 0);
  auto rules = kernel::print_rules(*kernel::NetlinkSocket::open(NETLINK_NETFILTER));
  ASSERT_EQ(::setns(home.get(), CLONE_NEWNET), 0);
  ASSERT_TRUE(rules) << rules.error().text();
  EXPECT_EQ("\n" + *rules, kGoldenRules);
}

TEST_F(Island, TheSocketsCanBeOpenedAgainWhileOldConnectionsLinger) {
  Guest guest([] { return talk(SOCK_STREAM, "93.184.216.34", 443) + "."; });  // until the gate ends it
  run(guest, Answering::gate);
  if (IsSkipped() || HasFatalFailure()) return;
  ASSERT_TRUE(readable(sockets_.tcp4));
  Fd accepted(::accept4(sockets_.tcp4.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted);
  sockets_ = {};
  ::shutdown(accepted.get(), SHUT_WR);  // ended by this side first, so this side is the one that lingers
  EXPECT_EQ(guest.result().substr(0, 1), ".");
  accepted.reset();
  auto again = network_->reopen(guest.netns());
  ASSERT_TRUE(again) << again.error().text();
  EXPECT_EQ(own_netns(), home_);
  // Nobody listens yet, and still nobody inside can have the port.
  Fd home(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::setns(guest.netns(), CLONE_NEWNET), 0);
  EXPECT_EQ(take_port(SOCK_STREAM, "127.0.0.1", kGatePort, {SO_REUSEADDR}), "EADDRINUSE");
  ASSERT_EQ(::setns(home.get(), CLONE_NEWNET), 0);
  EXPECT_FALSE(network_->reopen(guest.netns())) << "only one at a time";
  EXPECT_TRUE(again->start_answering());
}

TEST_F(Island, NobodyInsideCanChangeIt) {
  Guest guest([] {
    Fd fd(::socket(AF_INET, SOCK_DGRAM, 0));
    ifreq request{};
    std::snprintf(request.ifr_name, sizeof request.ifr_name, "lo");
    std::string out = ::ioctl(fd.get(), SIOCSIFFLAGS, &request) < 0 ? error_name(errno) : "down";
    kernel::NetlinkBatch batch;
    (void)kernel::add_address(batch, kernel::kLoopbackIndex, "10.1.1.1");
    auto route = kernel::NetlinkSocket::open(NETLINK_ROUTE);
    auto done = route->run(batch);
    out += " " + error_name(done ? 0 : done.error().sys_errno);
    kernel::NftBatch evil("evil");
    evil.chain({.name = "x"});
    evil.rule("x", kernel::NftRule().accept());
    done = kernel::NetlinkSocket::open(NETLINK_NETFILTER)->run(evil.take());
    return out + " " + error_name(done ? 0 : done.error().sys_errno);
  });
  run(guest, Answering::nobody);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(guest.result(), "EPERM EPERM EPERM");
}

TEST_F(Island, DescriptionIsTheSameForEveryIslandAndShowsChanges) {
  Guest one([] { return ""; }), two([] { return ""; });
  if (!one.ready() || !two.ready()) GTEST_SKIP() << "no user and network namespaces here";
  auto expected = network_->expected();
  ASSERT_TRUE(expected) << expected.error().text();
  EXPECT_EQ(own_netns(), home_);
  EXPECT_NE(network_->describe(one.netns()).value(), *expected) << "nothing is installed yet";
  auto a = network_->make(one.netns()), b = network_->make(two.netns(), Answering::gate);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(network_->describe(one.netns()).value(), *expected);
  EXPECT_EQ(network_->describe(two.netns()).value(), *expected);
  size_t links = 0;
  for (size_t at = 0; (at = expected->find("link ", at)) != std::string::npos; ++at) ++links;
  EXPECT_EQ(links, 1U) << *expected;
  EXPECT_FALSE(network_->make(one.netns())) << "only a fresh namespace can become an island";

  Fd home(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  auto inside = [&](const Guest& guest, auto change) {
    ASSERT_EQ(::setns(guest.netns(), CLONE_NEWNET), 0);
    change();
    ASSERT_EQ(::setns(home.get(), CLONE_NEWNET), 0);
  };
  inside(one, [] {
    kernel::NetlinkBatch batch;
    ASSERT_TRUE(kernel::add_address(batch, kernel::kLoopbackIndex, "10.1.1.1"));
    ASSERT_TRUE(kernel::NetlinkSocket::open(NETLINK_ROUTE)->run(batch));
  });
  EXPECT_NE(network_->describe(one.netns()).value(), *expected);
  inside(two, [] {
    kernel::NftBatch more("more");
    more.chain({.name = "x"});
    more.rule("x", kernel::NftRule().accept());
    ASSERT_TRUE(kernel::NetlinkSocket::open(NETLINK_NETFILTER)->run(more.take()));
  });
  EXPECT_NE(network_->describe(two.netns()).value(), *expected);
}

TEST_F(Island, ConnectionsCanBeHeldBackAndReleased) {
  Guest guest([] { return ""; });
  if (!guest.ready()) GTEST_SKIP() << "no user and network namespaces here";
  auto sockets = network_->make(guest.netns());
  ASSERT_TRUE(sockets) << sockets.error().message;
  const std::string before = network_->describe(guest.netns()).value();
  ASSERT_TRUE(network_->hold_connections(guest.netns()));
  EXPECT_NE(network_->describe(guest.netns()).value(), before);
  ASSERT_TRUE(network_->release_connections(guest.netns()));
  EXPECT_EQ(network_->describe(guest.netns()).value(), before);
}

TEST_F(Island, InnerConnectionsAreHeldForAsLongAsSomebodyHoldsThem) {
  Guest guest([] { return ""; });
  if (!guest.ready()) GTEST_SKIP() << "no user and network namespaces here";
  auto sockets = network_->make(guest.netns());
  ASSERT_TRUE(sockets) << sockets.error().message;
  const std::string before = network_->describe(guest.netns()).value();
  Fd home(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::setns(guest.netns(), CLONE_NEWNET), 0);
  Fd server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in here{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof here;
  EXPECT_EQ(::bind(server.get(), reinterpret_cast<sockaddr*>(&here), size), 0);
  EXPECT_EQ(::listen(server.get(), 1), 0);
  EXPECT_EQ(::getsockname(server.get(), reinterpret_cast<sockaddr*>(&here), &size), 0);
  Fd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(one.get(), reinterpret_cast<sockaddr*>(&here), size), 0);
  Fd other(::accept4(server.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_EQ(::setns(home.get(), CLONE_NEWNET), 0);
  char byte = 'x';
  auto arrived = [&] { return ::recv(other.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1; };
  {
    auto held = hold_inner_connections(guest.netns());
    ASSERT_TRUE(held) << held.error().message;
    EXPECT_NE(network_->describe(guest.netns()).value(), before);
    EXPECT_EQ(::send(one.get(), &byte, 1, 0), 1);
    EXPECT_FALSE(arrived());  // over loopback it would be there when send returns
  }
  EXPECT_EQ(::recv(other.get(), &byte, 1, 0), 1) << "sent once more, and it is through";
  EXPECT_EQ(network_->describe(guest.netns()).value(), before);
}

TEST_F(Island, DescriptionShowsSwitches) {
  Guest guest([] { return ""; });
  if (!guest.ready()) GTEST_SKIP() << "no user and network namespaces here";
  ASSERT_TRUE(network_->make(guest.netns()));
  EXPECT_EQ(network_->describe(guest.netns()).value(), network_->expected().value());
  Fd home(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::setns(guest.netns(), CLONE_NEWNET), 0);
  auto written = write_file("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", "500");
  ASSERT_EQ(::setns(home.get(), CLONE_NEWNET), 0);
  ASSERT_TRUE(written);
  EXPECT_NE(network_->describe(guest.netns()).value(), network_->expected().value());
}

TEST_F(Island, AnyFailingStepIsAnErrorAndComesBackHome) {
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "built without fault injection";
  int failures = 0;
  for (int nth = 1;; ++nth) {
    Guest guest([] { return ""; });
    if (!guest.ready()) GTEST_SKIP() << "no user and network namespaces here";
    ASSERT_TRUE(kernel::fault::arm("*:" + std::to_string(nth) + ":12"));
    auto sockets = network_->make(guest.netns());
    kernel::fault::disarm();
    EXPECT_EQ(own_netns(), home_) << "step " << nth;
    if (sockets) break;
    ++failures;
    EXPECT_EQ(sockets.error().sys_errno, ENOMEM);
  }
  EXPECT_GE(failures, 8);
}

TEST_F(Island, NotANamespaceIsAnError) {
  Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(network_->make(null.get()));
  EXPECT_FALSE(network_->make(-1));
}

// ---- an island with a cable -----------------------------------------------------------------------------------------

// The guest of these is in the namespace of the cable's other end, with the kernel's own stack in the place of an
// engine's.
class WiredIsland : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    home_ = own_netns();
    auto network = IslandNetwork::prepare(IslandNetwork::Shape::wired);
    ASSERT_TRUE(network) << network.error().text();
    network_.emplace(*network);
    Fd before(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
    island_ = Fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::setns(before.get(), CLONE_NEWNET), 0);
  }
  void TearDown() override { EXPECT_EQ(own_netns(), home_) << "not back home"; }
  void run(Guest& guest, Answering answering) {
    if (!guest.ready()) GTEST_SKIP() << "no user and network namespaces here";
    auto made = network_->make_and_describe(island_.get(), guest.netns());
    ASSERT_TRUE(made) << made.error().text();
    EXPECT_EQ(own_netns(), home_);
    sockets_ = std::move(made->sockets);
    description_ = made->description;
    if (answering == Answering::gate) {
      ASSERT_TRUE(sockets_.start_answering());
    }
    guest.go();
  }
  std::optional<IslandNetwork> network_;
  IslandSockets sockets_;
  std::string description_;
  Fd island_;
  ino_t home_ = 0;
};

TEST_F(WiredIsland, TcpToAnywhereReachesTheGateWithItsDestination) {
  Guest guest([] {
    return talk_to({{SOCK_STREAM, "93.184.216.34", 443},
                    {SOCK_STREAM, "2001:db8::7", 8080},
                    {SOCK_STREAM, kOwnAddress4, kGatePort}});
  });
  run(guest, Answering::gate);
  if (IsSkipped() || HasFatalFailure()) return;
  char text[INET6_ADDRSTRLEN];
  auto four = [&](const char* wanted, uint16_t port, const char* answer) {
    ASSERT_TRUE(readable(sockets_.tcp4));
    Fd fd(::accept4(sockets_.tcp4.get(), nullptr, nullptr, SOCK_CLOEXEC));
    sockaddr_in to{}, peer{};
    socklen_t size = sizeof to;
    ASSERT_EQ(::getsockopt(fd.get(), SOL_IP, SO_ORIGINAL_DST, &to, &size), 0);
    EXPECT_STREQ(inet_ntop(AF_INET, &to.sin_addr, text, sizeof text), wanted);
    EXPECT_EQ(ntohs(to.sin_port), port);
    size = sizeof peer;
    ASSERT_EQ(::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &size), 0);
    EXPECT_STREQ(inet_ntop(AF_INET, &peer.sin_addr, text, sizeof text), kWireAddress4);
    ASSERT_EQ(::write(fd.get(), answer, 4), 4);
  };
  four("93.184.216.34", 443, "four");
  ASSERT_TRUE(readable(sockets_.tcp6));
  Fd six(::accept4(sockets_.tcp6.get(), nullptr, nullptr, SOCK_CLOEXEC));
  sockaddr_in6 to6{};
  socklen_t size = sizeof to6;
  ASSERT_EQ(::getsockopt(six.get(), SOL_IPV6, SO_ORIGINAL_DST, &to6, &size), 0);
  EXPECT_STREQ(inet_ntop(AF_INET6, &to6.sin6_addr, text, sizeof text), "2001:db8::7");
  EXPECT_EQ(ntohs(to6.sin6_port), 8080);
  ASSERT_EQ(::write(six.get(), "six", 3), 3);
  six.reset();
  EXPECT_EQ(guest.result(), "four six ECONNREFUSED") << "the gate's port is refused when it is dialled directly";
}

TEST_F(WiredIsland, DnsReachesItsSockets) {
  Guest guest([] {
    return talk_to({{SOCK_DGRAM, "8.8.8.8", 53},
                    {SOCK_DGRAM, kOwnAddress4, 53},
                    {SOCK_DGRAM, "2001:4860:4860::8888", 53},
                    {SOCK_STREAM, "8.8.4.4", 53}});
  });
  run(guest, Answering::gate);
  if (IsSkipped() || HasFatalFailure()) return;
  for (auto [fd, answer] : {std::pair{&sockets_.dns_udp4, "a"}, {&sockets_.dns_udp4, "b"}, {&sockets_.dns_udp6, "c"}}) {
    ASSERT_TRUE(readable(*fd)) << answer;
    char question[64];
    sockaddr_storage from;
    socklen_t size = sizeof from;
    ASSERT_EQ(::recvfrom(fd->get(), question, sizeof question, 0, reinterpret_cast<sockaddr*>(&from), &size), 8);
    ASSERT_EQ(::sendto(fd->get(), answer, 1, 0, reinterpret_cast<sockaddr*>(&from), size), 1);
  }
  ASSERT_TRUE(readable(sockets_.dns_tcp4));
  Fd tcp(::accept4(sockets_.dns_tcp4.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_EQ(::write(tcp.get(), "d", 1), 1);
  tcp.reset();
  EXPECT_EQ(guest.result(), "a b c d");
}

TEST_F(WiredIsland, WithoutAGateEverythingIsRefusedAtOnce) {
  Guest guest([] {
    std::string out;
    for (const char* to : {"93.184.216.34", "2001:db8::7", "10.0.0.1", "169.254.169.254", kOwnAddress4})
      out += talk(SOCK_STREAM, to, 443) + " ";
    for (const char* to : {"8.8.8.8", "2001:4860:4860::8888", kOwnAddress4}) out += talk(SOCK_DGRAM, to, 53) + " ";
    return out;
  });
  run(guest, Answering::nobody);
  if (IsSkipped() || HasFatalFailure()) return;
  std::string expected;
  for (int i = 0; i < 8; ++i) expected += "ECONNREFUSED ";
  EXPECT_EQ(guest.result(), expected);
}

TEST_F(WiredIsland, OtherUdpAndTheDnsPortItselfAreRefused) {
  Guest guest([] {
    return talk_to({{SOCK_DGRAM, "93.184.216.34", 443},
                    {SOCK_DGRAM, "2001:db8::7", 443},
                    {SOCK_DGRAM, kOwnAddress4, kDnsPort},
                    {SOCK_DGRAM, kOwnAddress4, 5353}});
  });
  run(guest, Answering::gate);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(guest.result(), "ECONNREFUSED ECONNREFUSED ECONNREFUSED ECONNREFUSED");
}

TEST_F(WiredIsland, IsAsExpectedAndCanBeReopened) {
  Guest guest([] { return talk(SOCK_STREAM, "93.184.216.34", 443); });
  auto expected = network_->expected();
  ASSERT_TRUE(expected) << expected.error().text();
  for (const char* part : {"gate up", "wire link", "wire address 10.255.255.253/30"})
    EXPECT_NE(expected->find(part), std::string::npos) << part << " is not in\n" << *expected;
  if (!guest.ready()) GTEST_SKIP() << "no user and network namespaces here";
  auto made = network_->make_and_describe(island_.get(), guest.netns());
  ASSERT_TRUE(made) << made.error().text();
  EXPECT_EQ(made->description, *expected);
  EXPECT_TRUE(expected->starts_with(network_->describe(island_.get()).value())) << "all but the other end";
  made->sockets = {};
  auto again = network_->reopen(island_.get());
  ASSERT_TRUE(again) << again.error().text();
  ASSERT_TRUE(again->start_answering());
  guest.go();
  ASSERT_TRUE(readable(again->tcp4));
  Fd fd(::accept4(again->tcp4.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_EQ(::write(fd.get(), "again", 5), 5);
  fd.reset();
  EXPECT_EQ(guest.result(), "again");
}

// The engine's end is a descriptor: what an engine sends by it arrives, and the device goes with it.
TEST(TappedIsland, IsTheSameBehindATap) {
  if (::geteuid() != 0 || ::access("/dev/net/tun", R_OK | W_OK) < 0) GTEST_SKIP() << "needs root and /dev/net/tun";
  auto network = IslandNetwork::prepare(IslandNetwork::Shape::tapped);
  auto wired = IslandNetwork::prepare(IslandNetwork::Shape::wired);
  ASSERT_TRUE(network && wired);
  const ino_t home = own_netns();
  Fd before(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
  Fd island(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::setns(before.get(), CLONE_NEWNET), 0);
  auto made = network->make_and_describe(island.get());
  ASSERT_TRUE(made) << made.error().text();
  EXPECT_EQ(own_netns(), home);
  ASSERT_TRUE(made->tap.valid());
  EXPECT_EQ(made->description, network->expected().value());
  // Link by link, rule by rule, what a cable has; but for the other end, which is nobody's namespace here.
  std::string cabled = wired->expected().value();
  cabled.resize(cabled.find("wire "));
  EXPECT_EQ(made->description, cabled);
  EXPECT_FALSE(network->make(island.get())) << "nobody would hold the engine's end";
  made->tap.reset();
  EXPECT_EQ(network->describe(island.get()).value().find(" gate "), std::string::npos) << "gone with its descriptor";
}

}  // namespace
}  // namespace isola::boundary
