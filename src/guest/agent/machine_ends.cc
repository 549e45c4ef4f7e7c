#include "guest/agent/machine_ends.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"

namespace isola::guest {

namespace {

constexpr int kLine = 3, kNetwork = 4, kMonitor = 5, kMemory = 6, kConsole = 7, kState = 8;

// Ours and its.
Result<std::pair<Fd, Fd>> make_pair(int flags) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
    return sys_error("cannot make a line to the machine");
  std::pair<Fd, Fd> ends(pair[0], pair[1]);
  if (::fcntl(pair[0], F_SETFL, flags) < 0) return sys_error("cannot make a line to the machine");
  return ends;
}

// Nobody in the box has use for it but the machine; whoever saves the machine finds it here.
Result<void> keep_as(Fd fd, int number) {
  if (::dup3(fd.get(), number, O_CLOEXEC) < 0) return sys_error("cannot keep an end of the machine");
  return {};
}

// As large as it is, for good: whoever reads it later is not surprised.
Result<Fd> make_memory(uint64_t bytes) {
  Fd memory(::memfd_create("isola-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ::ftruncate(memory.get(), static_cast<off_t>(bytes)) < 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
    return sys_error("cannot make the guest's memory");
  return memory;
}

}  // namespace

Result<MachineEnds> MachineEnds::make(const MachineOptions& options, int network) {
  MachineEnds ends;
  // These two numbers first, before anything else takes them.
  for (int number : {kFdMonitor, kFdMemory})
    if (::dup3(0, number, O_CLOEXEC) < 0) return sys_error("cannot keep an end of the machine");
  ISOLA_TRY(auto monitor, make_pair(0));
  ISOLA_CHECK(keep_as(std::move(monitor.first), kFdMonitor));
  auto give = [&](Fd fd, int number) {
    ends.take.emplace_back(fd.get(), number);
    ends.given.push_back(std::move(fd));
  };
  ends.take.emplace_back(network, kNetwork);
  give(std::move(monitor.second), kMonitor);
  ISOLA_TRY(auto line, make_pair(O_NONBLOCK));
  ends.line = std::move(line.first);
  give(std::move(line.second), kLine);
  ISOLA_TRY(auto console, make_pair(O_NONBLOCK));
  ends.console = std::move(console.first);
  give(std::move(console.second), kConsole);
  if (options.memory > 0) {
    ISOLA_TRY(Fd memory, make_memory(options.memory));
    Fd ours(::fcntl(memory.get(), F_DUPFD_CLOEXEC, kFdMemory));
    if (!ours) return sys_error("cannot keep the guest's memory");
    ISOLA_CHECK(keep_as(std::move(ours), kFdMemory));
    give(std::move(memory), kMemory);
  }
  if (!options.state.empty()) {
    Fd state(::open(options.state.c_str(), O_RDONLY | O_CLOEXEC));
    if (!state) return sys_error("cannot open what the machine is restored from");
    give(std::move(state), kState);
    ISOLA_CHECK(write_all(kFdMonitor, words_of_restore()));
  }
  return ends;
}

std::string words_of_restore() {
  return R"({"execute":"qmp_capabilities"})"
         "\n"
         // The guest's memory is not in the state but beside it.
         R"({"execute":"migrate-set-capabilities","arguments":{"capabilities":[{"capability":"x-ignore-shared","state":true}]}})"
         "\n"
         R"({"execute":"migrate-incoming","arguments":{"uri":"fd:8"}})"
         "\n";
}

}  // namespace isola::guest
