// Features that some tools need, and that boundaries differ about most. Each is tried where nobody else feels it.
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

sock_filter refuse_uname[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_uname, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EXDEV),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
sock_fprog filter{4, refuse_uname};

// Its errno, or 0: in a child, since it changes the namespace of who calls.
Answer worked(int code, const char* what) { return code == 0 ? ok() : failed(what, code); }
int unshared(int flags) {
  return in_child([=] { return ::unshare(flags) < 0 ? errno : 0; });
}

constexpr Check kKernelChecks[] = {
    {"kernel-name", "uname says Linux, and x86_64",
     [] {
       utsname name{};
       NEED("uname", ::uname(&name));
       WANT(std::string(name.sysname) == "Linux" && std::string(name.machine) == "x86_64", "another");
       WANT(::atoi(name.release) >= 4, "an old release");
       return ok();
     }},
    {"kernel-random", "getrandom gives bytes without waiting",
     [] {
       char a[32], b[32];
       WANT(::getrandom(a, 32, GRND_NONBLOCK) == 32 && ::getrandom(b, 32, 0) == 32, "fewer bytes");
       WANT(::memcmp(a, b, 32) != 0, "the same bytes");
       return ok();
     }},
    {"kernel-sysinfo", "sysinfo tells memory and uptime",
     [] {
       struct sysinfo info{};
       NEED("sysinfo", ::sysinfo(&info));
       WANT(info.totalram > 0 && info.uptime > 0 && info.procs > 0, "one is missing");
       return ok();
     }},
    {"seccomp-filter", "a program installs a filter of its own, as browsers and package managers do",
     [] {
       NEED("PR_SET_NO_NEW_PRIVS", ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
       NEED("PR_SET_SECCOMP", ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
       utsname name{};
       REFUSED("uname", ::uname(&name), EXDEV);
       return ok();
     }},
    {"seccomp-strict", "strict mode kills who calls anything else",
     [] {
       int code = in_child([] {
         if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) < 0) return errno;
         ::syscall(SYS_getppid);
         return 0;
       });
       if (code == EINVAL || code == EPERM || code == ENOSYS) return failed("PR_SET_SECCOMP", code);
       WANT(code == 128 + SIGKILL, "it was not killed");
       return ok();
     }},
    {"seccomp-notify", "a filter can hand calls to another process",
     [] {
       ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
       NEED("seccomp", ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter));
       return ok();
     }},
    {"io-uring", "io_uring is there",
     [] {
       char parameters[120] = {};
       NEED("io_uring_setup", ::syscall(SYS_io_uring_setup, 4, parameters));
       return ok();
     }},
    {"userfaultfd", "userfaultfd is there",
     [] {
       NEED("userfaultfd", ::syscall(SYS_userfaultfd, O_CLOEXEC));
       return ok();
     }},
    {"perf", "perf_event_open counts a process's own time",
     [] {
       perf_event_attr how{};
       how.type = PERF_TYPE_SOFTWARE, how.size = sizeof how, how.config = PERF_COUNT_SW_TASK_CLOCK;
       NEED("perf_event_open", ::syscall(SYS_perf_event_open, &how, 0, -1, -1, 0));
       return ok();
     }},
    {"bpf", "root makes a bpf map",
     [] {
       bpf_attr how{};
       how.map_type = BPF_MAP_TYPE_ARRAY, how.key_size = 4, how.value_size = 8, how.max_entries = 1;
       NEED("bpf", ::syscall(SYS_bpf, BPF_MAP_CREATE, &how, sizeof how));
       return ok();
     }},
    {"keyring", "a process has a keyring",
     [] {
       NEED("add_key", ::syscall(SYS_add_key, "user", "isola-check", "x", 1, -2));  // of this process
       return ok();
     }},
    {"landlock", "landlock tells its version",
     [] {
       NEED("landlock_create_ruleset", ::syscall(SYS_landlock_create_ruleset, nullptr, 0, 1));
       return ok();
     }},
    {"native-aio", "io_setup makes a context",
     [] {
       unsigned long context = 0;
       NEED("io_setup", ::syscall(SYS_io_setup, 4, &context));
       return ok();
     }},
    {"file-handles", "a file can be named by a handle and opened by it",
     [] {
       scratch_file("abc");
       struct {
         file_handle head;
         unsigned char room[128];
       } handle{};
       handle.head.handle_bytes = 128;
       int mount = 0;
       NEED("name_to_handle_at", ::name_to_handle_at(AT_FDCWD, "file", &handle.head, &mount, 0));
       int folder = ::open(".", O_RDONLY | O_DIRECTORY);
       NEED("open_by_handle_at", ::open_by_handle_at(folder, &handle.head, O_RDONLY));
       return ok();
     }},
    {"namespace-user", "a new user namespace, as rootless containers need it",
     [] { return worked(unshared(CLONE_NEWUSER), "unshare"); }},
    {"namespace-mount", "root makes a mount namespace", [] { return worked(unshared(CLONE_NEWNS), "unshare"); }},
    {"namespace-pid", "root makes a pid namespace, whose first process is 1",
     [] {
       int code = in_child([] {
         if (::unshare(CLONE_NEWPID) < 0) return errno;
         pid_t child = ::fork();
         if (child == 0) ::_exit(::getpid() == 1 ? 0 : 1);
         return end_of(child);
       });
       return worked(code, "unshare");
     }},
    {"namespace-net", "root makes a network namespace", [] { return worked(unshared(CLONE_NEWNET), "unshare"); }},
    {"namespace-uts", "root has a host name of its own in a new namespace",
     [] {
       int code = in_child([] {
         if (::unshare(CLONE_NEWUTS) < 0) return errno;
         if (::sethostname("check", 5) < 0) return errno;
         utsname name{};
         ::uname(&name);
         return std::string(name.nodename) == "check" ? 0 : 200;
       });
       WANT(code != 200, "the name is another");
       return worked(code, "unshare");
     }},
    {"mount-tmpfs", "root mounts a tmpfs in a mount namespace of its own",
     [] {
       int code = in_child([] {
         if (::unshare(CLONE_NEWNS) < 0) return errno;
         if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0) return errno;
         ::mkdir("m", 0755);
         return ::mount("tmpfs", "m", "tmpfs", 0, nullptr) < 0 ? errno : 0;
       });
       return worked(code, "mount");
     }},
    {"mount-overlay", "root mounts an overlay, as container engines do",
     [] {
       int code = in_child([] {
         if (::unshare(CLONE_NEWNS) < 0) return errno;
         if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0) return errno;
         ::mkdir("t", 0755);
         if (::mount("tmpfs", "t", "tmpfs", 0, nullptr) < 0) return errno;
         for (const char* name : {"t/l", "t/u", "t/w", "t/m"}) ::mkdir(name, 0755);
         return ::mount("overlay", "t/m", "overlay", 0, "lowerdir=t/l,upperdir=t/u,workdir=t/w") < 0 ? errno : 0;
       });
       return worked(code, "mount");
     }},
    {"mount-bind", "root binds one folder to another",
     [] {
       int code = in_child([] {
         if (::unshare(CLONE_NEWNS) < 0) return errno;
         if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0) return errno;
         ::mkdir("a", 0755);
         ::mkdir("b", 0755);
         return ::mount("a", "b", nullptr, MS_BIND, nullptr) < 0 ? errno : 0;
       });
       return worked(code, "mount");
     }},
    {"chroot", "root changes its root",
     [] {
       int code = in_child([] { return ::chroot(".") < 0 ? errno : (::access("/proc", F_OK) < 0 ? 0 : 200); });
       WANT(code != 200, "it is the old one");
       return worked(code, "chroot");
     }},
    {"mknod-device", "root makes a device node",
     [] {
       NEED("mknod", ::mknod("null", S_IFCHR | 0666, static_cast<dev_t>(0x103)));
       return ok();
     }},
    {"device-fuse", "/dev/fuse can be opened",
     [] {
       NEED("open", ::open("/dev/fuse", O_RDWR));
       return ok();
     }},
    {"device-tun", "/dev/net/tun can be opened",
     [] {
       NEED("open", ::open("/dev/net/tun", O_RDWR));
       return ok();
     }},
    {"scheduler", "a process chooses SCHED_BATCH and SCHED_IDLE",
     [] {
       sched_param none{};
       NEED("SCHED_BATCH", ::sched_setscheduler(0, SCHED_BATCH, &none));
       WANT(::sched_getscheduler(0) == SCHED_BATCH, "it was not taken");
       NEED("SCHED_IDLE", ::sched_setscheduler(0, SCHED_IDLE, &none));
       return ok();
     }},
    {"limits-lower", "every resource limit can be read and lowered",
     [] {
       for (__rlimit_resource one : {RLIMIT_AS, RLIMIT_DATA, RLIMIT_STACK, RLIMIT_NPROC, RLIMIT_MEMLOCK}) {
         rlimit was{}, now{};
         NEED("getrlimit", ::getrlimit(one, &was));
         was.rlim_cur = was.rlim_max = std::min<rlim_t>(was.rlim_max, 1ull << 40);
         NEED("setrlimit", ::setrlimit(one, &was));
         ::getrlimit(one, &now);
         WANT(now.rlim_cur == was.rlim_cur, "it was not taken");
       }
       return ok();
     }},
    {"limit-memory", "RLIMIT_AS refuses memory beyond it",
     [] {
       int code = in_child([] {
         rlimit small{256 << 20, 256 << 20};
         if (::setrlimit(RLIMIT_AS, &small) < 0) return errno;
         return ::malloc(1ull << 30) ? 200 : 0;
       });
       WANT(code != 200, "it gives more");
       return worked(code, "setrlimit");
     }},
    {"limit-core", "a core limit that was lowered is kept",
     [] {
       rlimit none{0, 0}, now{1, 1};
       NEED("setrlimit", ::setrlimit(RLIMIT_CORE, &none));
       ::getrlimit(RLIMIT_CORE, &now);
       WANT(now.rlim_cur == 0, "another value");
       return ok();
     }},
};

}  // namespace

Checks kernel_checks() { return kKernelChecks; }

}  // namespace isola::behaviour
