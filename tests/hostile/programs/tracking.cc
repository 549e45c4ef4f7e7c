// Memory of the kernel that no limit of the sandbox counts: its records of connections.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

// Far above what the rules of an island let happen, far below what the kernel would hold.
constexpr long kMany = 8192;

// Of our own network namespace; -1 where the kernel does not say.
long records() {
  auto text = slurp("/proc/sys/net/netfilter/nf_conntrack_count");
  return text ? ::atol(text->c_str()) : -1;
}

sockaddr_in address_of(uint32_t host, uint16_t port) {
  return {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(host)}, .sin_zero = {}};
}

// Our own address, as a program learns it: where a packet to elsewhere would come from.
uint32_t own_address() {
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in to = address_of(0xc6336401, 9);  // 198.51.100.1
  socklen_t size = sizeof to;
  bool known = ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 &&
               ::getsockname(fd, reinterpret_cast<sockaddr*>(&to), &size) == 0;
  ::close(fd);
  return known ? ntohl(to.sin_addr.s_addr) : INADDR_LOOPBACK;
}

// One datagram from this socket to each of many ports.
void scatter(uint32_t host, uint16_t first, int ports) {
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  for (int i = 0; i < ports; ++i) {
    sockaddr_in to = address_of(host, static_cast<uint16_t>(first + i));
    ::sendto(fd, "x", 1, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&to), sizeof to);
  }
  ::close(fd);
}

// One packet from each of many sockets to one place.
void gather(int type, uint32_t host, uint16_t port, int sockets) {
  for (int i = 0; i < sockets; ++i) {
    int fd = ::socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in to = address_of(host, port);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 && type == SOCK_DGRAM)
      (void)!::send(fd, "x", 1, MSG_NOSIGNAL);
    ::close(fd);
  }
}

// The runner looks from outside whenever a line comes.
Outcome flood_records(const Args& args) {
  const long before = records();
  if (before < 0) return untried("the kernel tells no number of records here");
  const uint32_t own = own_address();
  const long rounds = args.number(0, 30);
  long most = before;
  auto look = [&](const char* what) {
    most = std::max(most, records());
    ::printf("%s: %ld records\n", what, records());
    ::fflush(stdout);
  };
  for (long round = 0; round < rounds; ++round) {
    scatter(own, 2000, 1000);                   // ports of our own
    scatter(INADDR_LOOPBACK, 2000, 1000);       // and on the loopback
    gather(SOCK_DGRAM, own, 53, 300);           // questions
    gather(SOCK_DGRAM, 0x08080808, 53, 300);    //
    gather(SOCK_STREAM, 0xc6336407, 443, 300);  // somewhere else
    if (round % 10 == 9) look("flooding");
  }
  look("flooded");
  if (most - before > kMany) return breach(fmt::format("the kernel holds {} records of our connections", most));
  return contained(fmt::format("at most {} records of some {} connections", most, rounds * 2900));
}

constexpr Program kTrackingPrograms[] = {
    {"connection-records", "exhaustion",
     "makes the kernel record tens of thousands of connections, to its own ports and to redirected ones",
     "a few thousand at most, counted from outside", flood_records, Expect::judged_outside,
     kNeedsNeighbour | kControlTracking},
};

}  // namespace

Family tracking_programs() { return kTrackingPrograms; }

}  // namespace isola::hostile
