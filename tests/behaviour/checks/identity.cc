// Users, groups and capabilities.
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

constexpr uid_t kUser = 12345;

// As that user, and back what it answers.
template <typename F>
int as_user(F f, uid_t uid = kUser) {
  return in_child([&] {
    if (::setgroups(0, nullptr) < 0 || ::setgid(uid) < 0 || ::setuid(uid) < 0) return 100;
    return f();
  });
}
Answer errno_is(int code, int wanted, const char* what) {
  if (code == wanted) return ok();
  if (code == 100) return differs("cannot become that user");
  return differs(std::string(what) + ": " + (code == 0 ? "works" : errno_name(code)) + " instead of " +
                 errno_name(wanted));
}

constexpr Check kIdentityChecks[] = {
    {"user-drop", "root becomes another user, for good",
     [] {
       WANT(as_user([] { return ::getuid() == kUser && ::geteuid() == kUser && ::getgid() == kUser ? 3 : 4; }) == 3,
            "other ids");
       return errno_is(as_user([] { return ::setuid(0) < 0 ? errno : 0; }), EPERM, "setuid back");
     }},
    {"user-saved", "a saved id can be taken back",
     [] {
       int code = in_child([] {
         if (::setresuid(0, kUser, 0) < 0) return 1;
         if (::geteuid() != kUser) return 2;
         if (::seteuid(0) < 0) return 3;
         uid_t real, effective, saved;
         ::getresuid(&real, &effective, &saved);
         return real == 0 && effective == 0 && saved == 0 ? 5 : 4;
       });
       WANT(code == 5, "step " + std::to_string(code));
       return ok();
     }},
    {"user-groups", "supplementary groups are as they were set",
     [] {
       gid_t groups[] = {7, 100, 12345}, got[10];
       NEED("setgroups", ::setgroups(3, groups));
       WANT(::getgroups(10, got) == 3 && got[2] == 12345, "others");
       return ok();
     }},
    {"user-file-rights", "another user may not read what is only root's",
     [] {
       spill("secret", "x", 0600);
       return errno_is(as_user([] { return ::open("secret", O_RDONLY) < 0 ? errno : 0; }), EACCES, "open");
     }},
    {"user-group-rights", "a group may read what is its own",
     [] {
       spill("shared", "x", 0640);
       NEED("chown", ::chown("shared", 0, 777));
       int code = in_child([] {
         gid_t group = 777;
         if (::setgroups(1, &group) < 0 || ::setgid(kUser) < 0 || ::setuid(kUser) < 0) return 100;
         return ::open("shared", O_RDONLY) < 0 ? errno : 0;
       });
       WANT(code == 0, "it may not");
       return ok();
     }},
    {"user-root-reads", "root reads what has no rights at all",
     [] {
       spill("file", "x", 0644);
       NEED("chmod", ::chmod("file", 0));
       NEED("open", ::open("file", O_RDWR));
       return ok();
     }},
    {"user-chown", "root gives files away, and the setuid bit goes when it does",
     [] {
       spill("file", "x");
       NEED("chmod", ::chmod("file", 04755));
       NEED("chown", ::chown("file", kUser, 99));
       struct stat s{};
       ::stat("file", &s);
       WANT(s.st_uid == kUser && s.st_gid == 99, "another owner");
       WANT((s.st_mode & 07777) == 0755, "the setuid bit stays");
       return ok();
     }},
    {"user-chown-refused", "others may not give files away",
     [] {
       spill("file", "x");
       NEED("chown", ::chown("file", kUser, kUser));
       return errno_is(as_user([] { return ::chown("file", 54321, 54321) < 0 ? errno : 0; }), EPERM, "chown");
     }},
    {"user-sticky", "in a sticky folder only the owner removes a file",
     [] {
       NEED("mkdir", ::mkdir("sticky", 0755));
       NEED("chmod", ::chmod("sticky", 01777));
       spill("sticky/file", "x");
       return errno_is(as_user([] { return ::unlink("sticky/file") < 0 ? errno : 0; }), EPERM, "unlink");
     }},
    {"user-group-folder", "files in a setgid folder have its group",
     [] {
       NEED("mkdir", ::mkdir("d", 0755));
       NEED("chown", ::chown("d", 0, 777));
       NEED("chmod", ::chmod("d", 02755));
       spill("d/file", "");
       struct stat s{};
       ::stat("d/file", &s);
       WANT(s.st_gid == 777, "another group");
       return ok();
     }},
    {"user-setuid-program", "a setuid program runs as its owner",
     [] {
       WANT(spill("program", slurp("/proc/self/exe"), 0755), "cannot copy this program");
       NEED("chown", ::chown("program", 4321, 0));
       NEED("chmod", ::chmod("program", 04755));
       int ends[2];
       NEED("pipe", ::pipe(ends));
       int code = as_user([&] {
         ::dup2(ends[1], 1);
         ::execl("./program", "program", "helper", "ids", nullptr);
         return errno;
       });
       WANT(code == 0, "exec: " + errno_name(code));
       char text[64] = "";
       NEED("read", ::read(ends[0], text, sizeof text - 1));
       WANT(std::string(text) == "12345 4321\n", "it runs as somebody else");
       return ok();
     }},
    {"user-no-new-privileges", "after PR_SET_NO_NEW_PRIVS a setuid program does not",
     [] {
       WANT(spill("program", slurp("/proc/self/exe"), 0755), "cannot copy this program");
       NEED("chown", ::chown("program", 4321, 0));
       NEED("chmod", ::chmod("program", 04755));
       int ends[2];
       NEED("pipe", ::pipe(ends));
       as_user([&] {
         ::dup2(ends[1], 1);
         ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
         ::execl("./program", "program", "helper", "ids", nullptr);
         return errno;
       });
       char text[64] = "";
       NEED("read", ::read(ends[0], text, sizeof text - 1));
       WANT(std::string(text) == "12345 12345\n", "it runs as its owner");
       return ok();
     }},
    {"user-access-real", "access looks at the real user",
     [] {
       spill("file", "x", 0600);
       int code = in_child([] {
         if (::setresuid(kUser, 0, 0) < 0) return 100;
         if (::open("file", O_RDONLY) < 0) return 101;
         return ::access("file", R_OK) < 0 ? errno : 0;
       });
       WANT(code != 101, "open does not look at the effective user");
       return errno_is(code, EACCES, "access");
     }},
    {"user-signals", "a user may not signal others' processes",
     [] {
       pid_t child = begin_child([] { return ::pause(); });
       return errno_is(as_user([child] { return ::kill(child, SIGTERM) < 0 ? errno : 0; }), EPERM, "kill");
     }},
    {"capability-drop", "without CAP_DAC_OVERRIDE root is held to the rights of files",
     [] {
       spill("file", "x", 0644);
       NEED("chown", ::chown("file", kUser, kUser));
       NEED("chmod", ::chmod("file", 0600));
       __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
       __user_cap_data_struct data[2];
       NEED("capget", ::syscall(SYS_capget, &head, data));
       WANT(data[0].effective & (1u << CAP_DAC_OVERRIDE), "root does not have it");
       data[0].effective &= ~((1u << CAP_DAC_OVERRIDE) | (1u << CAP_DAC_READ_SEARCH));
       NEED("capset", ::syscall(SYS_capset, &head, data));
       REFUSED("open", ::open("file", O_RDONLY), EACCES);
       return ok();
     }},
    {"capability-bounding", "a capability can be dropped from the bounding set",
     [] {
       WANT(::prctl(PR_CAPBSET_READ, CAP_CHOWN) == 1, "it is not in the set");
       NEED("PR_CAPBSET_DROP", ::prctl(PR_CAPBSET_DROP, CAP_CHOWN));
       WANT(::prctl(PR_CAPBSET_READ, CAP_CHOWN) == 0, "it stays");
       return ok();
     }},
    {"capability-lost", "who leaves root has no capabilities, unless PR_SET_KEEPCAPS",
     [] {
       auto has = [] { return line_of(slurp("/proc/self/status"), "CapPrm:\t") != "0000000000000000"; };
       WANT(as_user([&] { return has() ? 1 : 0; }) == 0, "it keeps some");
       WANT(as_user([&] { return 0; }) == 0, "cannot become that user");
       int kept = in_child([&] {
         ::prctl(PR_SET_KEEPCAPS, 1);
         return ::setuid(kUser) == 0 && has() ? 1 : 0;
       });
       WANT(kept == 1, "PR_SET_KEEPCAPS keeps none");
       return ok();
     }},
};

}  // namespace

Checks identity_checks() { return kIdentityChecks; }

}  // namespace isola::behaviour
