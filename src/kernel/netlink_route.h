// Messages for links, addresses and routes, and a text of what a namespace has of them.
#pragma once

#include <string>

#include "base/error.h"
#include "kernel/netlink.h"

namespace isola::kernel {

// lo's index: the first device of every network namespace, given out by the kernel itself.
inline constexpr int kLoopbackIndex = 1;

void add_link_up(NetlinkBatch& batch, int link);
// A single address (/32 or /128), IPv4 or IPv6 by its form.
Result<void> add_address(NetlinkBatch& batch, int link, const std::string& address);
// "local 0.0.0.0/0 dev LINK src ADDRESS" in the table `local`, or the same for IPv6: every address of that family is
// here, and whoever does not choose a source address speaks from this one. (Without a source, IPv4 would take the
// destination itself.)
Result<void> add_everything_is_local(NetlinkBatch& batch, int link, const std::string& source);

// One line per link, address and route, without counters, times and other things that differ by chance.
Result<std::string> describe_links(const NetlinkSocket& route);

}  // namespace isola::kernel
