#include "boundary/microvm/checkpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "boundary/jail/checkpoint.h"
#include "boundary/microvm/command_line.h"
#include "boundary/microvm/monitor.h"
#include "boundary/microvm/saving.h"
#include "kernel/helper.h"
#include "kernel/process.h"

namespace isola::boundary::microvm {

namespace {

using kernel::Helper;

// As the relay has them (guest/agent/machine_ends.h).
constexpr int kMonitor = 9, kMemoryFd = 10;

Result<Fd> take_from(const Fd& relay, int number) {
  Fd fd(static_cast<int>(::syscall(SYS_pidfd_getfd, relay.get(), number, 0)));
  if (!fd) return sys_error("cannot reach the virtual machine");
  return fd;
}

Result<Monitor> take_monitor(const Fd& relay) {
  ISOLA_TRY(Fd socket, take_from(relay, kMonitor));
  int domain = 0;
  socklen_t size = sizeof domain;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) < 0 || domain != AF_UNIX)
    return fail(Code::corrupt, "the virtual machine has no monitor any more");
  return Monitor(std::move(socket));
}

// None: the memory is an image's, of which what was changed is QEMU's own, and comes with the state.
Result<Fd> take_memory(const Fd& relay) {
  ISOLA_TRY(Fd memory, take_from(relay, kMemoryFd));
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0) return Fd();
  if ((seals & F_SEAL_SHRINK) == 0) return fail(Code::corrupt, "the virtual machine has no memory any more");
  return memory;
}

Result<SavedFiles> open_files(const std::string& folder) {
  SavedFiles files;
  for (auto [fd, name] :
       {std::pair{&files.ram, kRamFile}, std::pair{&files.state, kStateFile}, std::pair{&files.shape, kShapeFile}}) {
    *fd = Fd(::open((folder + "/" + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!*fd) return sys_error("cannot make the files of an image");
  }
  return files;
}

Result<void> close_files(const SavedFiles& files) {
  for (const Fd* fd : {&files.ram, &files.state, &files.shape})
    if (::fchmod(fd->get(), 0644) < 0) return sys_error("cannot make the files of an image");
  return {};
}

Result<std::string> save(Helper::Talk& talk, const Fd& relay, const CheckpointSpec& spec) {
  ISOLA_TRY(const SavedFiles files, open_files(spec.folder));
  ISOLA_TRY(Monitor monitor, take_monitor(relay));
  ISOLA_CHECK(monitor.greet());
  auto kept = [&]() -> Result<std::string> {
    ISOLA_TRY(const Fd memory, take_memory(relay));
    auto saved = save_machine(monitor, memory, files, guest_memory(spec.memory_limit));
    if (!saved) return std::unexpected(saved.error().in("the memory of the sandbox cannot be saved"));
    ISOLA_CHECK(close_files(files));
    // A launcher that died meanwhile will not know of this checkpoint: then it must not be.
    ISOLA_CHECK(talk.ask(jail::kAtRest, ""));
    return spec.at_rest();
  }();
  if (kept && !spec.keep_running) {
    ISOLA_CHECK(kernel::send_signal(relay.get(), SIGKILL));
    return kept;
  }
  auto goes_on = let_go_on(monitor, !kept);
  if (!goes_on) return fail(Code::unavailable, "the sandbox does not go on: " + goes_on.error().message);
  return kept;
}

}  // namespace

Result<std::unique_ptr<Checkpointing>> begin_checkpoint(pid_t pid, CheckpointSpec spec) {
  ISOLA_TRY(Fd relay, kernel::open_pidfd(pid));
  auto keep = spec.keep;
  keep.push_back(relay.get());
  ISOLA_TRY(auto helper, Helper::start({.name = "isola-keeper", .capabilities = kernel::kAllButMachine, .keep = keep},
                                       [&](Helper::Talk& talk) { return save(talk, relay, spec); }));
  return jail::watch_checkpoint(std::move(helper));
}

}  // namespace isola::boundary::microvm
