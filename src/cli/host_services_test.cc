// Services that are asked in a network of the test's own, as a sandbox with a way to them would.
#include "cli/host_services.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "cli/canary_ping.h"
#include "kernel/netlink.h"
#include "kernel/netlink_route.h"
#include "kernel/process.h"

namespace isola::cli {
namespace {

using namespace std::string_literals;

// The value of a variable, "" if it has none.
std::string value_of(const HostServices& services, const std::string& name) {
  for (const auto& one : services.variables())
    if (one.starts_with(name + "=")) return one.substr(name.size() + 1);
  return "";
}

struct ServicePlace {
  std::string address;
  uint16_t port = 0;
};

std::vector<ServicePlace> places(const std::string& list) {
  std::vector<ServicePlace> all;
  for (size_t at = 0; at < list.size();) {
    size_t end = std::min(list.find(',', at), list.size()), gap = list.find(' ', at);
    all.push_back({list.substr(at, gap - at), static_cast<uint16_t>(std::stoi(list.substr(gap + 1)))});
    at = end + 1;
  }
  return all;
}

// A socket of this type that is connected there, after one question; invalid if it was refused.
Fd ask(const ServicePlace& place, int type, int protocol = 0, std::string question = "who are you?") {
  sockaddr_in four{.sin_family = AF_INET, .sin_port = htons(place.port), .sin_addr = {}, .sin_zero = {}};
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6, six.sin6_port = htons(place.port);
  const bool is_four = ::inet_pton(AF_INET, place.address.c_str(), &four.sin_addr) == 1;
  if (!is_four) ::inet_pton(AF_INET6, place.address.c_str(), &six.sin6_addr);
  Fd fd(::socket(is_four ? AF_INET : AF_INET6, type | SOCK_CLOEXEC, protocol));
  auto* to = is_four ? reinterpret_cast<sockaddr*>(&four) : reinterpret_cast<sockaddr*>(&six);
  if (::connect(fd.get(), to, is_four ? sizeof four : sizeof six) < 0) return Fd();
  ::send(fd.get(), question.data(), question.size(), MSG_NOSIGNAL);
  return fd;
}

// All that comes, until the words are there or nothing comes for a long time.
bool hears(const Fd& fd, std::string_view words) {
  std::string all;
  char buffer[512];
  pollfd wait{fd.get(), POLLIN, 0};
  while (fd && all.find(words) == std::string::npos && ::poll(&wait, 1, 20000) == 1) {
    ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (n <= 0) break;
    all.append(buffer, static_cast<size_t>(n));
  }
  return all.find(words) != std::string::npos;
}

// In a child with a network of its own, which has lo and this address on it, if any. What the body returns comes back.
int in_network(const std::string& address, const std::function<int()>& body) {
  auto child = kernel::spawn(CLONE_NEWNET, [&] {
    kernel::NetlinkBatch batch;
    kernel::add_link_up(batch, kernel::kLoopbackIndex);
    if (!address.empty() && !kernel::add_address(batch, kernel::kLoopbackIndex, address.c_str())) return 90;
    auto route = kernel::NetlinkSocket::open(NETLINK_ROUTE);
    if (!route || !route->run(batch)) return 91;
    return body();
  });
  if (!child) return 92;
  int status = 1;
  ::waitpid(child->pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

TEST(HostServices, EveryOneAnswersOnEveryAddress) {
  auto opened = HostServices::open();
  ASSERT_TRUE(opened) << opened.error().text();
  const auto& services = **opened;
  ASSERT_FALSE(value_of(services, "ISOLA_CANARY_TCP").empty());
  ASSERT_FALSE(value_of(services, "ISOLA_CANARY_UDP").empty());
  for (const char* name : {"ISOLA_CANARY_TCP", "ISOLA_CANARY_TCP6", "ISOLA_CANARY_METADATA"})
    for (const auto& place : places(value_of(services, name)))
      EXPECT_TRUE(hears(ask(place, SOCK_STREAM), "host")) << name << " " << place.address;
  for (const auto& place : places(value_of(services, "ISOLA_CANARY_UDP")))
    EXPECT_TRUE(hears(ask(place, SOCK_DGRAM), "host")) << place.address;
}

// The kernel answers every ping: ours is known by its words, and nobody else gets it.
TEST(HostServices, APingIsAnsweredByUsIfItAsksWithOurWords) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  auto services = HostServices::open();
  ASSERT_TRUE(services) << services.error().text();
  auto all = places(value_of(**services, "ISOLA_CANARY_PING"));
  if (all.empty()) GTEST_SKIP() << "no raw sockets here";
  const icmphdr echo{.type = ICMP_ECHO, .code = 0, .checksum = 0, .un = {}};
  for (const auto& place : all)
    EXPECT_TRUE(hears(ask(place, SOCK_RAW, IPPROTO_ICMP, echo_message(echo, kPingQuestion)), kPingAnswer));
}

TEST(HostServices, PlacesOnTheNetworkComeBeforeLoopback) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  EXPECT_EQ(
      in_network("198.51.100.9",
                 [] {
                   auto services = HostServices::open();
                   if (!services || (*services)->only_loopback()) return 1;
                   auto all = places(value_of(**services, "ISOLA_CANARY_TCP"));
                   return all.size() == 2 && all[0].address == "198.51.100.9" && all[1].address == "127.0.0.1" ? 0 : 2;
                 }),
      0);
}

TEST(HostServices, AMachineWithNothingButLoopbackSaysSo) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  EXPECT_EQ(in_network("",
                       [] {
                         auto services = HostServices::open();
                         return services && (*services)->only_loopback() && (*services)->lacks("tcp-out").empty() ? 0
                                                                                                                  : 1;
                       }),
            0);
}

// Nothing is up there, not even lo.
TEST(HostServices, WhoeverHasNobodyToAskIsNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  auto child = kernel::spawn(CLONE_NEWNET, [] {
    auto services = HostServices::open();
    if (!services) return 1;
    return !(*services)->lacks("tcp-out").empty() && (*services)->lacks("mount-tmpfs").empty() ? 0 : 2;
  });
  ASSERT_TRUE(child);
  int status = 1;
  ::waitpid(child->pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(HostServices, TheSameOnesCanBeElsewhereWithoutTheirAddresses) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  EXPECT_EQ(in_network("198.51.100.9",
                       [] {
                         auto services = HostServices::open();
                         if (!services || ::unshare(CLONE_NEWNET) < 0) return 1;
                         auto again = (*services)->open_again();
                         return again && (*again)->variables() == (*services)->variables() ? 0 : 2;
                       }),
            0);
}

// Whoever connects and says nothing does not keep others from being answered.
TEST(HostServices, ASilentPeerHoldsNobodyUp) {
  auto services = HostServices::open();
  ASSERT_TRUE(services) << services.error().text();
  auto place = places(value_of(**services, "ISOLA_CANARY_TCP")).front();
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(ask(place, SOCK_STREAM, 0, ""));
  EXPECT_TRUE(hears(ask(place, SOCK_STREAM), "host"));
}

}  // namespace
}  // namespace isola::cli
