// The vault's keys in their file, as they are or under a passphrase.
//
//   ISOLA_TRY(KeyFile file, KeyFile::open_or_make(dir + "/vault/key"));
//   if (file.locked()) ISOLA_CHECK(file.unlock(derive_lock(passphrase, file.lock())));   // derive_lock takes a second
//   use(file.keys()->current);
//
// There are two keys and sometimes three: `current`, which values are sealed to at rest; `gate`, which the gate holds
// and the values of granted bindings are sealed to for it; and `old`, the one before, while a rotation is under way.
// The file is always replaced as a whole: a crash leaves the state before or after.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "vault/seal.h"

namespace isola::vault {

struct Keys {
  KeyPair current, gate;
  std::optional<KeyPair> old;
};

// How a passphrase becomes the key that the file is encrypted with (Argon2id).
struct Lock {
  std::array<uint8_t, 16> salt{};
  uint64_t rounds = 0, memory = 0;  // bytes
  bool operator==(const Lock&) const = default;
};
Lock new_lock();
// Slow on purpose, and takes `memory`: for a process that has the time.
Result<Secret> derive_lock(std::string_view passphrase, const Lock& lock);

class KeyFile {
 public:
  // A file that is not there is made, with new keys and without a passphrase.
  static Result<KeyFile> open_or_make(const std::string& path);

  bool locked() const { return !keys_; }  // nothing can be opened until unlock()
  bool has_passphrase() const { return lock_ != Lock{}; }
  bool rotating() const { return rotating_; }
  const Lock& lock() const { return lock_; }
  const PublicKey& open_key() const { return open_key_; }  // of `current`: known also while it is locked
  const Keys* keys() const { return keys_ ? &*keys_ : nullptr; }

  // denied: not the passphrase.
  Result<void> unlock(Secret derived);
  // From now on under this passphrase. Only when it is not locked, as with all that follow.
  Result<void> set_passphrase(const Lock& lock, Secret derived);
  Result<void> remove_passphrase();
  // A new current key; the one before stays as `old` until end_rotation(). One that is under way goes on.
  Result<void> begin_rotation();
  Result<void> end_rotation();

 private:
  KeyFile() = default;
  Result<void> save() const;
  Result<void> read(std::string_view bytes);
  Secret packed() const;
  static Result<Keys> unpacked(std::string_view bytes);

  std::string path_;
  Lock lock_;
  PublicKey open_key_{};
  bool rotating_ = false;
  std::string box_;  // while it is locked
  Secret derived_;   // while it has a passphrase and is not locked
  std::optional<Keys> keys_;
};

}  // namespace isola::vault
