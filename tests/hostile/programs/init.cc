// Process 1 inside is ours: it holds the link to the host. Whoever can look into it can speak in its name.
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

Outcome ptrace_init(const Args&) {
  Attempts attempts;
  long seized = ::ptrace(PTRACE_SEIZE, 1, nullptr, nullptr);
  attempts.add("PTRACE_SEIZE", seized);
  if (seized == 0) return attempts.outcome();  // leaving detaches
  long attached = ::ptrace(PTRACE_ATTACH, 1, nullptr, nullptr);
  attempts.add("PTRACE_ATTACH", attached);
  if (attached == 0) {
    ::waitpid(1, nullptr, __WALL);
    ::ptrace(PTRACE_DETACH, 1, nullptr, nullptr);
  }
  return attempts.outcome();
}

// A bad address is looked at only after the permission: EFAULT says that it would have been allowed.
Outcome vm_access(const char* what, bool write) {
  char byte = 0;
  iovec here{&byte, 1}, there{reinterpret_cast<void*>(16), 1};
  long n = write ? ::process_vm_writev(1, &here, 1, &there, 1, 0) : ::process_vm_readv(1, &here, 1, &there, 1, 0);
  if (n < 0 && errno == EFAULT) return breach(fmt::format("{}: permitted", what));
  return judge(what, n);
}
Outcome vm_readv(const Args&) { return vm_access("process_vm_readv", false); }
Outcome vm_writev(const Args&) { return vm_access("process_vm_writev", true); }

Outcome proc_mem(const Args&) {
  Attempts attempts;
  attempts.add("open /proc/1/mem", ::open("/proc/1/mem", O_RDWR | O_CLOEXEC));
  attempts.add("open /proc/1/task/1/mem", ::open("/proc/1/task/1/mem", O_RDONLY | O_CLOEXEC));
  return attempts.outcome();
}

Outcome proc_secrets(const Args&) {
  Attempts attempts;
  for (const char* path : {"/proc/1/environ", "/proc/1/maps", "/proc/1/syscall", "/proc/1/stack", "/proc/1/auxv"}) {
    auto text = slurp(path);
    if (text && text->empty())
      attempts.refused(path, "empty");
    else
      attempts.add(path, text ? 0 : -1);
  }
  return attempts.outcome();
}

Outcome pidfd_getfd(const Args&) {
  int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, 1, 0));
  if (pidfd < 0) return judge("pidfd_open", -1);
  Attempts attempts;
  for (int fd = 0; fd < 32; ++fd) {
    long copy = ::syscall(SYS_pidfd_getfd, pidfd, fd, 0);
    if (copy >= 0 || errno != EBADF) attempts.add(fmt::format("take fd {}", fd), copy);
  }
  return attempts.outcome();
}

Outcome proc_fd(const Args&) {
  Attempts attempts;
  for (int fd = 0; fd < 32; ++fd) {
    std::string path = fmt::format("/proc/1/fd/{}", fd);
    int opened = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (opened < 0 && errno == ENOENT) continue;
    attempts.add("open " + path, opened);
    if (opened >= 0) ::close(opened);
  }
  DIR* dir = ::opendir("/proc/1/fd");
  if (!dir) attempts.add("list /proc/1/fd", -1);
  if (dir) {
    attempts.worked("list /proc/1/fd");
    ::closedir(dir);
  }
  return attempts.outcome();
}

// Talks to process 1 as if it were the host: into any pipe that it holds, in place of the other end.
Outcome link_pipe(const Args&) {
  Attempts attempts;
  for (int fd = 0; fd < 32; ++fd) {
    std::string path = fmt::format("/proc/1/fd/{}", fd);
    int pipe = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (pipe < 0) {
      if (errno != ENOENT) attempts.add("open " + path, -1);
      continue;
    }
    struct stat status{};
    if (::fstat(pipe, &status) == 0 && S_ISFIFO(status.st_mode))
      attempts.add("speak into " + path, ::write(pipe, "\0\0\0\0", 4));
    ::close(pipe);
  }
  if (attempts.outcome().kind == Outcome::untried) return contained("process 1 has no such pipe");
  return attempts.outcome();
}

// Any socket with a name on which process 1 might listen for its host.
Outcome link_socket(const Args&) {
  Attempts attempts;
  for (const char* name : {"@isola", "@isola-guest", "@isola-link", "/run/isola.sock", "/run/isola/guest.sock",
                           "/run/isola/launcher.sock", "/tmp/isola.sock"}) {
    int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    ::strncpy(address.sun_path, name, sizeof address.sun_path - 1);
    socklen_t size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + ::strlen(name));
    if (name[0] == '@') address.sun_path[0] = '\0';
    attempts.add(fmt::format("connect {}", name), ::connect(fd, reinterpret_cast<sockaddr*>(&address), size));
    ::close(fd);
  }
  return attempts.outcome();
}

