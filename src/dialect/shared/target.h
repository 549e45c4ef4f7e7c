// Which port of which sandbox a name means.
//
//   by_name("8000-i0123456789abcdefghij.example.org", "example.org")  →  {"i0123456789abcdefghij", 8000}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace isola::dialect {

struct Target {
  std::string id;
  uint16_t port = 0;
};

// 1 to 65535, in digits alone.
std::optional<uint16_t> port_number(std::string_view text);

// <port>-<id>.<domain>. `id_of` takes the id out of what a dialect writes in its place; none: that is the id.
using IdOf = std::string (*)(std::string_view);
std::optional<Target> by_name(std::string_view host, std::string_view domain, IdOf id_of = nullptr);

}  // namespace isola::dialect
