#include "kernel/netlink_route.h"

#include <arpa/inet.h>
#include <libmnl/libmnl.h>
#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>

#include <algorithm>
#include <array>

namespace isola::kernel {

namespace {

struct Address {
  uint8_t family;
  uint8_t size;
  std::array<uint8_t, 16> bytes;
};

Result<Address> parse(const std::string& text) {
  Address out{};
  if (inet_pton(AF_INET, text.c_str(), out.bytes.data()) == 1)
    out.family = AF_INET, out.size = 4;
  else if (inet_pton(AF_INET6, text.c_str(), out.bytes.data()) == 1)
    out.family = AF_INET6, out.size = 16;
  else
    return fail(Code::invalid, "'" + text + "' is no address");
  return out;
}

template <typename T>
T* header(nlmsghdr* message) {
  return static_cast<T*>(mnl_nlmsg_put_extra_header(message, sizeof(T)));
}

std::string text_of(std::span<const uint8_t> address) {
  if (address.empty()) return "-";
  char out[INET6_ADDRSTRLEN];
  if (address.size() != 4 && address.size() != 16) return hex(address);
  return inet_ntop(address.size() == 4 ? AF_INET : AF_INET6, address.data(), out, sizeof out);
}

uint32_t word(std::span<const uint8_t> bytes) {
  uint32_t out = 0;
  if (bytes.size() >= sizeof out) std::copy_n(bytes.data(), sizeof out, reinterpret_cast<uint8_t*>(&out));
  return out;
}

template <typename T>
NetlinkBatch dump_request(const char* step, uint16_t type) {
  NetlinkBatch request;
  request.add(step, type, NLM_F_DUMP, [](nlmsghdr* m) { header<T>(m); });
  return request;
}

std::string link_line(const nlmsghdr& m) {
  const auto* link = static_cast<const ifinfomsg*>(mnl_nlmsg_get_payload(&m));
  auto a = attributes_of(m, sizeof(ifinfomsg));
  auto name = a[IFLA_IFNAME];
  std::string text(reinterpret_cast<const char*>(name.data()), name.empty() ? 0 : name.size() - 1);
  return "link " + std::to_string(link->ifi_index) + " " + text + (link->ifi_flags & IFF_UP ? " up" : " down");
}

std::string address_line(const nlmsghdr& m) {
  const auto* address = static_cast<const ifaddrmsg*>(mnl_nlmsg_get_payload(&m));
  return "address " + text_of(attributes_of(m, sizeof(ifaddrmsg))[IFA_ADDRESS]) + "/" +
         std::to_string(address->ifa_prefixlen) + " on " + std::to_string(address->ifa_index);
}

std::string route_line(const nlmsghdr& m) {
  const auto* route = static_cast<const rtmsg*>(mnl_nlmsg_get_payload(&m));
  auto a = attributes_of(m, sizeof(rtmsg));
  std::string line = "route family " + std::to_string(route->rtm_family) + " table " +
                     std::to_string(word(a[RTA_TABLE])) + " type " + std::to_string(route->rtm_type) + " to " +
                     text_of(a[RTA_DST]) + "/" + std::to_string(route->rtm_dst_len) + " on " +
                     std::to_string(word(a[RTA_OIF])) + " from " + text_of(a[RTA_PREFSRC]);
  if (a.contains(RTA_GATEWAY)) line += " via " + text_of(a[RTA_GATEWAY]);
  return line;
}

}  // namespace

void add_link_up(NetlinkBatch& batch, int link) {
  batch.add("bring the loopback device up", RTM_NEWLINK, NLM_F_ACK, [&](nlmsghdr* m) {
    auto* h = header<ifinfomsg>(m);
    h->ifi_index = link;
    h->ifi_flags = h->ifi_change = IFF_UP;
  });
}

Result<void> add_address(NetlinkBatch& batch, int link, const std::string& address, int prefix) {
  ISOLA_TRY(Address a, parse(address));
  batch.add("add the address " + address, RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, [&](nlmsghdr* m) {
    auto* h = header<ifaddrmsg>(m);
    h->ifa_family = a.family;
    h->ifa_prefixlen = static_cast<uint8_t>(prefix < 0 ? a.size * 8 : prefix);
    h->ifa_index = static_cast<uint32_t>(link);
    // Without looking for duplicates the address can be used by the next message already.
    if (a.family == AF_INET6) h->ifa_flags = IFA_F_NODAD;
    mnl_attr_put(m, IFA_LOCAL, a.size, a.bytes.data());
    mnl_attr_put(m, IFA_ADDRESS, a.size, a.bytes.data());
  });
  return {};
}

void add_cable(NetlinkBatch& batch, const std::string& end, const std::string& other_end, int other_netns, int number) {
  batch.add("make a cable", RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, [&](nlmsghdr* m) {
    header<ifinfomsg>(m)->ifi_index = number;
    mnl_attr_put_strz(m, IFLA_IFNAME, end.c_str());
    auto* info = mnl_attr_nest_start(m, IFLA_LINKINFO);
    mnl_attr_put_strz(m, IFLA_INFO_KIND, "veth");
    auto* data = mnl_attr_nest_start(m, IFLA_INFO_DATA);
    auto* peer = mnl_attr_nest_start(m, VETH_INFO_PEER);
    static_cast<ifinfomsg*>(mnl_nlmsg_put_extra_header(m, sizeof(ifinfomsg)))->ifi_index = number;
    mnl_attr_put_strz(m, IFLA_IFNAME, other_end.c_str());
    mnl_attr_put_u32(m, IFLA_NET_NS_FD, static_cast<uint32_t>(other_netns));
    mnl_attr_nest_end(m, peer);
    mnl_attr_nest_end(m, data);
    mnl_attr_nest_end(m, info);
  });
}

void add_no_own_address(NetlinkBatch& batch, int link) {
  batch.add("keep a device from having an address of its own", RTM_NEWLINK, NLM_F_ACK, [&](nlmsghdr* m) {
    header<ifinfomsg>(m)->ifi_index = link;
    auto* families = mnl_attr_nest_start(m, IFLA_AF_SPEC);
    auto* six = mnl_attr_nest_start(m, AF_INET6);
    mnl_attr_put_u8(m, IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE);
    mnl_attr_nest_end(m, six);
    mnl_attr_nest_end(m, families);
  });
}

Result<void> add_neighbour(NetlinkBatch& batch, int link, const std::string& address) {
  ISOLA_TRY(Address a, parse(address));
  batch.add("add the route to " + address, RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, [&](nlmsghdr* m) {
    auto* h = header<rtmsg>(m);
    h->rtm_family = a.family;
    h->rtm_dst_len = static_cast<uint8_t>(a.size * 8);
    // In the table that is asked first, where the whole world is local.
    h->rtm_table = RT_TABLE_LOCAL;
    h->rtm_protocol = RTPROT_STATIC;
    h->rtm_scope = a.family == AF_INET ? RT_SCOPE_LINK : RT_SCOPE_UNIVERSE;
    h->rtm_type = RTN_UNICAST;
    mnl_attr_put(m, RTA_DST, a.size, a.bytes.data());
    mnl_attr_put_u32(m, RTA_OIF, static_cast<uint32_t>(link));
  });
  return {};
}

Result<void> add_default_route(NetlinkBatch& batch, const std::string& via) {
  ISOLA_TRY(Address a, parse(via));
  batch.add("add the default route via " + via, RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, [&](nlmsghdr* m) {
    auto* h = header<rtmsg>(m);
    h->rtm_family = a.family;
    h->rtm_table = RT_TABLE_MAIN;
    h->rtm_protocol = RTPROT_STATIC;
    h->rtm_scope = RT_SCOPE_UNIVERSE;
    h->rtm_type = RTN_UNICAST;
    mnl_attr_put(m, RTA_GATEWAY, a.size, a.bytes.data());
  });
  return {};
}

Result<void> add_everything_is_local(NetlinkBatch& batch, int link, const std::string& source) {
  ISOLA_TRY(Address a, parse(source));
  batch.add("add the local route from " + source, RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL,
            [&](nlmsghdr* m) {
              auto* h = header<rtmsg>(m);
              h->rtm_family = a.family;
              h->rtm_table = RT_TABLE_LOCAL;
              h->rtm_protocol = RTPROT_STATIC;
              h->rtm_scope = a.family == AF_INET ? RT_SCOPE_HOST : RT_SCOPE_UNIVERSE;
              h->rtm_type = RTN_LOCAL;
              mnl_attr_put_u32(m, RTA_OIF, static_cast<uint32_t>(link));
              mnl_attr_put(m, RTA_PREFSRC, a.size, a.bytes.data());
            });
  return {};
}

Result<std::string> describe_links(const NetlinkSocket& route) {
  static const NetlinkBatch kLinks = dump_request<ifinfomsg>("a list of links", RTM_GETLINK);
  static const NetlinkBatch kAddresses = dump_request<ifaddrmsg>("a list of addresses", RTM_GETADDR);
  static const NetlinkBatch kRoutes = dump_request<rtmsg>("a list of routes", RTM_GETROUTE);
  std::vector<std::string> lines;
  auto collect = [&](auto line) { return [&lines, line](const nlmsghdr& m) { lines.push_back(line(m)); }; };
  ISOLA_CHECK(route.dump(kLinks, collect(link_line)));
  ISOLA_CHECK(route.dump(kAddresses, collect(address_line)));
  // Routes that the kernel derives from the addresses say nothing new, and for IPv6 it adds them a little later.
  ISOLA_CHECK(route.dump(kRoutes, [&](const nlmsghdr& m) {
    if (static_cast<const rtmsg*>(mnl_nlmsg_get_payload(&m))->rtm_protocol != RTPROT_KERNEL)
      lines.push_back(route_line(m));
  }));
  // The kernel keeps some of them in hash tables; their order means nothing.
  std::ranges::sort(lines);
  std::string out;
  for (const auto& line : lines) out += line + "\n";
  return out;
}

}  // namespace isola::kernel
