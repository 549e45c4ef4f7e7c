#include "vault/key_file.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "base/codec.h"
#include "base/file.h"
#include "vault/bytes.h"

namespace isola::vault {

namespace {

constexpr std::string_view kMagic = "ISOLAVK1";
constexpr size_t kMaxFile = 4096;

std::unexpected<Error> locked_error() {
  return fail(Code::unavailable, "the vault is locked: `isola vault unlock` opens it");
}

std::string_view view_of(const auto& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

template <size_t N>
bool copy_to(std::array<uint8_t, N>& into, std::string_view from) {
  if (from.size() != N) return false;
  std::memcpy(into.data(), from.data(), N);
  return true;
}

// What is written must not stand in memory that stays.
class Wiped {
 public:
  explicit Wiped(std::string text) : text_(std::move(text)) {}
  ~Wiped() { wipe(text_); }
  Wiped(const Wiped&) = delete;
  Wiped& operator=(const Wiped&) = delete;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

Lock new_lock() {
  Lock lock{.rounds = crypto_pwhash_OPSLIMIT_MODERATE, .memory = crypto_pwhash_MEMLIMIT_MODERATE};
  if (::sodium_init() < 0) std::abort();
  ::randombytes_buf(lock.salt.data(), lock.salt.size());
  return lock;
}

Result<Secret> derive_lock(std::string_view passphrase, const Lock& lock) {
  static_assert(std::tuple_size_v<decltype(Lock::salt)> == crypto_pwhash_SALTBYTES);
  if (::sodium_init() < 0) std::abort();
  if (passphrase.empty()) return fail(Code::invalid, "an empty passphrase protects nothing");
  Secret derived = Secret::of_size(crypto_secretbox_KEYBYTES);
  if (::crypto_pwhash(reinterpret_cast<unsigned char*>(derived.data()), derived.size(), passphrase.data(),
                      passphrase.size(), lock.salt.data(), lock.rounds, lock.memory, crypto_pwhash_ALG_ARGON2ID13) != 0)
    return fail(Code::exhausted, "there is not enough memory to check the passphrase");
  return derived;
}

Result<KeyFile> KeyFile::open_or_make(const std::string& path) {
  KeyFile file;
  file.path_ = path;
  struct stat status{};
  if (::lstat(path.c_str(), &status) == 0) {
    // Whoever else could read or write it has had the chance: then it protects nothing, and nobody is told that it
    // does.
    if (!S_ISREG(status.st_mode) || (status.st_mode & 077) != 0 || status.st_uid != ::geteuid())
      return fail(Code::denied, path + " must be a file of its owner alone (mode 0600, owned by root)");
    auto bytes = read_file(path, kMaxFile);
    if (!bytes) return std::unexpected(bytes.error());
    auto read = file.read(*bytes);
    wipe(*bytes);
    if (!read) return std::unexpected(read.error());
    return file;
  }
  if (errno != ENOENT) return sys_error("cannot look at " + path);
  ISOLA_CHECK(make_dirs(path.substr(0, path.rfind('/')), 0700));
  ISOLA_TRY(KeyPair current, KeyPair::make());
  ISOLA_TRY(KeyPair gate, KeyPair::make());
  file.keys_ = Keys{std::move(current), std::move(gate), std::nullopt};
  ISOLA_CHECK(file.save());
  file.open_key_ = file.keys_->current.open_key();
  return file;
}

Secret KeyFile::packed() const {
  Secret all = Secret::of_size(kKeyBytes * (keys_->old ? 3 : 2));
  char* at = all.data();
  for (const KeyPair* key : {&keys_->current, &keys_->gate, keys_->old ? &*keys_->old : nullptr}) {
    if (!key) break;
    std::memcpy(at, key->secret_key().view().data(), kKeyBytes);
    at += kKeyBytes;
  }
  return all;
}

Result<Keys> KeyFile::unpacked(std::string_view bytes) {
  if (bytes.size() != 2 * kKeyBytes && bytes.size() != 3 * kKeyBytes)
    return fail(Code::corrupt, "the vault's key file is damaged");
  ISOLA_TRY(KeyPair current, KeyPair::from(Secret(bytes.substr(0, kKeyBytes))));
  ISOLA_TRY(KeyPair gate, KeyPair::from(Secret(bytes.substr(kKeyBytes, kKeyBytes))));
  Keys keys{std::move(current), std::move(gate), std::nullopt};
  if (bytes.size() == 3 * kKeyBytes) {
    ISOLA_TRY(KeyPair old, KeyPair::from(Secret(bytes.substr(2 * kKeyBytes))));
    keys.old = std::move(old);
  }
  return keys;
}

// {magic, u8 rotating, str public key, u8 has a passphrase}, then the keys; or salt, rounds, memory and the box.
Result<void> KeyFile::save() const {
  Writer out;
  out.bytes(kMagic);
  out.u8(keys_->old.has_value());
  out.str(view_of(keys_->current.open_key()));
  out.u8(has_passphrase());
  Secret plain = packed();
  if (has_passphrase()) {
    std::array<uint8_t, crypto_secretbox_NONCEBYTES> nonce;
    ::randombytes_buf(nonce.data(), nonce.size());
    std::string box(plain.size() + crypto_secretbox_MACBYTES, '\0');
    ::crypto_secretbox_easy(reinterpret_cast<unsigned char*>(box.data()), bytes_of(plain.view()), plain.size(),
                            nonce.data(), bytes_of(derived_.view()));
    out.str(view_of(lock_.salt));
    out.u64(lock_.rounds);
    out.u64(lock_.memory);
    out.str(std::string(view_of(nonce)) + box);
  } else {
    out.str(plain.view());
  }
  Wiped text(out.take());
  return replace_file(path_, text.text(), 0600);
}

Result<void> KeyFile::read(std::string_view bytes) {
  auto damaged = [&] { return fail(Code::corrupt, "the vault's key file " + path_ + " is damaged"); };
  if (!bytes.starts_with(kMagic)) return damaged();
  Reader in(bytes.substr(kMagic.size()));
  rotating_ = in.u8() != 0;
  if (!copy_to(open_key_, in.view())) return damaged();
  if (in.u8() == 0) {
    auto keys = unpacked(in.view());
    if (!in.done() || !keys || keys->current.open_key() != open_key_) return damaged();
    keys_ = std::move(*keys);
    return {};
  }
  bool salted = copy_to(lock_.salt, in.view());
  lock_.rounds = in.u64();
  lock_.memory = in.u64();
  box_ = in.str();
  if (!in.done() || !salted || box_.size() < crypto_secretbox_NONCEBYTES + crypto_secretbox_MACBYTES) return damaged();
  return {};
}

Result<void> KeyFile::unlock(Secret derived) {
  if (!locked()) return {};
  std::string_view nonce = std::string_view(box_).substr(0, crypto_secretbox_NONCEBYTES);
  std::string_view box = std::string_view(box_).substr(crypto_secretbox_NONCEBYTES);
  Secret plain = Secret::of_size(box.size() - crypto_secretbox_MACBYTES);
  if (derived.size() != crypto_secretbox_KEYBYTES ||
      ::crypto_secretbox_open_easy(reinterpret_cast<unsigned char*>(plain.data()), bytes_of(box), box.size(),
                                   bytes_of(nonce), bytes_of(derived.view())) != 0)
    return fail(Code::denied, "that is not the vault's passphrase");
  ISOLA_TRY(Keys keys, unpacked(plain.view()));
  // The public key stands outside of the box: somebody who changed it would have values sealed to a key of his own.
  if (keys.current.open_key() != open_key_)
    return fail(Code::corrupt, "the vault's key file " + path_ + " was changed");
  keys_ = std::move(keys);
  derived_ = std::move(derived);
  box_.clear();
  return {};
}

Result<void> KeyFile::set_passphrase(const Lock& lock, Secret derived) {
  if (locked()) return locked_error();
  if (derived.size() != crypto_secretbox_KEYBYTES) return fail(Code::invalid, "no key follows from that passphrase");
  Lock before = std::exchange(lock_, lock);
  std::swap(derived_, derived);
  auto saved = save();
  if (saved) return saved;
  lock_ = before;
  std::swap(derived_, derived);
  return saved;
}

Result<void> KeyFile::remove_passphrase() {
  if (locked()) return locked_error();
  Lock before = std::exchange(lock_, Lock{});
  auto saved = save();
  if (!saved) lock_ = before;
  if (saved) derived_ = Secret();
  return saved;
}

Result<void> KeyFile::begin_rotation() {
  if (locked()) return locked_error();
  if (keys_->old) return {};
  ISOLA_TRY(KeyPair fresh, KeyPair::make());
  std::swap(keys_->current, fresh);
  keys_->old = std::move(fresh);
  if (auto saved = save(); !saved) {
    std::swap(keys_->current, *keys_->old);
    keys_->old.reset();
    return saved;
  }
  open_key_ = keys_->current.open_key();
  rotating_ = true;
  return {};
}

Result<void> KeyFile::end_rotation() {
  if (locked()) return locked_error();
  if (!keys_->old) return {};
  auto old = std::exchange(keys_->old, std::nullopt);
  if (auto saved = save(); !saved) {
    keys_->old = std::move(old);
    return saved;
  }
  rotating_ = false;
  return {};
}

}  // namespace isola::vault
