// What a sandbox may reach: an ordered list of rules; the first that matches decides, and then a default.
//
//   # comments, one rule a line
//   allow api.example.org            exactly this name, every port
//   allow *.example.net:443          everything below this name, not the name itself
//   allow db.corp.example:5432 local this name even where it leads to a private address
//   deny  203.0.113.0/24             these addresses, also when a name leads there
//   allow [2001:db8::/32]:80,8000-8100
//   allow api.example.org:443 methods GET,HEAD paths /repos/,/user
//                                    of HTTP there only these requests (see below)
//   deny  *                          anything
//   default deny
//   limit connections 512
//   limit connections-per-second 100
//   limit bytes-per-second 10M
//   learn                            allow every name and address that could be allowed, and record
//
// A name is decided before it is looked up, by the rules about names: one that is denied never leaves the machine. A
// connection by name is decided again, with the address that it would really go to, by all rules. A connection to a
// literal address matches only rules about addresses and `*`.
//
// Addresses that are somebody's inside are refused whatever the rules say, except where a rule speaks of them: private
// ones need a network of the rule's own inside that range (allow 10.1.0.0/16) or a name marked `local`; loopback,
// link-local, metadata, multicast and reserved ones need the network. `allow *`, `allow 0.0.0.0/0` and a name that
// merely happens to resolve to such a place are not enough.
//
// A rule with methods or paths is about requests: connections to its name are looked into (interception.h), and each
// request in them is decided by the first rule that is about the name and fits it. One that allows lets the connection
// begin; one that denies lets it begin, too, and takes those requests out of what later rules allow. A path is a prefix
// of whole segments: /user is for /user and /user/keys, and not for /users.
//
// A ceiling is a second policy above: both must allow.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "gate/address.h"

namespace isola::gate {

enum class Action : uint8_t { deny, allow };

// Ranges, both ends included; none at all means every port.
struct Ports {
  std::vector<std::pair<uint16_t, uint16_t>> ranges;
  bool all() const { return ranges.empty(); }
  bool contain(uint16_t port) const;
  // Whether somebody wrote this very port down (a rule without ports did not).
  bool name(uint16_t port) const { return !all() && contain(port); }
  bool operator==(const Ports&) const = default;
};

struct Rule {
  enum class Kind : uint8_t { any, name, below, network };
  Action action = Action::deny;
  Kind kind = Kind::any;
  std::string name;  // kinds name and below, in normal form
  std::optional<Network> network;
  Ports ports;
  bool local = false;
  std::vector<std::string> methods, paths;  // of requests; empty: every one

  bool matches_name(std::string_view other) const;
  bool is_about_requests() const { return !methods.empty() || !paths.empty(); }
  bool fits(std::string_view method, std::string_view path) const;  // a path in normal form (request_path.h)
  bool operator==(const Rule&) const = default;
};

// 0: nothing is said, and kStandardLimits hold.
struct Limits {
  uint32_t connections = 0;
  uint32_t connections_per_second = 0;
  uint64_t bytes_per_second = 0;  // both directions together
  bool operator==(const Limits&) const = default;
};

inline constexpr Limits kStandardLimits{.connections = 1024, .connections_per_second = 200, .bytes_per_second = 0};

struct Policy {
  std::vector<Rule> rules;
  Action otherwise = Action::deny;
  bool learn = false;
  Limits limits;
  bool operator==(const Policy&) const = default;

  static Policy none() { return {}; }
  static Policy all() { return {.otherwise = Action::allow}; }

