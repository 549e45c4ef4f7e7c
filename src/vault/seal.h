// Values at rest: sealed to the vault's public key, opened with its secret one.
//
//   auto pair = KeyPair::make();
//   std::string sealed = seal(pair->open_key(), "hunter2");
//   Secret value = *open_sealed(*pair, sealed);
//
// Whoever takes values in (the server) has the public key alone: it can seal, and never read back. The secret key is
// with the launcher, in locked memory, and with the gate that it gives it to.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::vault {

// Bytes in memory that is locked, not part of core dumps, and wiped when it goes. Moves, never copies.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string_view bytes);
  ~Secret();
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  std::string_view view() const { return {data_, size_}; }
  bool empty() const { return size_ == 0; }
  Secret copy() const { return Secret(view()); }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

inline constexpr size_t kKeyBytes = 32;
using PublicKey = std::array<uint8_t, kKeyBytes>;

class KeyPair {
 public:
  static Result<KeyPair> make();
  // From the 32 bytes of a secret key; the public one follows from it.
  static Result<KeyPair> from(Secret secret_key);
  const PublicKey& open_key() const { return public_; }
  const Secret& secret_key() const { return secret_; }
  // 32 bytes that follow from the key and these words alone: for keys that must be the same after a restart.
  Secret derive(std::string_view purpose, std::string_view subject) const;

 private:
  KeyPair() = default;
  PublicKey public_{};
  Secret secret_;
};

Result<std::string> seal(const PublicKey& key, std::string_view value);
Result<Secret> open_sealed(const KeyPair& key, std::string_view sealed);

}  // namespace isola::vault
