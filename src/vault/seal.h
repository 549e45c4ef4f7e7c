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

// Bytes in memory that is locked, not part of core dumps, not inherited by a fork (which sees zeros), and wiped when it
// goes. Moves, never copies.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string_view bytes);
  // So many zeros, to be written to: a value that is read or computed never stands anywhere else.
  static Secret of_size(size_t size);
  ~Secret();
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  std::string_view view() const { return {data_, size_}; }
  char* data() { return data_; }
  size_t size() const { return size_; }
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

// What was sealed names its key, so that one for another key is told apart from one that was damaged:
// Code::not_found, and Code::corrupt.
Result<std::string> seal(const PublicKey& key, std::string_view value);
Result<Secret> open_sealed(const KeyPair& key, std::string_view sealed);
bool is_sealed_to(const PublicKey& key, std::string_view sealed);

inline constexpr size_t kSealBytes = 8 + 48;  // more than the value has

// Overwritten, whatever the optimizer thinks of it; then empty.
void wipe(std::string& text);

std::string to_base64(std::string_view bytes);
Result<std::string> from_base64(std::string_view text);

}  // namespace isola::vault
