// Bytes into the guest's dispatcher, with everything behind it real, inside an empty folder: the process locks itself
// into one with namespaces of its own before the first input, so no operation finds a program, a file or a port that
// matters.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/mark.h"
#include "guest/agent/agent.h"

using namespace isola::guest;

namespace {

void lock_in() {
  static char name[] = "/tmp/isola-fuzz-XXXXXX";
  if (::unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC) < 0 || !::mkdtemp(name) ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0 ||
      ::mount("fuzz", name, "tmpfs", 0, "size=64m,nr_inodes=20000") < 0 || ::chroot(name) < 0 || ::chdir("/") < 0) {
    std::perror("link_guest_fuzz must run as root");
    std::exit(1);
  }
  for (const char* dir : {"/dev", "/a", "/a/b", "/tmp", "/var", "/var/tmp"}) ::mkdir(dir, 0777);
  ::mknod("/dev/null", S_IFCHR | 0666, 0x103);
  for (const char* file : {"/f", "/a/g"}) ::close(::open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
}

}  // namespace

// The leak check looks into /proc, and there is none in here (mounting one would hand the fuzzer the machine's).
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  lock_in();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  Agent agent("i0123456789abcdefghij");
  agent.next_generation();
  // The first byte chooses: raw bytes, or the rest cut into frames that are well-formed on the outside; or a stream
  // over standard input, in pieces, whose mark is made of few letters, so that it comes by chance.
  bool framed = !input.empty() && (input[0] & 1);
  bool marked = !input.empty() && !framed && (input[0] & 2);
  if (!input.empty()) input.remove_prefix(1);
  auto turn = [&] {
    agent.round(false);
    agent.mux().sent(agent.mux().out().size());
  };
  if (marked) {
    isola::MarkedStream stream(std::string(isola::kMarkSize - 1, 'a') + "b");
    for (size_t piece = 1; !input.empty(); piece = piece % 37 + 1) {
      auto part = input.substr(0, piece);
      input.remove_prefix(part.size());
      stream.feed(
          part, [&](std::string_view plain) { agent.mux().feed(plain); },
          [&] { agent.next_generation(stream.mark()); });
      turn();
    }
  } else if (!framed) {
    agent.mux().feed(input.substr(0, input.size() / 2));
    turn();
    agent.mux().feed(input.substr(input.size() / 2));
  }
  while (framed && input.size() >= 4 && !agent.mux().broken()) {
    auto type = static_cast<Type>(2 + static_cast<uint8_t>(input[0]) % 8);
    uint32_t channel = 1 + static_cast<uint8_t>(input[1]) % 4;
    auto payload = input.substr(4, static_cast<uint8_t>(input[2]) | (input[3] & 3) << 8);
    std::string frame;
    put_frame(frame, channel, type, payload);
    input.remove_prefix(4 + payload.size());
    agent.mux().feed(frame);
    turn();
  }
  for (int i = 0; i < 4; ++i) turn();
  agent.next_generation();
  turn();
  return 0;
}
