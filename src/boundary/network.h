// An island has no wire: the network of a sandbox.
//
// Its network namespace holds `lo` and nothing else. Every address in the world is local there (a local route for
// 0.0.0.0/0 and ::/0), nftables turns every TCP connection that leaves the sandbox's own addresses, and every DNS
// question, towards two ports, and the sockets on those ports were opened in that namespace by the launcher and belong
// to the gate. Anything else is refused at once. There is no device, bridge or NAT that could be misconfigured.
//
//   ISOLA_TRY(IslandNetwork network, IslandNetwork::prepare());   // once: all netlink messages as bytes
//   ISOLA_TRY(IslandSockets sockets, network.make(netns_fd));     // per jail
//   …
//   ISOLA_CHECK(sockets.start_answering());                       // when a gate reads them
//
// What goes where, seen from inside (own = kOwnAddress4 or kOwnAddress6, the same in every sandbox):
//
//   TCP to 127.0.0.0/8, ::1, own       the program inside that listens there, untouched
//   DNS (port 53, TCP and UDP)         to anything but 127.0.0.0/8 and ::1: the DNS sockets. resolv.conf inside names
//                                      own; a resolver of the guest's own on 127.0.0.53 is left alone
//   any other TCP                      the TCP sockets; SO_ORIGINAL_DST tells where it was going
//   UDP to 127.0.0.0/8, ::1, own       the program inside
//   anything else                      refused (EPERM or ECONNREFUSED at once, never a wait)
//   the two ports themselves           refused when dialled directly: only redirected connections arrive there
//
// A guest with a network stack of its own (an engine's) needs a device: then the island has a second network namespace,
// with one end of a cable that the engine takes over, and the other end is here (Shape::wired). The guest has the
// addresses kWireAddress4 and 6, `own` are those of the other end, and what comes in by the cable meets the same rules:
// every TCP connection and every DNS question to the sockets, anything else refused. Nothing is forwarded, and there is
// no third device. A kernel that runs as a program takes its end as a descriptor (Shape::tapped): there the device is a
// TAP, in the sandbox's one namespace, and everything else is the same.
//
// The kernel tracks what is redirected and nothing else, since its records of connections belong to no memory limit;
// how many there can be is bounded: new ones beyond the rate or the number are refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/fd.h"
#include "kernel/netlink.h"

namespace isola::boundary {

// The sandbox's own addresses. RFC 1918's last usable one, and a unique local one ("isola" in ASCII): neither is in
// the ranges of the gate's synthetic answers (198.18.0.0/15 and its counterpart).
inline constexpr char kOwnAddress4[] = "10.255.255.254";
inline constexpr char kOwnAddress6[] = "fd69:736f:6c61::1";
// A wired guest's.
inline constexpr char kWireAddress4[] = "10.255.255.253";
inline constexpr char kWireAddress6[] = "fd69:736f:6c61::2";
inline constexpr uint16_t kGatePort = 15001;
inline constexpr uint16_t kDnsPort = 15053;

enum class Answering {
  nobody,  // no gate: connections and DNS questions are refused at once (the sockets only hold the ports)
  gate,    // somebody reads the sockets
};

// Sockets inside the sandbox's namespace, close-on-exec, bound to its loopback address. A process inside cannot take
// their ports (they do not share, and SO_REUSEPORT asks for the same owner).
struct IslandSockets {
  Fd tcp4, tcp6, dns_udp4, dns_udp6, dns_tcp4, dns_tcp6;  // the v6 ones are empty on a host without IPv6

  // From Answering::nobody to Answering::gate. Needs no privilege and no namespace: whoever holds the sockets may.
  Result<void> start_answering();
};

// For a checkpoint: no TCP packet of a connection between programs inside leaves its socket, until what this returns is
// gone, or whoever has it. The kernel goes on sending for programs that stand still, and the ends of a connection are
// saved one after the other: what got through in between, one end would know of and the other not. Connections to the
// gate go on.
Result<kernel::NetlinkSocket> hold_inner_connections(int netns_fd);

class IslandNetwork {
 public:
  enum class Shape {
    alone,   // processes of the host's kernel, inside the namespace
    wired,   // an engine, at the other end of a cable
    tapped,  // an engine, at the other end of a TAP: only make_and_describe() makes it
  };
  // Builds every message once. Needs nothing from the kernel but to know whether it has IPv6.
  static Result<IslandNetwork> prepare(Shape shape = Shape::alone);

  // Enters the (fresh) network namespace, configures it, opens the sockets, and comes back. The caller is
  // single-threaded and privileged over the namespace. Not coming back would leave the launcher inside a sandbox: that
  // aborts the process.
  // `wire`: of a wired one, the namespace that the engine takes its end of the cable from.
  Result<IslandSockets> make(int netns_fd, Answering answering = Answering::nobody, int wire = -1) const;

  // Both at once, in one visit: configured, and then read back from the kernel as describe() does.
  struct Made {
    IslandSockets sockets;
    std::string description;
    Fd tap;  // of a tapped one: the engine's end
  };
  Result<Made> make_and_describe(int netns_fd, int wire = -1) const;

  // The sockets once more, in a namespace that make() configured and whose earlier ones nobody holds any longer: for
  // whoever takes over a sandbox from a process that died.
  Result<IslandSockets> reopen(int netns_fd) const;

  // Between the two, no TCP packet leaves any socket there but those with that mark: for a restore, which makes the
  // ends of a connection one after the other. describe() shows it.
  Result<void> hold_connections(int netns_fd) const;
  Result<void> release_connections(int netns_fd) const;
  static constexpr uint32_t kRestorersMark = 0xC114;  // criu's (libsoccr)

  // What is installed there now, one line per link, address, route, chain, rule and switch; the same text for every
  // namespace that make() configured. Compare it with expected().
  // Of a wired one: without the other end of the cable, which is the engine's as soon as it runs.
  Result<std::string> describe(int netns_fd) const;

  // The text that make_and_describe() gives; and describe() for a namespace that nobody touched.
  // Learnt from a throw-away namespace at the first call.
  Result<std::string> expected() const;

 private:
  struct Messages;
  struct Doors;  // to what is configured in a namespace, opened there
  Result<Doors> open_doors() const;
  Result<IslandSockets> configure(Doors& doors, int wire, Fd& tap) const;
  Result<std::string> configure_wire(int wire) const;
  Result<std::string> read_back(const Doors& doors) const;
  explicit IslandNetwork(std::shared_ptr<Messages> messages) : messages_(std::move(messages)) {}
  std::shared_ptr<Messages> messages_;
};

}  // namespace isola::boundary
