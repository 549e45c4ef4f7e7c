// What container checkers print, as one small static program: capabilities, seccomp, namespaces, and which system calls
// are refused, by trying them in a harmless way. One fact per line, so that a test can compare all of it.
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/if_alg.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>

#ifndef AF_VSOCK
#define AF_VSOCK 40
#endif

namespace {

// Each in a child of its own: a call that unexpectedly works must not change what the next one sees.
void attempt(const char* name, const std::function<long()>& call) {
  std::fflush(stdout);
  pid_t pid = ::fork();
  if (pid == 0) {
    errno = 0;
    long got = call();
    std::printf("%s: %s\n", name, got >= 0 ? "works" : ::strerrorname_np(errno));
    std::fflush(stdout);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) std::printf("%s: killed\n", name);
}

void fact(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ":")) std::printf("%s %s\n", field.c_str(), line.c_str() + line.find('\t') + 1);
}

}  // namespace

int main() {
  for (const char* field :
       {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters"})
    fact(field);
  for (const char* map : {"uid_map", "gid_map"}) {
    std::ifstream in(std::string("/proc/self/") + map);
    unsigned long inside = 1, outside = 0, count = 0;
    in >> inside >> outside >> count;
    std::printf("%s %lu %s %lu\n", map, inside, outside >= 0x40000000 ? "own" : "HOST", count);
  }
  attempt("bpf", [] {
    union bpf_attr attr{};
    return ::syscall(SYS_bpf, 0, &attr, sizeof attr);
  });
  attempt("perf_event_open", [] { return ::syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0); });
  attempt("io_uring_setup", [] { return ::syscall(SYS_io_uring_setup, 1, nullptr); });
  attempt("userfaultfd", [] { return ::syscall(SYS_userfaultfd, 0); });
  attempt("keyctl", [] { return ::syscall(SYS_keyctl, 0, -3, 1, 0, 0); });
  attempt("add_key", [] { return ::syscall(SYS_add_key, "user", "x", "y", 1, -3); });
  attempt("kexec_load", [] { return ::syscall(SYS_kexec_load, 0, 0, nullptr, 0); });
  attempt("init_module", [] { return ::syscall(SYS_init_module, nullptr, 0, ""); });
  attempt("finit_module", [] { return ::syscall(SYS_finit_module, -1, "", 0); });
  attempt("mount", [] { return ::mount("x", "/tmp", "tmpfs", 0, nullptr); });
  attempt("umount2", [] { return ::umount2("/proc", MNT_DETACH); });
  attempt("pivot_root", [] { return ::syscall(SYS_pivot_root, "/", "/"); });
  attempt("fsopen", [] { return ::syscall(SYS_fsopen, "tmpfs", 0); });
  attempt("open_tree", [] { return ::syscall(SYS_open_tree, AT_FDCWD, "/", 0); });
  attempt("move_mount", [] { return ::syscall(SYS_move_mount, -1, "", -1, "", 0); });
  attempt("setns", [] { return ::syscall(SYS_setns, -1, 0); });
  attempt("unshare user", [] { return ::unshare(CLONE_NEWUSER); });
  attempt("unshare mount", [] { return ::unshare(CLONE_NEWNS); });
  attempt("unshare net", [] { return ::unshare(CLONE_NEWNET); });
  attempt("clone user", [] { return ::syscall(SYS_clone, CLONE_NEWUSER | 17, nullptr, nullptr, nullptr, nullptr); });
  attempt("clone3", [] {
    clone_args args{};
    return ::syscall(SYS_clone3, &args, sizeof args);
  });
  attempt("reboot", [] { return ::syscall(SYS_reboot, 0xfee1dead, 672274793, 0, nullptr); });
  attempt("settimeofday", [] { return ::syscall(SYS_settimeofday, nullptr, nullptr); });
  attempt("clock_settime", [] {
    timespec now{};
    return ::syscall(SYS_clock_settime, 0, &now);
  });
  attempt("swapon", [] { return ::syscall(SYS_swapon, "/x", 0); });
  attempt("acct", [] { return ::syscall(SYS_acct, nullptr); });
  attempt("quotactl", [] { return ::syscall(SYS_quotactl, 0, nullptr, 0, nullptr); });
  attempt("syslog", [] { return ::syscall(SYS_syslog, 3, nullptr, 0); });
  attempt("ioperm", [] { return ::syscall(SYS_ioperm, 0, 1, 1); });
  attempt("iopl", [] { return ::syscall(SYS_iopl, 3); });
  attempt("open_by_handle_at", [] { return ::syscall(SYS_open_by_handle_at, -1, nullptr, 0); });
  attempt("landlock", [] { return ::syscall(SYS_landlock_create_ruleset, nullptr, 0, 1); });
  attempt("socket AF_ALG", [] { return ::socket(AF_ALG, SOCK_SEQPACKET, 0); });
  attempt("socket AF_VSOCK", [] { return ::socket(AF_VSOCK, SOCK_STREAM, 0); });
  attempt("socket AF_PACKET", [] { return ::socket(AF_PACKET, SOCK_RAW, 0); });
  attempt("socket raw", [] { return ::socket(AF_INET, SOCK_RAW, 1); });
  attempt("mknod device", [] { return ::mknod("/tmp/sda", S_IFBLK | 0600, 0x800); });
  attempt("chroot", [] { return ::chroot("/tmp"); });
  attempt("sethostname", [] { return ::sethostname("x", 1); });
  attempt("socket tcp", [] { return ::socket(AF_INET, SOCK_STREAM, 0); });
  attempt("socket unix", [] { return ::socket(AF_UNIX, SOCK_STREAM, 0); });
  attempt("setuid", [] { return ::setuid(1000); });
  attempt("chown", [] {
    ::close(::open("/tmp/own", O_CREAT | O_WRONLY, 0600));
    return ::chown("/tmp/own", 1000, 1000);
  });
}
