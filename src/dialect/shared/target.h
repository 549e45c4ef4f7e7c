// Which port of which sandbox a name means.
//
//   by_name("8000-i0123456789abcdefghij.example.org", "example.org")  →  {"i0123456789abcdefghij", 8000}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace isola::dialect {

inline constexpr std::string_view kTokenPrefix = "ea_";

struct Target {
  std::string id;
  uint16_t port = 0;
};

// 1 to 65535, in digits alone.
std::optional<uint16_t> port_number(std::string_view text);

// <port>-<id>.<domain>. `id_of` takes the id out of what a dialect writes in its place; none: that is the id.
using IdOf = std::string (*)(std::string_view);
std::optional<Target> by_name(std::string_view host, std::string_view domain, IdOf id_of = nullptr);

// The sandbox that an access token of the E2B dialect, "ea_i3k9…_5f0c…", is for: a hint where to look, not a proof.
// Empty: it is none of those.
std::string token_names(std::string_view token);

}  // namespace isola::dialect
