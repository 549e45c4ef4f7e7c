// Builds by the names that E2B's clients accept for them: some read every id of a build as a UUID.
//
//   uuid_of("b8q8tgdu11r0b3k13f4n9")                  "0011d5f4-…"
//   build_id("0011d5f4-…")                            "b8q8tgdu11r0b3k13f4n9"
#pragma once

#include <string>
#include <string_view>

namespace isola::e2b {

// The number that an id's 20 letters and digits are, as a UUID. What is no such id stays as it is.
std::string uuid_of(std::string_view id);
std::string build_id(std::string_view uuid);

// A UUID out of the first 32 of many hex digits; fewer stay as they are.
std::string uuid_of_digest(std::string_view hex);

}  // namespace isola::e2b
