#include "kernel/nftables.h"

#include <arpa/inet.h>
#include <libmnl/libmnl.h>
#include <libnftnl/chain.h>
#include <libnftnl/expr.h>
#include <libnftnl/rule.h>
#include <libnftnl/table.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_conntrack_common.h>
#include <linux/netfilter/nf_nat.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <netinet/in.h>

#include <array>
#include <memory>

#include "kernel/seccomp_digest.h"

namespace isola::kernel {

namespace {

constexpr uint32_t kRegister = NFT_REG_1;
// Offsets in the network header, and in those of TCP, UDP and ICMP.
constexpr uint32_t kIp4Source = 12, kIp4Destination = 16, kIp6Source = 8, kIp6Destination = 24;
constexpr uint32_t kSourcePort = 0, kDestinationPort = 2, kIcmpType = 0;

void append(nftnl_rule* rule, const char* kind, const std::function<void(nftnl_expr*)>& fill) {
  nftnl_expr* e = nftnl_expr_alloc(kind);
  fill(e);
  nftnl_rule_add_expr(rule, e);  // the rule owns it now
}

void compare(nftnl_rule* rule, const void* data, uint32_t size, uint32_t comparison = NFT_CMP_EQ) {
  append(rule, "cmp", [&](nftnl_expr* e) {
    nftnl_expr_set_u32(e, NFTNL_EXPR_CMP_SREG, kRegister);
    nftnl_expr_set_u32(e, NFTNL_EXPR_CMP_OP, comparison);
    nftnl_expr_set(e, NFTNL_EXPR_CMP_DATA, data, size);
  });
}

void load_meta(nftnl_rule* rule, uint32_t key) {
  append(rule, "meta", [&](nftnl_expr* e) {
    nftnl_expr_set_u32(e, NFTNL_EXPR_META_KEY, key);
    nftnl_expr_set_u32(e, NFTNL_EXPR_META_DREG, kRegister);
  });
}

void meta_is(nftnl_rule* rule, uint32_t key, uint8_t value) {
  load_meta(rule, key);
  compare(rule, &value, sizeof value);
}

void payload_is(nftnl_rule* rule, uint32_t base, uint32_t offset, const void* data, uint32_t size) {
  append(rule, "payload", [&](nftnl_expr* e) {
    nftnl_expr_set_u32(e, NFTNL_EXPR_PAYLOAD_DREG, kRegister);
    nftnl_expr_set_u32(e, NFTNL_EXPR_PAYLOAD_BASE, base);
    nftnl_expr_set_u32(e, NFTNL_EXPR_PAYLOAD_OFFSET, offset);
    nftnl_expr_set_u32(e, NFTNL_EXPR_PAYLOAD_LEN, size);
  });
  compare(rule, data, size);
}

void port_is(nftnl_rule* rule, uint32_t offset, uint16_t port) {
  uint16_t value = htons(port);
  payload_is(rule, NFT_PAYLOAD_TRANSPORT_HEADER, offset, &value, sizeof value);
}

void address_is(nftnl_rule* rule, uint32_t offset4, uint32_t offset6, const std::string& address) {
  std::array<uint8_t, 16> bytes;
  if (inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) {
    meta_is(rule, NFT_META_NFPROTO, NFPROTO_IPV4);
    payload_is(rule, NFT_PAYLOAD_NETWORK_HEADER, offset4, bytes.data(), 4);
  } else {
    inet_pton(AF_INET6, address.c_str(), bytes.data());
    meta_is(rule, NFT_META_NFPROTO, NFPROTO_IPV6);
    payload_is(rule, NFT_PAYLOAD_NETWORK_HEADER, offset6, bytes.data(), 16);
  }
}

// The tracked connection's word `key`, and `mask`, is or is not zero. A packet that is not tracked matches neither.
void tracking_is(nftnl_rule* rule, uint32_t key, uint32_t mask, uint32_t comparison) {
  append(rule, "ct", [&](nftnl_expr* e) {
    nftnl_expr_set_u32(e, NFTNL_EXPR_CT_KEY, key);
    nftnl_expr_set_u32(e, NFTNL_EXPR_CT_DREG, kRegister);
  });
  uint32_t zero = 0;
  append(rule, "bitwise", [&](nftnl_expr* e) {
    nftnl_expr_set_u32(e, NFTNL_EXPR_BITWISE_SREG, kRegister);
    nftnl_expr_set_u32(e, NFTNL_EXPR_BITWISE_DREG, kRegister);
    nftnl_expr_set_u32(e, NFTNL_EXPR_BITWISE_LEN, sizeof mask);
    nftnl_expr_set(e, NFTNL_EXPR_BITWISE_MASK, &mask, sizeof mask);
    nftnl_expr_set(e, NFTNL_EXPR_BITWISE_XOR, &zero, sizeof zero);
  });
  compare(rule, &zero, sizeof zero, comparison);
}

void verdict(nftnl_rule* rule, uint32_t what) {
  append(rule, "immediate", [&](nftnl_expr* e) {
    nftnl_expr_set_u32(e, NFTNL_EXPR_IMM_DREG, NFT_REG_VERDICT);
    nftnl_expr_set_u32(e, NFTNL_EXPR_IMM_VERDICT, what);
  });
}

void reject_as(nftnl_rule* rule, uint32_t type, uint8_t code) {
  append(rule, "reject", [&](nftnl_expr* e) {
    nftnl_expr_set_u32(e, NFTNL_EXPR_REJECT_TYPE, type);
    nftnl_expr_set_u8(e, NFTNL_EXPR_REJECT_CODE, code);
  });
}

uint16_t message_type(uint16_t message) { return static_cast<uint16_t>(NFNL_SUBSYS_NFTABLES << 8 | message); }

void family_header(nlmsghdr* m, uint8_t family, uint16_t resource = 0) {
  auto* h = static_cast<nfgenmsg*>(mnl_nlmsg_put_extra_header(m, sizeof(nfgenmsg)));
  h->nfgen_family = family;
  h->version = NFNETLINK_V0;
  h->res_id = htons(resource);
}

NetlinkBatch dump_request(const char* step, uint16_t message) {
  NetlinkBatch request;
  request.add(step, message_type(message), NLM_F_DUMP, [](nlmsghdr* m) { family_header(m, NFPROTO_UNSPEC); });
  return request;
}

// A string attribute without its closing zero.
std::string name_in(const NetlinkAttributes& attributes, uint16_t type) {
  auto it = attributes.find(type);
  if (it == attributes.end()) return "-";
  std::string_view bytes(reinterpret_cast<const char*>(it->second.data()), it->second.size());
  return std::string(bytes.substr(0, bytes.find('\0')));
}

std::string hex_in(const NetlinkAttributes& attributes, uint16_t type) {
  auto it = attributes.find(type);
  return it == attributes.end() ? "-" : hex(it->second);
}

std::string family_of(const nlmsghdr& m) {
  return " family " + std::to_string(static_cast<const nfgenmsg*>(mnl_nlmsg_get_payload(&m))->nfgen_family);
}

std::string table_line(const nlmsghdr& m) {
  auto a = attributes_of(m, sizeof(nfgenmsg));
  // The flag "dormant" would switch a table off.
  return "table" + family_of(m) + " " + name_in(a, NFTA_TABLE_NAME) + " flags " + hex_in(a, NFTA_TABLE_FLAGS);
}

std::string chain_line(const nlmsghdr& m) {
  auto a = attributes_of(m, sizeof(nfgenmsg));
  return "chain" + family_of(m) + " " + name_in(a, NFTA_CHAIN_TABLE) + " " + name_in(a, NFTA_CHAIN_NAME) + " " +
         name_in(a, NFTA_CHAIN_TYPE) + " hook " + hex_in(a, NFTA_CHAIN_HOOK) + " policy " +
         hex_in(a, NFTA_CHAIN_POLICY);
}

std::string rule_line(const nlmsghdr& m) {
  auto a = attributes_of(m, sizeof(nfgenmsg));
  auto expressions = a[NFTA_RULE_EXPRESSIONS];
  return "rule" + family_of(m) + " " + name_in(a, NFTA_RULE_TABLE) + " " + name_in(a, NFTA_RULE_CHAIN) + " " +
         remembered_sha256_hex({reinterpret_cast<const char*>(expressions.data()), expressions.size()});
}

}  // namespace

#define ISOLA_NFT_PART(...)                                \
  parts_.emplace_back([=](nftnl_rule * rule) __VA_ARGS__); \
  return std::move(*this)

NftRule NftRule::protocol(uint8_t number) && {
  ISOLA_NFT_PART({ meta_is(rule, NFT_META_L4PROTO, number); });
}
NftRule NftRule::port(uint16_t destination) && {
  ISOLA_NFT_PART({ port_is(rule, kDestinationPort, destination); });
}
NftRule NftRule::from_port(uint16_t source) && {
  ISOLA_NFT_PART({ port_is(rule, kSourcePort, source); });
}
NftRule NftRule::icmp_type(uint8_t type) && {
  ISOLA_NFT_PART({ payload_is(rule, NFT_PAYLOAD_TRANSPORT_HEADER, kIcmpType, &type, sizeof type); });
}
NftRule NftRule::to_loopback4() && {
  ISOLA_NFT_PART({
    meta_is(rule, NFT_META_NFPROTO, NFPROTO_IPV4);
    uint8_t first = 127;
    payload_is(rule, NFT_PAYLOAD_NETWORK_HEADER, kIp4Destination, &first, sizeof first);
  });
}
NftRule NftRule::to(const std::string& address) && {
  ISOLA_NFT_PART({ address_is(rule, kIp4Destination, kIp6Destination, address); });
}
NftRule NftRule::from(const std::string& address) && {
  ISOLA_NFT_PART({ address_is(rule, kIp4Source, kIp6Source, address); });
}
NftRule NftRule::not_redirected() && {
  ISOLA_NFT_PART({ tracking_is(rule, NFT_CT_STATUS, IPS_DST_NAT, NFT_CMP_EQ); });
}
NftRule NftRule::fresh() && {
  ISOLA_NFT_PART({ tracking_is(rule, NFT_CT_STATE, NF_CT_STATE_BIT(IP_CT_NEW), NFT_CMP_NEQ); });
}
NftRule NftRule::rate_over(uint64_t per_second, uint32_t burst) && {
  ISOLA_NFT_PART({
    append(rule, "limit", [&](nftnl_expr* e) {
      nftnl_expr_set_u64(e, NFTNL_EXPR_LIMIT_RATE, per_second);
      nftnl_expr_set_u64(e, NFTNL_EXPR_LIMIT_UNIT, 1);  // seconds
      nftnl_expr_set_u32(e, NFTNL_EXPR_LIMIT_BURST, burst);
      nftnl_expr_set_u32(e, NFTNL_EXPR_LIMIT_TYPE, NFT_LIMIT_PKTS);
      nftnl_expr_set_u32(e, NFTNL_EXPR_LIMIT_FLAGS, NFT_LIMIT_F_INV);
    });
  });
}
NftRule NftRule::flows_over(uint32_t count) && {
  ISOLA_NFT_PART({
    append(rule, "connlimit", [&](nftnl_expr* e) {
      nftnl_expr_set_u32(e, NFTNL_EXPR_CONNLIMIT_COUNT, count);
      nftnl_expr_set_u32(e, NFTNL_EXPR_CONNLIMIT_FLAGS, NFT_CONNLIMIT_F_INV);
    });
  });
}
NftRule NftRule::not_marked(uint32_t mark) && {
  ISOLA_NFT_PART({
    load_meta(rule, NFT_META_MARK);
    compare(rule, &mark, sizeof mark, NFT_CMP_NEQ);
  });
}
NftRule NftRule::accept() && {
  ISOLA_NFT_PART({ verdict(rule, NF_ACCEPT); });
}
NftRule NftRule::drop() && {
  ISOLA_NFT_PART({ verdict(rule, NF_DROP); });
}
NftRule NftRule::do_not_track() && {
  ISOLA_NFT_PART({ append(rule, "notrack", [](nftnl_expr*) {}); });
}
NftRule NftRule::redirect(uint16_t port) && {
  ISOLA_NFT_PART({
    append(rule, "immediate", [&](nftnl_expr* e) {
      uint16_t value = htons(port);
      nftnl_expr_set_u32(e, NFTNL_EXPR_IMM_DREG, kRegister);
      nftnl_expr_set(e, NFTNL_EXPR_IMM_DATA, &value, sizeof value);
    });
    append(rule, "redir", [](nftnl_expr* e) {
      nftnl_expr_set_u32(e, NFTNL_EXPR_REDIR_REG_PROTO_MIN, kRegister);
      nftnl_expr_set_u32(e, NFTNL_EXPR_REDIR_REG_PROTO_MAX, kRegister);
      nftnl_expr_set_u32(e, NFTNL_EXPR_REDIR_FLAGS, NF_NAT_RANGE_PROTO_SPECIFIED);
    });
  });
}
NftRule NftRule::reject_with_reset() && {
  ISOLA_NFT_PART({ reject_as(rule, NFT_REJECT_TCP_RST, 0); });
}
NftRule NftRule::reject() && {
  ISOLA_NFT_PART({ reject_as(rule, NFT_REJECT_ICMPX_UNREACH, NFT_REJECT_ICMPX_PORT_UNREACH); });
}

#undef ISOLA_NFT_PART

NftBatch::NftBatch(std::string table, Life life) : table_(std::move(table)) {
  messages_.emplace_back([this, life](NetlinkBatch& out, bool) {
    std::unique_ptr<nftnl_table, decltype(&nftnl_table_free)> t(nftnl_table_alloc(), nftnl_table_free);
    nftnl_table_set_str(t.get(), NFTNL_TABLE_NAME, table_.c_str());
    if (life == Life::with_socket) nftnl_table_set_u32(t.get(), NFTNL_TABLE_FLAGS, NFT_TABLE_F_OWNER);
    out.add("make the packet table", message_type(NFT_MSG_NEWTABLE), NLM_F_CREATE | NLM_F_EXCL, [&](nlmsghdr* m) {
      family_header(m, NFPROTO_INET);
      nftnl_table_nlmsg_build_payload(m, t.get());
    });
  });
}

void NftBatch::chain(const NftChain& chain) {
  messages_.emplace_back([this, chain](NetlinkBatch& out, bool) {
    using Kind = NftChain::Kind;
    const bool raw = chain.kind == Kind::raw_output || chain.kind == Kind::raw_arriving;
    const bool nat = chain.kind == Kind::nat_output || chain.kind == Kind::nat_arriving;
    // The kernel's own order: tracking begins at -200.
    const int priority = raw ? -300 : nat ? -100 : 0;
    const uint32_t hook = chain.kind < Kind::raw_arriving       ? NF_INET_LOCAL_OUT
                          : chain.kind == Kind::filter_arriving ? NF_INET_LOCAL_IN
                                                                : NF_INET_PRE_ROUTING;
    std::unique_ptr<nftnl_chain, decltype(&nftnl_chain_free)> c(nftnl_chain_alloc(), nftnl_chain_free);
    nftnl_chain_set_str(c.get(), NFTNL_CHAIN_TABLE, table_.c_str());
    nftnl_chain_set_str(c.get(), NFTNL_CHAIN_NAME, chain.name.c_str());
    nftnl_chain_set_str(c.get(), NFTNL_CHAIN_TYPE, nat ? "nat" : "filter");
    nftnl_chain_set_u32(c.get(), NFTNL_CHAIN_HOOKNUM, hook);
    nftnl_chain_set_s32(c.get(), NFTNL_CHAIN_PRIO, priority);
    nftnl_chain_set_u32(c.get(), NFTNL_CHAIN_POLICY, chain.drop_by_default ? NF_DROP : NF_ACCEPT);
    out.add("make the packet chain " + chain.name, message_type(NFT_MSG_NEWCHAIN), NLM_F_CREATE | NLM_F_EXCL,
            [&](nlmsghdr* m) {
              family_header(m, NFPROTO_INET);
              nftnl_chain_nlmsg_build_payload(m, c.get());
            });
  });
}

void NftBatch::rule(const std::string& chain, const NftRule& rule) {
  messages_.emplace_back([this, chain, rule](NetlinkBatch& out, bool last) {
    std::unique_ptr<nftnl_rule, decltype(&nftnl_rule_free)> r(nftnl_rule_alloc(), nftnl_rule_free);
    nftnl_rule_set_str(r.get(), NFTNL_RULE_TABLE, table_.c_str());
    nftnl_rule_set_str(r.get(), NFTNL_RULE_CHAIN, chain.c_str());
    for (const auto& part : rule.parts_) part(r.get());
    // The kernel answers once the whole batch is in force, so the last message's acknowledgement speaks for all;
    // errors come for any of them.
    out.add("add a packet rule to " + chain, message_type(NFT_MSG_NEWRULE),
            static_cast<uint16_t>(NLM_F_CREATE | NLM_F_APPEND | (last ? NLM_F_ACK : 0)), [&](nlmsghdr* m) {
              family_header(m, NFPROTO_INET);
              nftnl_rule_nlmsg_build_payload(m, r.get());
            });
  });
}

namespace {
// The kernel takes changes only between these two, and then all or none.
template <typename Body>
NetlinkBatch all_at_once(Body body) {
  NetlinkBatch out;
  auto edge = [](nlmsghdr* m) { family_header(m, AF_UNSPEC, NFNL_SUBSYS_NFTABLES); };
  out.add("begin the packet rules", NFNL_MSG_BATCH_BEGIN, 0, edge);
  body(out);
  out.add("put the packet rules in force", NFNL_MSG_BATCH_END, 0, edge);
  return out;
}
}  // namespace

NetlinkBatch NftBatch::take() {
  return all_at_once([this](NetlinkBatch& out) {
    for (size_t i = 0; i < messages_.size(); ++i) messages_[i](out, i + 1 == messages_.size());
  });
}

NetlinkBatch remove_table(const std::string& table) {
  std::unique_ptr<nftnl_table, decltype(&nftnl_table_free)> t(nftnl_table_alloc(), nftnl_table_free);
  nftnl_table_set_str(t.get(), NFTNL_TABLE_NAME, table.c_str());
  return all_at_once([&](NetlinkBatch& out) {
    out.add("remove the packet table " + table, message_type(NFT_MSG_DELTABLE), NLM_F_ACK, [&](nlmsghdr* m) {
      family_header(m, NFPROTO_INET);
      nftnl_table_nlmsg_build_payload(m, t.get());
    });
  });
}

Result<std::string> describe_ruleset(const NetlinkSocket& netfilter) {
  static const NetlinkBatch kTables = dump_request("a list of packet tables", NFT_MSG_GETTABLE);
  static const NetlinkBatch kChains = dump_request("a list of packet chains", NFT_MSG_GETCHAIN);
  static const NetlinkBatch kRules = dump_request("a list of packet rules", NFT_MSG_GETRULE);
  std::string out;
  auto lines = [&](auto line) { return [&out, line](const nlmsghdr& m) { out += line(m) + "\n"; }; };
  ISOLA_CHECK(netfilter.dump(kTables, lines(table_line)));
  ISOLA_CHECK(netfilter.dump(kChains, lines(chain_line)));
  ISOLA_CHECK(netfilter.dump(kRules, lines(rule_line)));
  return out;
}

Result<std::string> print_rules(const NetlinkSocket& netfilter) {
  std::string out;
  ISOLA_CHECK(netfilter.dump(dump_request("a list of packet rules", NFT_MSG_GETRULE), [&](const nlmsghdr& m) {
    std::unique_ptr<nftnl_rule, decltype(&nftnl_rule_free)> rule(nftnl_rule_alloc(), nftnl_rule_free);
    if (nftnl_rule_nlmsg_parse(&m, rule.get()) < 0) return;
    out += std::string(nftnl_rule_get_str(rule.get(), NFTNL_RULE_CHAIN)) + ":";
    auto each = [](nftnl_expr* e, void* to) {
      char text[512];
      if (nftnl_expr_snprintf(text, sizeof text, e, NFTNL_OUTPUT_DEFAULT, 0) < 0) return -1;
      std::string words(text);
      while (words.ends_with(' ')) words.pop_back();
      *static_cast<std::string*>(to) += " " + std::string(nftnl_expr_get_str(e, NFTNL_EXPR_NAME)) + " " + words + ";";
      return 0;
    };
    if (nftnl_expr_foreach(rule.get(), each, &out) < 0) out += " ?";
    out += "\n";
  }));
  return out;
}

}  // namespace isola::kernel