// Bytes that look like frames of the link, on the outputs of an ordinary command: they must arrive as mere bytes.
Outcome link_frames(const Args&) {
  std::string frames;
  for (unsigned length : {0u, 1u, 4u, 0x7fffffffu, 0xffffffffu}) {
    for (unsigned char kind = 0; kind < 24; ++kind) {
      frames.append(reinterpret_cast<char*>(&length), 4);
      frames += static_cast<char>(kind);
      frames.append("\x01\x00\x00\x00\x00\x00\x00\x00isola", 13);
    }
  }
  for (int fd : {0, 1, 2}) {
    if (::write(fd, frames.data(), frames.size()) < 0) continue;
  }
  uint64_t sum = 0xcbf29ce484222325;  // FNV-1a, for the runner to compare with what arrived
  for (unsigned char c : frames) sum = (sum ^ c) * 0x100000001b3;
  return contained(
      fmt::format("{} bytes, sum {:x}, written to 0, 1 and 2: they must have arrived as output", frames.size(), sum));
}

// Signal by which the host asks for a new link. Whoever inside sends it must not be taken for the host.
bool was_fooled() {
  std::string witness = env("ISOLA_WITNESS");
  return !witness.empty() && wait_until(2000, [&] { return ::access(witness.c_str(), F_OK) == 0; });
}

Outcome reattach_by_kill(const Args&) {
  for (int i = 0; i < 3; ++i) {
    if (::kill(1, SIGRTMIN + 1) != 0) return judge("kill", -1);
  }
  return was_fooled() ? breach("process 1 took it for the host") : contained("sent; the link must go on");
}

Outcome reattach_by_queue(const Args&) {
  Attempts attempts;
  bool sent = false;
  for (int code : {SI_QUEUE, SI_USER, SI_KERNEL, SI_TIMER, SI_MESGQ, SI_ASYNCIO, SI_SIGIO, SI_TKILL}) {
    siginfo_t info{};
    info.si_signo = SIGRTMIN + 1;
    info.si_code = code;
    info.si_pid = 0;  // what a sender outside of the namespace looks like
    info.si_uid = 0;
    long result = ::syscall(SYS_rt_sigqueueinfo, 1, SIGRTMIN + 1, &info);
    if (result == 0)
      sent = true;
    else
      attempts.add(fmt::format("si_code {}", code), -1);
  }
  if (was_fooled()) return breach("process 1 took a forged sender for the host");
  return contained(sent ? "sent; the link must go on" : attempts.outcome().how);
}

constexpr Program kInitPrograms[] = {
    {"init-ptrace", "init", "traces process 1", "EPERM", ptrace_init},
    {"init-vm-read", "init", "reads process 1's memory by process_vm_readv", "EPERM", vm_readv},
    {"init-vm-write", "init", "writes process 1's memory by process_vm_writev", "EPERM", vm_writev},
    {"init-proc-mem", "init", "opens /proc/1/mem", "EACCES or EPERM", proc_mem},
    {"init-proc-secrets", "init", "reads environment, maps and stack of process 1", "EACCES, EPERM or empty",
     proc_secrets},
    {"init-pidfd-getfd", "init", "takes descriptors of process 1 by pidfd_getfd", "EPERM", pidfd_getfd},
    {"init-proc-fd", "init", "opens descriptors of process 1 through /proc/1/fd", "EACCES", proc_fd},
    {"link-pipe", "init", "speaks into the pipes of process 1 as if it were the host", "EACCES, or no such pipe",
     link_pipe},
    {"link-socket", "init", "connects to sockets on which process 1 or the launcher might listen", "none", link_socket,
     Expect::contained, 0, "", "there is nothing to switch off: no such socket exists anywhere inside"},
    {"link-frames", "init", "writes bytes that look like frames of the link to its outputs",
     "they arrive as output; the link goes on", link_frames, Expect::judged_outside, kRunsBare, "",
     "needs the link; the runner judges by the bytes that arrive"},
    {"reattach-kill", "init", "sends the re-attach signal to process 1 by kill", "ignored: the sender is inside",
     reattach_by_kill, Expect::judged_outside, kControlWitness},
    {"reattach-queue", "init", "sends the re-attach signal with forged sender by rt_sigqueueinfo",
     "refused, or ignored", reattach_by_queue, Expect::judged_outside, kControlWitness},
};

}  // namespace

Family init_programs() { return kInitPrograms; }

}  // namespace isola::hostile
