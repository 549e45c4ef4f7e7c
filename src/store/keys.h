// API keys: `e2b_` and 40 hex digits, the form that every client accepts. Shown once, kept only as SHA-256: 160 random
// bits cannot be guessed from it, so that a slow password hash would only slow every request.
//
//   ISOLA_TRY(auto made, make_key("default", "laptop", Scope::use, now));
//   ISOLA_CHECK(store.insert_key(made.record));
//   show_once(made.secret);
//   …
//   ISOLA_TRY(auto who, authenticate(store, text_of_the_request));   // denied: wrong, unknown or revoked
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "store/records.h"
#include "store/store.h"

namespace isola::store {

struct NewKey {
  std::string secret;
  KeyRecord record;
};

Result<NewKey> make_key(std::string project, std::string name, Scope scope, Millis now);
bool is_key(std::string_view text);
Result<std::string> hash_key(std::string_view text);
// Whose key this is. Every refusal is `denied` with the same sentence: it does not say which part was wrong.
Result<KeyRecord> authenticate(Store& store, std::string_view text);
// Whether a key of scope `has` may do what needs `wanted`.
inline bool allows(Scope has, Scope wanted) { return has >= wanted; }

}  // namespace isola::store
