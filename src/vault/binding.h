// A binding says: this secret goes out to these names, in this place of a request, and nowhere else.
//
//   {"id": "b4k…", "secret": "github", "names": ["api.github.example"], "ports": "443", "methods": ["GET"],
//    "path_prefix": "/repos/", "place": "bearer"}
//
// Plain data, without the value: what the store keeps, the API shows and the ledger names. On its way to the gate
// (binding_wire.h) it has the value with it as `sealed`, which only the holder of the vault's key can open (seal.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace isola::vault {

// Where the value goes in a request.
enum class Place : uint8_t {
  bearer,  // Authorization: Bearer VALUE
  basic,   // Authorization: Basic base64(field:VALUE)
  header,  // field: format with {} replaced by VALUE
  query,   // ?field=VALUE
  sigv4,   // the request is signed anew: VALUE is "ACCESS_KEY_ID:SECRET_ACCESS_KEY[:SESSION_TOKEN]", field
           // "region/service"
};
std::string_view to_string(Place place);
Result<Place> parse_place(std::string_view word);
// Whether the value stands in a header as it is: with a line's end in it one header would become two.
bool stands_in_header(Place place);

struct Binding {
  std::string id;
  std::string secret;                // its name, never its value
  std::vector<std::string> names;    // as in a policy: api.example.org, *.example.net
  std::string ports;                 // as in a policy: 443,8000-8100; empty: 443
  std::vector<std::string> methods;  // empty: every one
  std::string path_prefix;           // empty: every path
  Place place = Place::bearer;
  std::string field;    // the header, the query parameter, the user of `basic`
  std::string format;   // of `header`; empty: the value alone
  bool blocks = false;  // a stream of the sandbox with the value in it ends (`scan`); else the value is blotted out
  // Stands for the value inside the sandbox; a request that carries it elsewhere is refused, at every name: all TLS of
  // the sandbox is looked into for that, unless somebody wants it otherwise.
  std::string placeholder;
  bool unguarded = false;
  std::string audience;  // of a secret that is a token of the sandbox's identity: whom it is for
  int64_t expires = 0;   // milliseconds since 1970; 0: with its owner
  std::string actor;     // on whose behalf it was granted
  // Only between server, launcher and gate:
  bool unsearched = false;  // its value may be one that cannot be searched for: no secret of the vault's
  std::string sealed;
  std::string identity;  // JSON: what the server says of the sandbox, for such a token
  // Of a value that was made (minting.h): until when it may be used, from when on another is due, its name, and what it
  // was made of. Milliseconds since 1970; 0: it lasts.
  int64_t until = 0, due = 0;
  std::string serial, mark;
  std::string print;  // of the value that was sealed for the gate: the same for the same value, and says nothing of it
  bool operator==(const Binding&) const = default;
};

inline constexpr size_t kMaxBindings = 256;  // of one sandbox
// Milliseconds for which a token that is over is still searched for: clocks differ.
inline constexpr int64_t kStaysKnown = 600'000;
// Why a grant is refused for good.
inline constexpr const char* kUnsearchable =
    "its value is too short to be searched for in what comes back: it needs 6 bytes that are not all the same";

inline constexpr const char* kUnsendable =
    "its value has a line's end or another character that no header can have: the places basic and query can";
inline bool is_refused_for_good(std::string_view why) { return why == kUnsearchable || why == kUnsendable; }

// As callers write it and the store keeps it, without what goes only between our processes (binding_wire.h has that).
// Unknown fields are refused by their name.
Result<Binding> parse_binding(std::string_view json);
std::string to_json(const Binding& binding);
// Without its value, which could not be opened: whoever gets it refuses what it is for, and lets nothing by unseen.
Binding without_value(Binding binding);
// What both readers, of JSON and of what our processes say, ask of a binding. `*` alone is no name: a credential goes
// to somebody.
Result<void> check_binding(const Binding& binding);
// 1 to 63 of letters, digits, '-', '_' and '.', beginning with a letter or a digit.
bool is_secret_name(std::string_view name);

}  // namespace isola::vault
