// Messages for links, addresses and routes, and a text of what a namespace has of them.
#pragma once

#include <string>

#include "base/error.h"
#include "kernel/netlink.h"

namespace isola::kernel {

// lo's index: the first device of every network namespace, given out by the kernel itself.
inline constexpr int kLoopbackIndex = 1;

void add_link_up(NetlinkBatch& batch, int link);
// An address, IPv4 or IPv6 by its form: a single one (/32 or /128), or with a network of `prefix` bits behind the link.
Result<void> add_address(NetlinkBatch& batch, int link, const std::string& address, int prefix = -1);
// A cable: one end here, the other in the network namespace of that descriptor.
// Both have that number; 0: whichever is free.
void add_cable(NetlinkBatch& batch, const std::string& end, const std::string& other_end, int other_netns,
               int number = 0);
// The kernel gives the device no address of its own accord (IPv6 would, a little later).
void add_no_own_address(NetlinkBatch& batch, int link);
// One address is behind the device, and not here, whatever add_everything_is_local() says.
Result<void> add_neighbour(NetlinkBatch& batch, int link, const std::string& address);
// Everything that has no better route goes to that neighbour.
Result<void> add_default_route(NetlinkBatch& batch, const std::string& via);
// "local 0.0.0.0/0 dev LINK src ADDRESS" in the table `local`, or the same for IPv6: every address of that family is
// here, and whoever does not choose a source address speaks from this one. (Without a source, IPv4 would take the
// destination itself.)
Result<void> add_everything_is_local(NetlinkBatch& batch, int link, const std::string& source);

// One line per link, address and route, without counters, times and other things that differ by chance.
Result<std::string> describe_links(const NetlinkSocket& route);

}  // namespace isola::kernel
