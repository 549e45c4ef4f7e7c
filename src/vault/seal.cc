#include "vault/seal.h"

#include <sodium.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/log.h"
#include "vault/bytes.h"

namespace isola::vault {

static_assert(kKeyBytes == crypto_box_SECRETKEYBYTES && kKeyBytes == crypto_box_PUBLICKEYBYTES);
static_assert(kKeyBytes == crypto_scalarmult_BYTES && kKeyBytes <= crypto_generichash_KEYBYTES_MAX);

namespace {

constexpr size_t kNameBytes = kSealBytes - crypto_box_SEALBYTES;

// Thread-safe, and cheap after the first time.
void need_sodium() {
  static const bool there = ::sodium_init() >= 0;
  if (!there) std::abort();  // no randomness: nothing that follows would be secret
}

unsigned char* bytes_of(Secret& secret) { return reinterpret_cast<unsigned char*>(secret.data()); }

std::array<unsigned char, kNameBytes> name_of(const PublicKey& key) {
  static_assert(kNameBytes < crypto_generichash_BYTES_MIN);
  unsigned char digest[crypto_generichash_BYTES_MIN];
  ::crypto_generichash(digest, sizeof digest, key.data(), key.size(), nullptr, 0);
  std::array<unsigned char, kNameBytes> name;
  std::memcpy(name.data(), digest, name.size());
  return name;
}

size_t whole_pages(size_t size) {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (size + page - 1) / page * page;
}

}  // namespace

// ---- bytes in memory ------------------------------------------------------------------------------------------------

// Pages of its own: locks and advice hold for pages, and neighbours that are alike become one mapping of the kernel's.
Secret Secret::of_size(size_t size) {
  Secret secret;
  if (size == 0) return secret;
  void* pages = ::mmap(nullptr, whole_pages(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  if (::mlock(pages, whole_pages(size)) < 0) {
    static std::atomic<bool> said = false;
    if (!said.exchange(true))
      log::warn("vault", "memory of secrets cannot be locked (RLIMIT_MEMLOCK): it may be swapped");
  }
  ::madvise(pages, whole_pages(size), MADV_DONTDUMP);
  ::madvise(pages, whole_pages(size), MADV_WIPEONFORK);
  secret.data_ = static_cast<char*>(pages);
  secret.size_ = size;
  return secret;
}

Secret::Secret(std::string_view bytes) : Secret(of_size(bytes.size())) {
  if (!bytes.empty()) std::memcpy(data_, bytes.data(), bytes.size());
}

Secret::~Secret() {
  if (!data_) return;
  ::sodium_memzero(data_, size_);
  ::munmap(data_, whole_pages(size_));
}

Secret::Secret(Secret&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Secret& Secret::operator=(Secret&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void wipe(std::string& text) {
  ::sodium_memzero(text.data(), text.size());
  text.clear();
}

// ---- keys -----------------------------------------------------------------------------------------------------------

Result<KeyPair> KeyPair::make() {
  need_sodium();
  Secret key = Secret::of_size(kKeyBytes);
  ::randombytes_buf(key.data(), key.size());
  return from(std::move(key));
}

Result<KeyPair> KeyPair::from(Secret secret_key) {
  need_sodium();
  if (secret_key.size() != kKeyBytes) return fail(Code::corrupt, "a key of the vault has 32 bytes");
  KeyPair pair;
  pair.secret_ = std::move(secret_key);
  if (::crypto_scalarmult_base(pair.public_.data(), bytes_of(pair.secret_.view())) != 0)
    return fail(Code::corrupt, "that is no key of a vault");
  return pair;
}

Secret KeyPair::derive(std::string_view purpose, std::string_view subject) const {
  crypto_generichash_state state;
  ::crypto_generichash_init(&state, bytes_of(secret_.view()), kKeyBytes, kKeyBytes);
  // The length in front: ("ab", "c") is not ("a", "bc").
  for (std::string_view part : {std::string_view("isola derived key"), purpose, subject}) {
    const uint64_t size = part.size();
    unsigned char length[8];
    for (size_t i = 0; i < sizeof length; ++i) length[i] = static_cast<unsigned char>(size >> (8 * i));
    ::crypto_generichash_update(&state, length, sizeof length);
    ::crypto_generichash_update(&state, bytes_of(part), part.size());
  }
  Secret derived = Secret::of_size(kKeyBytes);
  ::crypto_generichash_final(&state, bytes_of(derived), kKeyBytes);
  ::sodium_memzero(&state, sizeof state);
  return derived;
}

// ---- values ---------------------------------------------------------------------------------------------------------

Result<std::string> seal(const PublicKey& key, std::string_view value) {
  need_sodium();
  std::string sealed(value.size() + kSealBytes, '\0');
  auto name = name_of(key);
  std::memcpy(sealed.data(), name.data(), name.size());
  auto* box = reinterpret_cast<unsigned char*>(sealed.data()) + kNameBytes;
  if (::crypto_box_seal(box, bytes_of(value), value.size(), key.data()) != 0)
    return fail(Code::internal, "the value cannot be sealed");
  return sealed;
}

bool is_sealed_to(const PublicKey& key, std::string_view sealed) {
  need_sodium();
  auto name = name_of(key);
  return sealed.size() >= kSealBytes && std::memcmp(sealed.data(), name.data(), name.size()) == 0;
}

Result<Secret> open_sealed(const KeyPair& key, std::string_view sealed) {
  need_sodium();
  if (sealed.size() < kSealBytes) return fail(Code::corrupt, "a sealed value is too short");
  if (!is_sealed_to(key.open_key(), sealed)) return fail(Code::not_found, "a value is sealed to another key");
  auto box = sealed.substr(kNameBytes);
  // One byte more: the value may be empty, and there is nothing to write an empty one to.
  Secret opened = Secret::of_size(box.size() - crypto_box_SEALBYTES + 1);
  if (::crypto_box_seal_open(bytes_of(opened), bytes_of(box), box.size(), key.open_key().data(),
                             bytes_of(key.secret_key().view())) != 0)
    return fail(Code::corrupt, "a sealed value was damaged");
  return Secret(opened.view().substr(0, opened.size() - 1));
}

// ---- text -----------------------------------------------------------------------------------------------------------

std::string to_base64(std::string_view bytes) {
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  ::sodium_bin2base64(text.data(), text.size(), bytes_of(bytes), bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // the zero at its end
  return text;
}

Result<std::string> from_base64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3 + 3, '\0');
  size_t size = 0;
  const char* end = nullptr;
  if (::sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(), text.size(),
                          nullptr, &size, &end, sodium_base64_VARIANT_ORIGINAL) != 0 ||
      end != text.data() + text.size())
    return fail(Code::invalid, "that is no base64");
  bytes.resize(size);
  return bytes;
}

}  // namespace isola::vault
