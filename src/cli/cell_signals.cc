#include "cli/cell_signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace isola::cli {

Result<CellSignals> CellSignals::open() {
  sigset_t set;
  ::sigemptyset(&set);
  for (int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, number);
  if (::pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) return fail(Code::internal, "cannot block signals");
  Fd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return sys_error("cannot watch for signals");
  return CellSignals(std::move(fd));
}

std::optional<int> CellSignals::take() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

CellSignals::Watch::Watch(CellSignals& signals, std::function<void(int number)> use)
    : stop_(::eventfd(0, EFD_CLOEXEC)), thread_([this, &signals, use = std::move(use)] {
        for (;;) {
          pollfd ready[] = {{signals.fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
          if (::poll(ready, 2, -1) < 0 && errno == EINTR) continue;
          if (ready[1].revents) return;
          if (auto number = signals.take()) use(*number);
        }
      }) {}

CellSignals::Watch::~Watch() {
  (void)!::eventfd_write(stop_.get(), 1);
  thread_.join();
}

}  // namespace isola::cli
