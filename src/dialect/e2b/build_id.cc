#include "dialect/e2b/build_id.h"

#include <fmt/format.h>

#include <cstdint>

namespace isola::e2b {

namespace {

constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
constexpr size_t kLetters = 20;  // 36^20 is less than 2^104
__extension__ using Number = unsigned __int128;

}  // namespace

std::string uuid_of(std::string_view id) {
  if (id.size() != kLetters + 1 || id[0] != 'b') return std::string(id);
  Number number = 0;
  for (char c : id.substr(1)) {
    size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) return std::string(id);
    number = number * kDigits.size() + digit;
  }
  std::string hex = fmt::format("{:016x}{:016x}", static_cast<uint64_t>(number >> 64), static_cast<uint64_t>(number));
  return uuid_of_digest(hex);
}

std::string uuid_of_digest(std::string_view hex) {
  if (hex.size() < 32) return std::string(hex);
  std::string uuid(hex.substr(0, 32));
  for (size_t at : {20, 16, 12, 8}) uuid.insert(at, "-");
  return uuid;
}

std::string build_id(std::string_view uuid) {
  Number number = 0;
  size_t digits = 0;
  for (char c : uuid) {
    if (c == '-') continue;
    size_t digit = kDigits.substr(0, 16).find(c);
    if (digit == kDigits.npos || ++digits > 32) return std::string(uuid);
    number = number * 16 + digit;
  }
  if (digits != 32) return std::string(uuid);
  std::string id(kLetters + 1, 'b');
  for (size_t at = kLetters; at > 0; --at, number /= kDigits.size())
    id[at] = kDigits[static_cast<size_t>(number % kDigits.size())];
  return number == 0 ? id : std::string(uuid);
}

}  // namespace isola::e2b
