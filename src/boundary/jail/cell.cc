#include "boundary/jail/cell.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace isola::boundary::jail {

// The guest's own pipe, opened anew through /proc: no path that the sandbox controls is resolved, and a sandbox cannot
// do the same since process 1 is not readable inside. A guest that was taken over may have put anything else there,
// which we, as root of the host, could open and it could not: so it is looked at before it is opened.
Result<Fd> JailCell::open_guest_fd(int number, int flags) const {
  std::string path = "/proc/" + std::to_string(process_.pid) + "/fd/" + std::to_string(number);
  Fd found(::open(path.c_str(), O_PATH | O_CLOEXEC));
  // What it is the kernel knows by itself: a server of files that was put there is not asked, and keeps nobody waiting.
  struct statx st{};
  if (!found || ::statx(found.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) < 0)
    return sys_error("cannot open the link of the sandbox");
  if (!S_ISFIFO(st.stx_mode)) return fail(Code::corrupt, "the sandbox's guest has no link any more");
  Fd fd(::open(("/proc/self/fd/" + std::to_string(found.get())).c_str(), flags | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return sys_error("cannot open the link of the sandbox");
  // An adopted one is nobody's child of ours: its number may be another's by now.
  ISOLA_CHECK(kernel::open_pidfd(process_));
  return fd;
}

Result<int> JailCell::prepare_link() {
  if (first_) return -1;
  // The guest may have made new pipes for somebody who never took them: then the hang-up of the old ones says nothing.
  pollfd old{current_.get(), 0, 0};
  if (current_ && ::poll(&old, 1, 0) > 0) current_.reset();
  if (!current_) {
    ISOLA_TRY(Fd output, open_guest_fd(kGuestOutput, O_RDONLY));
    current_ = kept(std::move(output));
  }
  ISOLA_CHECK(kernel::send_signal(pidfd_.get(), SIGRTMIN + 1));
  return current_.get();
}

Result<Link> JailCell::take_link() {
  if (first_) {
    Link link = std::move(*first_);
    first_.reset();
    current_ = Fd(::fcntl(link.from_guest.get(), F_DUPFD_CLOEXEC, kKeptFrom));
    if (!current_) return sys_error("cannot keep the link");
    return link;
  }
  Link link;
  ISOLA_TRY(link.to_guest, open_guest_fd(kGuestInput, O_WRONLY));
  ISOLA_TRY(link.from_guest, open_guest_fd(kGuestOutput, O_RDONLY));
  current_ = Fd(::fcntl(link.from_guest.get(), F_DUPFD_CLOEXEC, kKeptFrom));
  if (!current_) return sys_error("cannot keep the link");
  return link;
}

Result<const IslandSockets*> JailCell::sockets() {
  if (!sockets_.tcp4 && network_) {
    ISOLA_TRY(Fd netns, kernel::open_namespace(process_.pid, "net"));
    // Still the same process: its namespace, and nobody else's, was opened.
    ISOLA_CHECK(kernel::open_pidfd(process_));
    ISOLA_TRY(IslandSockets reopened, network_->reopen(netns.get()));
    set_network(std::move(reopened));
  }
  if (!sockets_.tcp4) return fail(Code::unsupported, "the sandbox has no sockets for a gate");
  return &sockets_;
}

Result<void> JailCell::kill() {
  auto sent = kernel::send_signal(pidfd_.get(), SIGKILL);
  if (!sent && sent.error().sys_errno != ESRCH) return sent;
  return {};
}

// A guest whose link is silent is dumpable (guest/agent/secrecy.h), and what is in its folder of /proc is then owned by
// itself instead of by the host's root.
// What is inside an engine cannot be seen from here: there whoever asks for the checkpoint answers for it.
Result<bool> JailCell::quiesced() {
  if (kind_ != BoundaryKind::jail) return true;
  struct stat maps{};
  if (::stat(("/proc/" + std::to_string(process_.pid) + "/maps").c_str(), &maps) < 0)
    return sys_error("cannot look at process 1 of the sandbox");
  return maps.st_uid != 0;
}

std::optional<int> JailCell::exit_status() {
  int status = 0;
  if (!own_child_ || ::waitpid(process_.pid, &status, WNOHANG) != process_.pid) return std::nullopt;
  own_child_ = false;
  return status;
}

}  // namespace isola::boundary::jail
