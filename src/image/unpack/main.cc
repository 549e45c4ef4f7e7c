// isola-unpack ROOT BYTES ENTRIES: applies the layer on standard input to a tree. It reads what a stranger packed, so
// before the first byte it has given up everything but writing there: "/" is the tree, and there is no network.
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "image/unpack/layer.h"
#include "kernel/capability.h"

#ifdef __SANITIZE_ADDRESS__
// Where it runs it can neither look at itself nor start anybody who could.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

namespace isola::image {
namespace {

constexpr uint64_t kCapabilities = kernel::capability(CAP_CHOWN) | kernel::capability(CAP_DAC_OVERRIDE) |
                                   kernel::capability(CAP_FOWNER) | kernel::capability(CAP_FSETID) |
                                   kernel::capability(CAP_SETFCAP);

constexpr rlim_t kMostSeconds = 1800;      // of a processor, for a layer
constexpr rlim_t kSmallestFile = 1 << 20;  // for what is said on standard output
// For the names that it remembers, of up to 4096 bytes each, and what decompression needs.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr rlim_t kMostMemory = RLIM_INFINITY;  // sanitizers reserve terabytes
#else
constexpr rlim_t kMostMemory = rlim_t{2} << 30;
#endif

Result<void> confine(const char* root, uint64_t most_bytes) {
  if (::unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS) < 0)
    return sys_error("cannot leave the machine's network");
  if (::chdir(root) < 0 || ::chroot(".") < 0 || ::chdir("/") < 0) return sys_error(std::string("cannot enter ") + root);
  ::signal(SIGXFSZ, SIG_IGN);  // the error says it
  for (auto [what, most] : {std::pair(RLIMIT_NOFILE, rlim_t{64}), std::pair(RLIMIT_CORE, rlim_t{0}),
                            std::pair(RLIMIT_FSIZE, std::max<rlim_t>(most_bytes, kSmallestFile)),
                            std::pair(RLIMIT_CPU, kMostSeconds), std::pair(RLIMIT_AS, kMostMemory)}) {
    rlimit limit{most, most};
    if (::setrlimit(what, &limit) < 0) return sys_error("cannot set limits");
  }
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return sys_error("cannot give up privileges");
  ISOLA_CHECK(kernel::limit_bounding_set(kCapabilities));
  return kernel::set_capabilities(kCapabilities, kCapabilities, 0);
}

Result<Amount> apply(const Amount& most) {
  try {
    return apply_layer(STDIN_FILENO, most);
  } catch (const std::bad_alloc&) {
    return fail(Code::exhausted, "its names take more memory than there is for unpacking");
  }
}

}  // namespace
}  // namespace isola::image

int main(int argc, char** argv) {
  using namespace isola;
  if (argc != 4) {
    std::fputs("usage: isola-unpack ROOT BYTES ENTRIES\n", stderr);
    return 2;
  }
  std::setlocale(LC_ALL, "C.UTF-8");  // names in archives are text
  ::umask(022);                       // of folders that a layer takes for granted
  image::Amount most{std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10)};
  auto confined = image::confine(argv[1], most.bytes);
  auto done = confined ? image::apply(most) : Result<image::Amount>(std::unexpected(confined.error()));
  if (!done) {
    std::fprintf(stderr, "%s\n", done.error().message.c_str());
    switch (done.error().code) {
      case Code::exhausted: return 3;
      case Code::invalid:
      case Code::corrupt:
      case Code::unsupported: return 4;  // whoever packed it did
      default: return 1;
    }
  }
  std::printf("%lu %lu\n", static_cast<unsigned long>(done->bytes), static_cast<unsigned long>(done->entries));
  return 0;
}