  // Whether there are names that it denies: then nobody may hide a name from us.
  bool restricts_names() const;
};

inline constexpr size_t kMaxRules = 4096, kMaxPolicyText = 48 << 10;

Result<Policy> parse_policy(std::string_view text);
std::string to_text(const Policy& policy);
std::string to_text(const Rule& rule);
// {"default": "deny", "rules": [{"action": "allow", "to": "*.example.net", "ports": "443,8000-8100", "local": true,
//                                "methods": ["GET"], "paths": ["/repos/"]}],
//  "limits": {"connections": 512, "connections_per_second": 100, "bytes_per_second": 1000000}, "learn": false}
Result<Policy> parse_policy_json(std::string_view text);
std::string to_json(const Policy& policy);
// One rule from its parts, as both forms have them ("allow", "*.example.net", "443", false).
Result<Rule> make_rule(std::string_view action, std::string_view to, std::string_view ports, bool local);
// The same for ports alone, and for the requests that a rule is about. Normal forms, or an error that says what is odd.
Result<Ports> make_ports(std::string_view text);
Result<void> set_requests(Rule& rule, std::vector<std::string> methods, std::vector<std::string> paths);

// Why something was refused (or `allowed`). The spelling in to_string() is for logs, API and ledger.
enum class Reason : uint8_t {
  allowed,
  learnt,           // allowed because the policy learns
  policy,           // a rule or the default says no
  ceiling,          // the project's ceiling says no
  place,            // somebody's inside
  own_address,      // the host itself
  not_a_name,       // odd bytes, too long, an address in some notation
  public_resolver,  // DNS over HTTPS or TLS under a policy of names
  unknown_address,  // in the synthetic range, but not given to this sandbox for a name
  dns_rate,         // too many questions, or too many different names
  no_such_name,     // it does not exist
  unresolvable,     // the upstream servers do not answer
  unreachable,      // the destination does not
  sni_missing,      // TLS without a server name
  sni_differs,      // TLS for another name
  ech,              // TLS that hides its name
  bad_hello,        // a TLS ClientHello that cannot be read
  too_many_connections,
  too_fast,        // new connections per second
  policy_changed,  // cut by a new policy
  // Of connections that are looked into:
  request,          // no rule lets this method and path through
  bad_request,      // cannot be read, or could be read in two ways
  authority,        // a request for another host than the connection is for
  cleartext,        // a credential is for TLS alone
  placeholder,      // that stands for a credential, where it does not belong
  upstream_tls,     // the server did not prove who it is
  binding_expired,  // the credential's time is over
  revoked,          // a credential that was in use here is gone
  locked,           // the vault's key is not here yet
  encoded,          // an answer that cannot be searched for the credential that was sent
  bad_answer,       // an answer that cannot be read, or could be read in two ways
  count_,
};
std::string_view to_string(Reason reason);

struct Verdict {
  Reason reason = Reason::policy;
  std::string rule;  // the text of what decided
  bool allowed() const { return reason == Reason::allowed || reason == Reason::learnt; }
};

// A sandbox's policy under its project's ceiling. Immutable and shared: a flow keeps the one that it was let through
// by.
class Egress {
 public:
  // No ceiling is not the same as one that allows everything: a ceiling opens inside places only by speaking of them.
  explicit Egress(Policy policy, std::optional<Policy> ceiling = std::nullopt);

  // May the name be looked up at all: is there a port on which it could be reached?
  Verdict may_resolve(std::string_view name) const;
  // A connection by name, before its address is known.
  Verdict connect_name(std::string_view name, uint16_t port) const;
  // The address that a connection really goes to; `name` is empty for a literal address.
  Verdict connect_address(std::string_view name, const Address& address, uint16_t port) const;
  // A rule allows exactly this address. Only then may it be one of the host's own.
  bool names_address(const Address& address, uint16_t port) const;
  // Connections to this name are looked into, as there are rules about requests there.
  bool inspects(std::string_view name, uint16_t port) const;
  // One request on such a connection.
  Verdict request(std::string_view name, const Address& address, uint16_t port, std::string_view method,
                  std::string_view path) const;
  // TLS to this name must say this name.
  bool verifies_tls() const { return verifies_tls_; }
  // A rule about networks allows this literal address: then it does not matter which name is asked for there.
  bool allows_network(const Address& address, uint16_t port) const;
  // The name of the wildcard that lets this name through, "wild.example" of *.wild.example; empty: it is none.
  std::string wildcard_of(std::string_view name) const;
  // The sandbox may have at most what both say. No bytes_per_second: no limit.
  Limits limits() const;
  const Policy& policy() const { return policy_; }

 private:
  Policy policy_;
  std::optional<Policy> ceiling_;
  bool verifies_tls_;
};

}  // namespace isola::gate
