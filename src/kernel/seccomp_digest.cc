#include "kernel/seccomp_digest.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>

namespace isola::kernel {

namespace {

// The standard defines its constants as the first 32 fractional bits of the square roots (start values) and cube roots
// (round constants) of the first primes. Computing them in integers leaves no table to mistype.
constexpr uint32_t root_bits(uint64_t prime, int power) {
  // Largest x with x^power <= prime * 2^(32*power); its low 32 bits are the fraction's.
  using Wide = unsigned __int128;
  uint64_t low = 0, high = 1ULL << 36;
  while (high - low > 1) {
    uint64_t middle = (low + high) / 2;
    // Compare by division, so that the cube does not overflow 128 bits.
    Wide target = static_cast<Wide>(prime) << (power == 2 ? 64 : 96);
    Wide square = static_cast<Wide>(middle) * middle;
    bool fits = power == 2 ? square <= target : square <= target / middle;
    (fits ? low : high) = middle;
  }
  return static_cast<uint32_t>(low);
}

template <size_t N>
constexpr std::array<uint32_t, N> roots(int power) {
  std::array<uint32_t, N> out{};
  size_t n = 0;
  for (uint64_t candidate = 2; n < N; ++candidate) {
    bool prime = true;
    for (uint64_t d = 2; d * d <= candidate; ++d) prime = prime && candidate % d != 0;
    if (prime) out[n++] = root_bits(candidate, power);
  }
  return out;
}

constexpr auto kStart = roots<8>(2);
constexpr auto kRounds = roots<64>(3);
static_assert(kStart[0] == 0x6a09e667 && kRounds[63] == 0xc67178f2);

void mix(std::array<uint32_t, 8>& state, const unsigned char* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i)
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 | uint32_t{block[4 * i + 2]} << 8 |
           block[4 * i + 3];
  for (size_t i = 16; i < 64; ++i) {
    uint32_t a = w[i - 15], b = w[i - 2];
    uint32_t s0 = std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3);
    uint32_t s1 = std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto v = state;
  for (size_t i = 0; i < 64; ++i) {
    uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
    uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
    uint32_t t1 = v[7] + s1 + choice + kRounds[i] + w[i];
    uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
    uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    v = {t1 + s0 + majority, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
  }
  for (size_t i = 0; i < 8; ++i) state[i] += v[i];
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  std::string padded(bytes);
  padded.push_back('\x80');
  while (padded.size() % 64 != 56) padded.push_back('\0');
  for (int shift = 56; shift >= 0; shift -= 8)
    padded.push_back(static_cast<char>((static_cast<uint64_t>(bytes.size()) * 8) >> shift));
  auto state = kStart;
  for (size_t at = 0; at < padded.size(); at += 64)
    mix(state, reinterpret_cast<const unsigned char*>(padded.data()) + at);
  std::string out;
  for (uint32_t word : state)
    for (int shift = 28; shift >= 0; shift -= 4) out.push_back("0123456789abcdef"[(word >> shift) & 15]);
  return out;
}

std::string remembered_sha256_hex(std::string_view bytes) {
  constexpr size_t kMost = 256;  // we have some forty; whoever sees others begins anew
  thread_local std::map<std::string, std::string, std::less<>> known;
  if (auto it = known.find(bytes); it != known.end()) return it->second;
  if (known.size() >= kMost) known.clear();
  return known.emplace(bytes, sha256_hex(bytes)).first->second;
}

}  // namespace isola::kernel
