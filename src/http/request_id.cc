#include "http/request_id.h"

#include <sys/random.h>

#include <cstdint>
#include <ctime>

namespace isola::http {

namespace {

bool harmless(std::string_view id) {
  if (id.empty() || id.size() > 64) return false;
  for (char c : id) {
    bool fine =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
    if (!fine) return false;
  }
  return true;
}

}  // namespace

uint64_t random_u64() {
  // splitmix64 from a random start: a system call per thread instead of per request.
  thread_local uint64_t state = [] {
    uint64_t seed = 0;
    if (::getrandom(&seed, sizeof seed, 0) != sizeof seed) seed = static_cast<uint64_t>(std::time(nullptr));
    return seed;
  }();
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::string request_id(std::string_view from_client) {
  if (harmless(from_client)) return std::string(from_client);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string id(16, '0');
  uint64_t bits = random_u64();
  for (char& c : id) {
    c = kDigits[bits & 15];
    bits >>= 4;
  }
  return id;
}

}  // namespace isola::http
