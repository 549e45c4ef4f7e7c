#include "kernel/process.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <memory>

#include "base/file.h"
#include "kernel/fault.h"

namespace isola::kernel {

namespace {
constexpr size_t kMaxFds = 64;
}

Result<Child> spawn(uint64_t flags, const std::function<int()>& body, int cgroup) {
  if (int e = fault::at("clone")) return sys_error("cannot create a process", e);
  int pidfd = -1;
  struct clone_args args{};
  args.flags = flags | CLONE_PIDFD;
  args.pidfd = reinterpret_cast<uint64_t>(&pidfd);
  args.exit_signal = SIGCHLD;
  if (cgroup >= 0) args.flags |= CLONE_INTO_CGROUP, args.cgroup = static_cast<uint64_t>(cgroup);
  long pid = ::syscall(SYS_clone3, &args, sizeof args);
  if (pid < 0) return sys_error("cannot create a process");
  if (pid == 0) ::_exit(body());
  return Child{static_cast<pid_t>(pid), Fd(pidfd)};
}

Result<uint64_t> start_time(pid_t pid) {
  ISOLA_TRY(std::string stat, read_file("/proc/" + std::to_string(pid) + "/stat"));
  // Field 22, counted after the command name, which may hold spaces and brackets itself.
  size_t at = stat.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  uint64_t ticks = 0;
  if (at == std::string::npos ||
      std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), ticks).ec != std::errc())
    return fail(Code::corrupt, "cannot read the start time of process " + std::to_string(pid));
  return ticks;
}

Result<Fd> open_pidfd(pid_t pid) {
  if (int e = fault::at("pidfd_open")) return sys_error("cannot open process " + std::to_string(pid), e);
  Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return sys_error("cannot open process " + std::to_string(pid));
  return fd;
}

Result<Fd> open_pidfd(const ProcessName& name) {
  ISOLA_TRY(Fd fd, open_pidfd(name.pid));
  // Opened first and compared second: from here on the pid cannot become another process unnoticed.
  auto started = start_time(name.pid);
  if (!started || *started != name.start_time)
    return fail(Code::not_found, "process " + std::to_string(name.pid) + " is gone", ESRCH);
  return fd;
}

Result<void> send_signal(int pidfd, int signal) {
  if (::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) < 0) return sys_error("cannot signal a process");
  return {};
}

void kill_group(pid_t leader, int pidfd) {
  constexpr unsigned kProcessGroup = 1u << 2;  // PIDFD_SIGNAL_PROCESS_GROUP, from Linux 6.9 on
  (void)send_signal(pidfd, SIGKILL);           // it may not lead one yet
  if (::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, kProcessGroup) < 0 && errno == EINVAL)
    ::kill(-leader, SIGKILL);
}

void wait_for(pid_t child) {
  if (child <= 0) return;
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<void> write_id_maps(pid_t pid, uint32_t base, uint32_t count) {
  std::string map = "0 " + std::to_string(base) + " " + std::to_string(count) + "\n";
  std::string proc = "/proc/" + std::to_string(pid);
  if (int e = fault::at("uid_map")) return sys_error("cannot map the ids", e);
  ISOLA_CHECK(write_file(proc + "/uid_map", map));
  return write_file(proc + "/gid_map", map);
}

Result<Fd> open_namespace(pid_t pid, const std::string& kind) {
  std::string path = "/proc/" + std::to_string(pid) + "/ns/" + kind;
  if (int e = fault::at("open_ns")) return sys_error("cannot open " + path, e);
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return sys_error("cannot open " + path);
  return fd;
}

Result<void> send_message(int socket, std::string_view bytes, std::span<const int> fds) {
  if (fds.size() > kMaxFds) return fail(Code::invalid, "too many file descriptors in one message");
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)];
  iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr msg{};
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  if (!fds.empty()) {
    msg.msg_control = control;
    msg.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* head = CMSG_FIRSTHDR(&msg);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(head), fds.data(), fds.size_bytes());
  }
  ssize_t n;
  do n = ::sendmsg(socket, &msg, MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  if (n < 0) return sys_error("cannot send a message");
  return {};
}

Result<Message> receive_message(int socket, size_t max) {
  Message out;
  // One for each thread that ever receives: an allocation of that size makes the allocator tidy up, which costs more
  // than most messages do.
  thread_local std::unique_ptr<char[]> buffer;
  thread_local size_t size = 0;
  if (size < max) buffer.reset(new char[size = max]);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)];
  iovec iov{buffer.get(), max};
  msghdr msg{};
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  msg.msg_control = control;
  msg.msg_controllen = sizeof control;
  ssize_t n;
  do n = ::recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  // Said after every last message: without a sentence that nobody reads.
  if (n < 0 && errno == EAGAIN) return fail(Code::unavailable, "nothing there", EAGAIN);
  if (n < 0) return sys_error("cannot receive a message");
  for (cmsghdr* head = CMSG_FIRSTHDR(&msg); head; head = CMSG_NXTHDR(&msg, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
      out.fds.emplace_back(fd);
    }
  }
  if (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return fail(Code::corrupt, "a message was larger than allowed");
  out.bytes.assign(buffer.get(), static_cast<size_t>(n));
  ::explicit_bzero(buffer.get(), static_cast<size_t>(n));  // some carry secrets
  return out;
}

Result<std::pair<Fd, Fd>> socket_pair() {
  int fds[2];
  if (int e = fault::at("socketpair")) return sys_error("cannot create a socket pair", e);
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) return sys_error("cannot create a socket pair");
  return std::pair(Fd(fds[0]), Fd(fds[1]));
}

Result<std::pair<Fd, Fd>> make_pipe() {
  int fds[2];
  if (int e = fault::at("pipe")) return sys_error("cannot create a pipe", e);
  if (::pipe2(fds, O_CLOEXEC) < 0) return sys_error("cannot create a pipe");
  return std::pair(Fd(fds[0]), Fd(fds[1]));
}

}  // namespace isola::kernel
