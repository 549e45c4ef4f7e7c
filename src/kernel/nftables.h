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
  NftRule to_loopback4() &&;                  // 127.0.0.0/8
  NftRule to(const std::string& address) &&;  // one address of either family
  NftRule not_redirected() &&;                // the connection's destination was not changed
  NftRule accept() &&;
  NftRule redirect(uint16_t port) &&;  // to this port of the loopback address (nat chains)
  NftRule reject_with_reset() &&;      // after protocol(IPPROTO_TCP)
  NftRule reject() &&;                 // "port unreachable"

 private:
  friend class NftBatch;
  std::vector<std::function<void(nftnl_rule*)>> parts_;
};

struct NftChain {
  enum class Kind { nat_output, filter_output };
  std::string name;
  Kind kind = Kind::filter_output;
  bool drop_by_default = false;
};

// One table of family inet with its chains and rules, made all at once or not at all.
class NftBatch {
 public:
  explicit NftBatch(std::string table);
  NftBatch(const NftBatch&) = delete;
  NftBatch& operator=(const NftBatch&) = delete;
  void chain(const NftChain& chain);
  void rule(const std::string& chain, const NftRule& rule);
  NetlinkBatch take();

 private:
  std::string table_;
  std::vector<std::function<void(NetlinkBatch&, bool last)>> messages_;
};

// One line per table, chain and rule of the namespace (rules as a hash of their expressions).
Result<std::string> describe_ruleset(const NetlinkSocket& netfilter);

}  // namespace isola::kernel
