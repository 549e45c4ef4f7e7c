// What E2B says about a sandbox's network, made into our ordered policy.
//
//   {"allow_internet_access": true}                                          default allow
//   {"network": {"allowOut": ["api.x.org"], "denyOut": ["0.0.0.0/0"]}}       allow api.x.org · deny * · default allow
//
// There the internet is open unless something is said, and an allow wins over every deny: so the allows come first.
// Private places stay shut unless named, and the project's ceiling stands above all of it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "dialect/e2b/rules.h"
#include "store/records.h"

namespace isola::e2b {

// What this dialect has to remember of a sandbox, kept as one label among its metadata and never shown as one.
struct Notes {
  std::optional<bool> internet;  // as it was asked for
  std::string network;           // the object that the caller gave, as JSON, without values; empty: none
  std::string mask_host;         // the Host that services inside get to see; ${PORT} in it is the port
  std::string iam = {};          // the tokens of its identity that rules may name, as they were given; empty: none
  std::vector<uint16_t> https_ports = {};  // that are asked with TLS
  std::string asked = {};                  // the SHA-256 of the create's body, where it came with an Idempotency-Key

  std::string to_text() const;
  static std::optional<Notes> of(const store::Labels& metadata);  // nothing: not made through this dialect
  bool have_rules() const;
};
inline constexpr const char* kNotesLabel = "isola:e2b";
// Metadata as this dialect's callers know it.
store::Labels without_notes(store::Labels metadata);

struct Network {
  std::string policy;  // as text
  Rules rules;         // what is set in requests on their way out
  bool public_ports = true;
  bool has_identity = false;  // it was asked for: tokens that say who the sandbox is
  Notes notes;
};

// Of the body of a create (`network` is a part of it), and of an update (it is the whole).
Result<Network> read_network(const nlohmann::json& body);
Result<Network> read_network_update(const nlohmann::json& body, const Notes& before);

}  // namespace isola::e2b
