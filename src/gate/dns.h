// DNS messages, read and written without a socket: as much as a resolver needs that answers with one address.
//
//   DnsQuestion q;
//   switch (parse_query(bytes, q)) {
//     case QueryState::good:   reply = build_reply(q, {.code = DnsCode::ok, .address = a, .ttl = 30});
//     case QueryState::answer_error: …   // readable enough to be answered with an error
//     case QueryState::ignore: …         // an answer, or too short to have an id
//   }
//
// A query is one question of class IN in plain labels; no compression is needed in one, so none is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gate/address.h"

namespace isola::gate {

enum class DnsCode : uint8_t {
  ok = 0,
  format_error = 1,
  server_failure = 2,
  no_such_name = 3,
  not_implemented = 4,
  refused = 5
};

enum class DnsType : uint16_t { a = 1, ptr = 12, aaaa = 28, opt = 41, svcb = 64, https = 65, any = 255 };

struct DnsQuestion {
  uint16_t id = 0;
  uint16_t type = 0;
  bool recursion_desired = false;
  bool edns = false;
  std::string name;                         // in normal form, if it is one
  bool is_name = false;                     // else it holds odd bytes, is too long, is the root …
  std::string raw;                          // the question's bytes, to be repeated in the reply
  DnsCode problem = DnsCode::format_error;  // for QueryState::answer_error
};

enum class QueryState : uint8_t { good, answer_error, ignore };

inline constexpr size_t kMaxDnsMessage = 4096;  // of a query over TCP; over UDP 512 is what anybody sends

QueryState parse_query(std::string_view bytes, DnsQuestion& out);

struct DnsReply {
  DnsCode code = DnsCode::ok;
  std::optional<Address> address;  // none: no such record (code ok), or an error
  std::string pointer;             // for PTR: the name
  uint32_t ttl = 0;
  std::string why;  // said with an Extended DNS Error if the asker understands EDNS
};

// Never longer than 512 bytes.
std::string build_reply(const DnsQuestion& question, const DnsReply& reply);

// "1.2.0.192.in-addr.arpa" → 192.0.2.1; the same for ip6.arpa.
std::optional<Address> address_of_pointer(std::string_view name);

// DNS over TCP: two bytes of length in front of each message. Takes the first whole message off the front of `stream`;
// nullopt: not all of it is there. A length above kMaxDnsMessage makes the stream unusable: an error.
Result<std::optional<std::string>> take_framed(std::string& stream);
std::string framed(std::string_view message);

}  // namespace isola::gate
