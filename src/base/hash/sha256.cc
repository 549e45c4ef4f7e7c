#include "base/hash/sha256.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <vector>

#include "base/fd.h"

namespace isola {

namespace {

// Looked up once: the library searches its providers each time.
const EVP_MD* sha256_of_library() {
  static const EVP_MD* found = ::EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return found ? found : ::EVP_sha256();
}

using Context = std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)>;

std::unexpected<Error> refused() { return fail(Code::internal, "the crypto library refuses SHA-256"); }

Result<std::string> finish(EVP_MD_CTX* context) {
  unsigned char raw[EVP_MAX_MD_SIZE];
  unsigned int n = 0;
  if (::EVP_DigestFinal_ex(context, raw, &n) != 1) return refused();
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * n);
  for (unsigned int i = 0; i < n; ++i) out += {kHex[raw[i] >> 4], kHex[raw[i] & 15]};
  return out;
}

}  // namespace

Sha256::Sha256() : context_(::EVP_MD_CTX_new(), ::EVP_MD_CTX_free) {
  good_ = context_ && ::EVP_DigestInit_ex(context_.get(), sha256_of_library(), nullptr) == 1;
}

void Sha256::add(std::string_view bytes) {
  good_ = good_ && ::EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1;
}

Result<std::string> Sha256::hex() { return good_ ? finish(context_.get()) : refused(); }

Result<std::string> sha256(std::string_view bytes) {
  // Every request's key is hashed: a context for each thread, since making one takes longer than such a hash.
  thread_local Context context(::EVP_MD_CTX_new(), ::EVP_MD_CTX_free);
  if (!context || ::EVP_DigestInit_ex(context.get(), sha256_of_library(), nullptr) != 1 ||
      ::EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) != 1)
    return refused();
  return finish(context.get());
}

Result<std::string> sha256_file(const std::string& path, const std::function<void(uint64_t)>& tick) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return sys_error("cannot open " + path);
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  uint64_t done = 0;
  for (;;) {
    ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot read " + path);
    if (n == 0) return hash.hex();
    hash.add({buffer.data(), static_cast<size_t>(n)});
    done += static_cast<uint64_t>(n);
    if (tick && done % (64 << 20) == 0) tick(done);
  }
}

bool equal_secrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace isola
