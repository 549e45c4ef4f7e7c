// isola-guest: process 1 of every sandbox.
//
//   isola-guest --id <sandbox id> [--stdio | --packets <descriptor>]
//   isola-guest --stdio                         (its relay tells it its name)
//   isola-guest --relay [--name <sandbox id> | --rename <sandbox id>] -- <engine> …
//                                               (relay.h: outside of an engine that the guest is inside of)
//   isola-guest --relay-packets <cpu> -- <engine> …
//   isola-guest --relay-machine <bytes> <state> (--name | --rename) <sandbox id> -- <engine> …
//   /init                                       (birth.h: the first program of a kernel of the sandbox's own)
//
// Reaps, starts processes, moves files, watches folders, dials ports; told what to do over the link (guest/link.h).
// One thread, epoll and signalfd: nothing that a checkpoint could not carry.
#include <fcntl.h>
#include <malloc.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/standard_descriptors.h"
#include "guest/agent/agent.h"
#include "guest/agent/birth.h"
#include "guest/agent/link_io.h"
#include "guest/agent/relay.h"
#include "guest/agent/spawn.h"

namespace isola::guest {
namespace {

class Signals : public Source {
 public:
  Signals(Agent& agent, LinkIo& link) : agent_(agent), link_(link), host_uid_(host_signal_uid()) {}

  Result<void> begin() {
    // Whatever we were started with: children must find the default of every signal, and we want none by surprise.
    for (int s = 1; s <= SIGRTMAX; ++s) {
      struct sigaction def{};
      def.sa_handler = SIG_DFL;
      ::sigaction(s, &def, nullptr);
    }
    sigset_t all, ours;
    ::sigfillset(&all);
    ::sigemptyset(&ours);
    ::sigaddset(&ours, SIGCHLD);
    ::sigaddset(&ours, SIGRTMIN + kReattachSignal);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    fd_ = Fd(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) return sys_error("cannot read signals");
    agent_.child_ended();  // somebody may have ended before we looked
    return agent_.loop().add(fd_.get(), EPOLLIN, this);
  }

  void on_ready(uint32_t) override {
    signalfd_siginfo info[16];
    ssize_t n = ::read(fd_.get(), info, sizeof info);
    bool again = false;
    for (ssize_t i = 0; i < n / static_cast<ssize_t>(sizeof info[0]); ++i) {
      if (info[i].ssi_signo == SIGCHLD) agent_.child_ended();
      again |= is_from_host(info[i], host_uid_);
    }
    if (again) link_.reattach();
  }

 private:
  Agent& agent_;
  LinkIo& link_;
  uint32_t host_uid_;
  Fd fd_;
};

int run(const std::string& id, LinkPlace place) {
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_TRIM_THRESHOLD, 64 << 10);
  ::mallopt(M_MMAP_THRESHOLD, 48 << 10);  // large buffers go back to the kernel when they go
  ::umask(0);                             // a mode that the host asks for is meant; children start with 022
  prepare_oom_score();
  Agent agent(id);
  Secrecy secrecy;
  LinkIo link(agent, secrecy, place);
  Signals signals(agent, link);
  for (auto step : {secrecy.begin(), signals.begin(), link.begin()}) {
    if (!step) return std::fprintf(stderr, "isola-guest: %s\n", step.error().message.c_str()), 1;
  }
  for (;;) {
    agent.round(true);
    link.flush();
  }
}

}  // namespace
}  // namespace isola::guest

int main(int argc, char** argv) {
  if (::getpid() == 1 && std::strcmp(argv[0], isola::guest::kFirstProgram) == 0) {
    auto born = isola::guest::come_to_life();
    if (!born) return std::fprintf(stderr, "isola-guest: %s\n", born.error().message.c_str()), 1;
    const int line = born->line.release();
    return isola::guest::run(
        born->id, born->packets ? isola::guest::LinkPlace{.packets = line} : isola::guest::LinkPlace{.device = line});
  }
  if (argc > 3 && std::strcmp(argv[1], "--relay") == 0) {
    isola::guest::RelayOptions options;
    int at = 2;
    options.restored = std::strcmp(argv[at], "--rename") == 0;
    if (options.restored || std::strcmp(argv[at], "--name") == 0) options.name = argv[at + 1], at += 2;
    if (at + 1 < argc && std::strcmp(argv[at], "--") == 0) {
      options.engine = {argv + at + 1, argv + argc};
      return isola::guest::run_relay(options);
    }
  }
  if (argc > 4 && std::strcmp(argv[1], "--relay-packets") == 0 && std::strcmp(argv[3], "--") == 0) {
    isola::guest::RelayOptions options;
    options.engine = {argv + 4, argv + argc};
    options.packets = true;
    options.processor = std::atoi(argv[2]);
    return isola::guest::run_relay(options);
  }
  if (argc > 7 && std::strcmp(argv[1], "--relay-machine") == 0 && std::strcmp(argv[6], "--") == 0) {
    isola::guest::RelayOptions options;
    options.engine = {argv + 7, argv + argc};
    options.name = argv[5];
    options.restored = std::strcmp(argv[4], "--rename") == 0;
    options.machine = {.on = true, .memory = std::strtoull(argv[2], nullptr, 10), .state = {}};
    if (std::strcmp(argv[3], "-") != 0) options.machine.state = argv[3];
    return isola::guest::run_relay(options);
  }
  std::string id;
  bool bad = false;
  isola::guest::LinkPlace place;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--stdio") == 0)
      place.stdio = true;
    else if (std::strcmp(argv[i], "--packets") == 0 && i + 1 < argc)
      place.packets = std::atoi(argv[++i]);
    else if (std::strcmp(argv[i], "--id") == 0 && i + 1 < argc)
      id = argv[++i];
    else
      bad = true;
  }
  if (bad || (id.empty() && !place.stdio))
    return std::fputs("usage: isola-guest --id <sandbox id> [--stdio | --packets <descriptor>]\n", stderr), 2;
  if (!isola::take_standard_descriptors()) return 1;
  return isola::guest::run(id, place);
}
