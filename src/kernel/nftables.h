// Packet rules (nftables), just the few kinds that an island needs, as netlink bytes to be replayed.
//
//   NftBatch nft("isola");
//   nft.chain({.name = "steer", .kind = NftChain::Kind::nat_output});
//   nft.rule("steer", NftRule().protocol(IPPROTO_TCP).redirect(15001));
//   NetlinkBatch batch = nft.take();                 // once
//   NetlinkSocket::open(NETLINK_NETFILTER)->run(batch);
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kernel/netlink.h"

struct nftnl_rule;

namespace isola::kernel {

// Conditions from left to right, then what happens.
class NftRule {
 public:
  NftRule protocol(uint8_t number) &&;        // TCP, UDP …, in either family
  NftRule port(uint16_t destination) &&;      // after protocol()
  NftRule from_port(uint16_t source) &&;      // after protocol()
  NftRule icmp_type(uint8_t type) &&;         // after protocol(IPPROTO_ICMP or IPPROTO_ICMPV6)
  NftRule to_loopback4() &&;                  // 127.0.0.0/8
  NftRule to(const std::string& address) &&;  // one address of either family
  NftRule from(const std::string& address) &&;
  NftRule not_redirected() &&;  // the connection's destination was not changed
  NftRule fresh() &&;           // the first packet of a tracked connection
  // More often than that, after a burst of so many. One count for all that reach the rule.
  NftRule rate_over(uint64_t per_second, uint32_t burst) &&;
  // The connection is one more than so many that came by here and are still open (TCP) or remembered (UDP).
  NftRule flows_over(uint32_t count) &&;
  NftRule not_marked(uint32_t mark) &&;  // the packet's mark (SO_MARK) is another
  NftRule accept() &&;
  NftRule drop() &&;
  NftRule do_not_track() &&;  // raw chains: the kernel keeps no record of the connection
  // To this port: of the loopback address (nat_output), or of the device that it came by (nat_arriving).
  NftRule redirect(uint16_t port) &&;
  NftRule reject_with_reset() &&;  // after protocol(IPPROTO_TCP)
  NftRule reject() &&;             // "port unreachable"

 private:
  friend class NftBatch;
  std::vector<std::function<void(nftnl_rule*)>> parts_;
};

struct NftChain {
  // In the order in which a packet meets them: on its way out, and on its way in.
  enum class Kind { raw_output, nat_output, filter_output, raw_arriving, nat_arriving, filter_arriving };
  std::string name;
  Kind kind = Kind::filter_output;
  bool drop_by_default = false;
};

// One table of family inet with its chains and rules, made all at once or not at all.
class NftBatch {
 public:
  // `with_socket`: the kernel takes the table away when the socket that made it is closed, by whatever end.
  enum class Life { stays, with_socket };
  explicit NftBatch(std::string table, Life life = Life::stays);
  NftBatch(const NftBatch&) = delete;
  NftBatch& operator=(const NftBatch&) = delete;
  void chain(const NftChain& chain);
  void rule(const std::string& chain, const NftRule& rule);
  NetlinkBatch take();

 private:
  std::string table_;
  std::vector<std::function<void(NetlinkBatch&, bool last)>> messages_;
};

// Takes a whole table away; no such table is an error.
NetlinkBatch remove_table(const std::string& table);

// One line per table, chain and rule of the namespace (rules as a hash of their expressions).
Result<std::string> describe_ruleset(const NetlinkSocket& netfilter);
// The rules for people, as libnftnl prints what the kernel has: "leave: [ meta load l4proto => reg 1 ] …".
Result<std::string> print_rules(const NetlinkSocket& netfilter);

}  // namespace isola::kernel
