// A random number generator for OpenSSL inside sandboxes that has no memory: each request is answered by the kernel.
//
// OpenSSL keeps the state of its generator in the process and notices a fork of the process, but not a fork of the
// whole machine: two sandboxes restored from one image would draw the same keys and nonces. With this provider
// (openssl.cnf beside it names it as `random`) there is no state to be copied. It is loaded by the OpenSSL of whatever
// program runs inside (Python's ssl, Node's crypto), so it needs nothing but the C library.
#include <openssl/core.h>
#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/params.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kLargest = 1 << 16;
constexpr unsigned kStrength = 256;

struct Generator {
  int state;
};

// OSSL_PARAM_set_* live in libcrypto, which a provider need not have: the few forms that are asked for, by hand.
void set_number(OSSL_PARAM* params, const char* name, uint64_t value) {
  for (; params && params->key; ++params) {
    if (std::strcmp(params->key, name) != 0) continue;
    if (params->data_type != OSSL_PARAM_INTEGER && params->data_type != OSSL_PARAM_UNSIGNED_INTEGER) continue;
    params->return_size = params->data_size;
    if (params->data_size > sizeof value || !params->data) continue;
    std::memcpy(params->data, &value, params->data_size);  // little-endian, as every machine that this is built for
  }
}

// EVP_RAND_STATE_READY and _UNINITIALISED of <openssl/evp.h>.
constexpr int kUninitialised = 0, kReady = 1;

void* new_generator(void*, void*, const OSSL_DISPATCH*) { return std::calloc(1, sizeof(Generator)); }
void free_generator(void* g) { std::free(g); }

int instantiate(void* g, unsigned int, int, const unsigned char*, size_t, const OSSL_PARAM*) {
  static_cast<Generator*>(g)->state = kReady;
  return 1;
}
int uninstantiate(void* g) {
  static_cast<Generator*>(g)->state = kUninitialised;
  return 1;
}

int generate(void*, unsigned char* out, size_t size, unsigned int, int, const unsigned char*, size_t) {
  while (size > 0) {
    ssize_t n = ::getrandom(out, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return 0;
    out += n;
    size -= static_cast<size_t>(n);
  }
  return 1;
}

int reseed(void*, int, const unsigned char*, size_t, const unsigned char*, size_t) { return 1; }

// For a generator that has this one as its parent.
size_t get_seed(void*, unsigned char** out, int, size_t smallest, size_t, int, const unsigned char*, size_t) {
  *out = static_cast<unsigned char*>(std::malloc(smallest));
  if (!*out) return 0;
  if (generate(nullptr, *out, smallest, 0, 0, nullptr, 0)) return smallest;
  std::free(*out);
  *out = nullptr;
  return 0;
}
void clear_seed(void*, unsigned char* seed, size_t size) {
  explicit_bzero(seed, size);
  std::free(seed);
}

int enable_locking(void*) { return 1; }  // nothing to lock
int lock(void*) { return 1; }
void unlock(void*) {}

const OSSL_PARAM* gettable(void*, void*) {
  static const OSSL_PARAM kParams[] = {
      {OSSL_RAND_PARAM_STATE, OSSL_PARAM_INTEGER, nullptr, sizeof(int), 0},
      {OSSL_RAND_PARAM_STRENGTH, OSSL_PARAM_UNSIGNED_INTEGER, nullptr, sizeof(int), 0},
      {OSSL_RAND_PARAM_MAX_REQUEST, OSSL_PARAM_UNSIGNED_INTEGER, nullptr, sizeof(size_t), 0},
      {nullptr, 0, nullptr, 0, 0}};
  return kParams;
}
int get_params(void* g, OSSL_PARAM params[]) {
  set_number(params, OSSL_RAND_PARAM_STATE, static_cast<uint64_t>(static_cast<Generator*>(g)->state));
  set_number(params, OSSL_RAND_PARAM_STRENGTH, kStrength);
  set_number(params, OSSL_RAND_PARAM_MAX_REQUEST, kLargest);
  return 1;
}

template <typename F>
constexpr OSSL_DISPATCH entry(int id, F* f) {
  return {id, reinterpret_cast<void (*)()>(f)};
}

const OSSL_DISPATCH* functions() {
  static const OSSL_DISPATCH kFunctions[] = {entry(OSSL_FUNC_RAND_NEWCTX, new_generator),
                                             entry(OSSL_FUNC_RAND_FREECTX, free_generator),
                                             entry(OSSL_FUNC_RAND_INSTANTIATE, instantiate),
                                             entry(OSSL_FUNC_RAND_UNINSTANTIATE, uninstantiate),
                                             entry(OSSL_FUNC_RAND_GENERATE, generate),
                                             entry(OSSL_FUNC_RAND_RESEED, reseed),
                                             entry(OSSL_FUNC_RAND_GET_SEED, get_seed),
                                             entry(OSSL_FUNC_RAND_CLEAR_SEED, clear_seed),
                                             entry(OSSL_FUNC_RAND_ENABLE_LOCKING, enable_locking),
                                             entry(OSSL_FUNC_RAND_LOCK, lock),
                                             entry(OSSL_FUNC_RAND_UNLOCK, unlock),
                                             entry(OSSL_FUNC_RAND_GETTABLE_CTX_PARAMS, gettable),
                                             entry(OSSL_FUNC_RAND_GET_CTX_PARAMS, get_params),
                                             {0, nullptr}};
  return kFunctions;
}

const OSSL_ALGORITHM* query(void*, int operation, int* no_cache) {
  static const OSSL_ALGORITHM kAlgorithms[] = {{"ISOLA-RAND", "provider=isola", functions(), "the kernel's"},
                                               {nullptr, nullptr, nullptr, nullptr}};
  *no_cache = 0;
  return operation == OSSL_OP_RAND ? kAlgorithms : nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int OSSL_provider_init(const OSSL_CORE_HANDLE*, const OSSL_DISPATCH*,
                                                                         const OSSL_DISPATCH** out, void** context) {
  static const OSSL_DISPATCH kProvider[] = {entry(OSSL_FUNC_PROVIDER_QUERY_OPERATION, query), {0, nullptr}};
  static int one = 1;
  *context = &one;
  *out = kProvider;
  return 1;
}
