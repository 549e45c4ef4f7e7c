#include "dialect/shared/target.h"

#include "base/ids.h"

namespace isola::dialect {

std::optional<uint16_t> port_number(std::string_view text) {
  unsigned number = 0;
  if (text.empty() || text.size() > 5) return std::nullopt;
  for (char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + static_cast<unsigned>(c - '0');
  }
  if (number < 1 || number > 65535) return std::nullopt;
  return static_cast<uint16_t>(number);
}

std::optional<Target> by_name(std::string_view host, std::string_view domain, IdOf id_of) {
  if (domain.empty() || host.size() <= domain.size() + 1 || !host.ends_with(domain)) return std::nullopt;
  host.remove_suffix(domain.size());
  if (host.back() != '.') return std::nullopt;
  host.remove_suffix(1);
  auto dash = host.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  auto port = port_number(host.substr(0, dash));
  auto written = host.substr(dash + 1);
  std::string id = id_of ? id_of(written) : std::string(written);
  if (!port || !is_sandbox_id(id)) return std::nullopt;
  return Target{std::move(id), *port};
}

std::string token_names(std::string_view token) {
  constexpr size_t kIdSize = 21;
  if (!token.starts_with(kTokenPrefix) || token.size() < kTokenPrefix.size() + kIdSize) return {};
  auto id = token.substr(kTokenPrefix.size(), kIdSize);
  return is_sandbox_id(id) ? std::string(id) : std::string();
}

}  // namespace isola::dialect
