// What programs read in /proc, /dev and /sys.
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "../topics.h"
#include "inet.h"

namespace isola::behaviour {
namespace {

std::string link_of(const std::string& path) {
  char target[PATH_MAX];
  ssize_t n = ::readlink(path.c_str(), target, sizeof target);
  return n < 0 ? "" : std::string(target, static_cast<size_t>(n));
}
std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> all;
  for (std::string word; in >> word;) all.push_back(word);
  return all;
}
bool lists(const char* folder, const std::string& name) {
  DIR* dir = ::opendir(folder);
  bool found = false;
  while (dirent* entry = dir ? ::readdir(dir) : nullptr) found |= name == entry->d_name;
  return found;
}
// The file is there, and has each of these texts in it.
Answer holds(const std::string& path, std::initializer_list<const char*> texts) {
  std::string text = slurp(path);
  if (text.empty()) {
    int fd = ::open(path.c_str(), O_RDONLY);
    return fd < 0 ? differs(path + ": " + errno_name(errno)) : differs(path + " is empty");
  }
  for (std::string_view one : texts) {
    if (text.find(one) != std::string::npos) continue;
    std::string word;
    for (char c : one)
      if (c >= ' ') word += c;
    return differs(path + " has no '" + word + "'");
  }
  return ok();
}
bool is_device(const char* path, unsigned major, unsigned minor) {
  struct stat s{};
  return ::stat(path, &s) == 0 && S_ISCHR(s.st_mode) && s.st_rdev == ::makedev(major, minor);
}

constexpr Check kProcChecks[] = {
    {"proc-exe", "/proc/self/exe leads to the program",
     [] {
       std::string path = link_of("/proc/self/exe");
       WANT(!path.empty() && path[0] == '/', "no path");
       WANT(slurp("/proc/self/exe").substr(0, 4) == "\177ELF", "not a program");
       return ok();
     }},
    {"proc-cmdline", "cmdline and environ hold words and variables, with zeros between",
     [] {
       WANT(slurp("/proc/self/cmdline").find('\0') != std::string::npos, "no zeros");
       WANT(::getenv("PATH") == nullptr || slurp("/proc/self/environ").find("PATH=") != std::string::npos, "no PATH");
       return ok();
     }},
    {"proc-status", "status tells name, state, ids, memory and threads",
     [] {
       return holds("/proc/self/status", {"Name:\t", "State:\tR", "\nPid:\t", "\nPPid:\t", "\nUid:\t", "\nVmRSS:\t",
                                          "\nVmSize:\t", "\nThreads:\t1\n", "\nSigBlk:\t", "\nCapEff:\t"});
     }},
    {"proc-status-more", "status tells seccomp, groups, allowed processors and switches",
     [] {
       return holds("/proc/self/status", {"\nSeccomp:\t", "\nGroups:\t", "\nCpus_allowed_list:\t", "\nVmPeak:\t",
                                          "\nvoluntary_ctxt_switches:\t", "\nNSpid:\t"});
     }},
    {"proc-stat", "stat has 52 fields",
     [] {
       std::string text = slurp("/proc/self/stat");
       size_t name = text.rfind(')');
       WANT(name != std::string::npos, "no name");
       auto fields = words(text.substr(name + 1));
       WANT(fields.size() == 50, std::to_string(fields.size() + 2) + " fields");
       WANT(std::atoi(text.c_str()) == ::getpid() && fields[1] == std::to_string(::getppid()), "other numbers");
       WANT(std::atol(fields[20].c_str()) > 0, "no memory");
       return ok();
     }},
    {"proc-start-time", "stat tells when a process was started",
     [] {
       auto fields = words(slurp("/proc/self/stat").substr(slurp("/proc/self/stat").rfind(')') + 1));
       double started = std::atof(fields[19].c_str()) / static_cast<double>(::sysconf(_SC_CLK_TCK));
       double up = std::atof(slurp("/proc/uptime").c_str());
       WANT(started > 0 && started <= up + 0.02, "not between the machine's start and now");
       WANT(up - started < 100, "long ago");
       return ok();
     }},
    {"proc-fd", "/proc/self/fd lists open descriptors and where they lead",
     [] {
       int fd = scratch_file();
       std::string number = std::to_string(fd);
       WANT(lists("/proc/self/fd", number), "not listed");
       WANT(link_of("/proc/self/fd/" + number).ends_with("/proc-fd/file"), "another file");
       int ends[2];
       NEED("pipe", ::pipe(ends));
       WANT(link_of("/proc/self/fd/" + std::to_string(ends[0])).starts_with("pipe:["), "a pipe has another name");
       return ok();
     }},
    {"proc-fd-deleted", "a deleted file is called so",
     [] {
       int fd = scratch_file();
       ::unlink("file");
       WANT(link_of("/proc/self/fd/" + std::to_string(fd)).ends_with("file (deleted)"), "it is not");
       return ok();
     }},
    {"proc-fdinfo", "fdinfo tells position and flags",
     [] {
       ::dup2(scratch_file("abcdef"), 50);
       ::lseek(50, 4, SEEK_SET);
       return holds("/proc/self/fdinfo/50", {"pos:\t4", "flags:\t0"});
     }},
    {"proc-links", "cwd and root lead to the folders",
     [] {
       WANT(link_of("/proc/self/cwd").ends_with("/proc-links"), "another cwd");
       WANT(link_of("/proc/self/root") == "/", "another root");
       return ok();
     }},
    {"proc-self", "/proc/self and /proc/thread-self are this process",
     [] {
       std::string pid = std::to_string(::getpid());
       WANT(link_of("/proc/self") == pid, "/proc/self");
       WANT(link_of("/proc/thread-self") == pid + "/task/" + pid, "/proc/thread-self");
       WANT(lists("/proc", pid), "it is not listed in /proc");
       return ok();
     }},
    {"proc-children", "task/…/children lists the children",
     [] {
       pid_t child = begin_child([] { return ::pause(); });
       std::string pid = std::to_string(::getpid());
       std::string text = slurp("/proc/" + pid + "/task/" + pid + "/children");
       WANT(words(text) == std::vector<std::string>{std::to_string(child)}, text.empty() ? "empty" : "others");
       return ok();
     }},
    {"proc-other", "status, cmdline and fd of a child can be read",
     [] {
       pid_t child = begin_child([] { return ::pause(); });
       std::string folder = "/proc/" + std::to_string(child);
       WANT(line_of(slurp(folder + "/status"), "PPid:\t") == std::to_string(::getpid()), "status");
       WANT(slurp(folder + "/cmdline") == slurp("/proc/self/cmdline"), "cmdline");
       WANT(lists((folder + "/fd").c_str(), "0"), "fd");
       return ok();
     }},
    {"proc-smaps", "smaps and smaps_rollup tell resident and proportional memory",
     [] {
       auto one = holds("/proc/self/smaps", {"Rss:", "Pss:", "Private_Dirty:"});
       if (one.kind != Answer::ok) return one;
       return holds("/proc/self/smaps_rollup", {"Rss:", "Pss:"});
     }},
    {"proc-statm", "statm tells size and residence in pages",
     [] {
       auto fields = words(slurp("/proc/self/statm"));
       WANT(fields.size() == 7 && std::atol(fields[1].c_str()) > 0, "other fields");
       return ok();
     }},
    {"proc-io", "io counts what was read and written",
     [] { return holds("/proc/self/io", {"rchar: ", "wchar: ", "write_bytes: "}); }},
    {"proc-limits", "limits lists the resource limits",
     [] { return holds("/proc/self/limits", {"Max open files", "Max processes", "Max core file size"}); }},
    {"proc-mounts", "mounts and mountinfo list / and /proc",
     [] {
       auto one = holds("/proc/self/mounts", {" / ", " /proc proc "});
       if (one.kind != Answer::ok) return one;
       return holds("/proc/self/mountinfo", {" / / ", " /proc ", " - proc "});
     }},
    {"proc-cgroup", "cgroup tells a group", [] { return holds("/proc/self/cgroup", {":/"}); }},
    {"proc-oom", "oom_score_adj can be raised",
     [] {
       WANT(spill("/proc/self/oom_score_adj", "500"), "it cannot");
       WANT(slurp("/proc/self/oom_score_adj") == "500\n", "another value");
       return ok();
     }},
    {"proc-namespaces", "/proc/self/ns names the namespaces",
     [] {
       for (const char* name : {"mnt", "net", "pid", "user", "uts", "ipc", "cgroup"}) {
         std::string link = link_of(std::string("/proc/self/ns/") + name);
         WANT(link.starts_with(std::string(name) + ":["), std::string("no ") + name);
       }
       return ok();
     }},
    {"proc-uid-map", "uid_map shows which users there are",
     [] {
       WANT(words(slurp("/proc/self/uid_map")).size() >= 3, "no map");
       return ok();
     }},
    {"proc-mem", "/proc/self/mem is the memory",
     [] {
       static char text[] = "abc";
       int fd = ::open("/proc/self/mem", O_RDWR);
       NEED("open", fd);
       char got[4] = "";
       NEED("pread", ::pread(fd, got, 3, static_cast<off_t>(reinterpret_cast<uintptr_t>(text))));
       WANT(std::string(got) == "abc", "other bytes");
       NEED("pwrite", ::pwrite(fd, "X", 1, static_cast<off_t>(reinterpret_cast<uintptr_t>(text))));
       WANT(text[0] == 'X', "it is not written");
       return ok();
     }},
    {"proc-pagemap", "pagemap tells which pages are present",
     [] {
       static volatile char page[8192];
       page[4096] = 1;
       int fd = ::open("/proc/self/pagemap", O_RDONLY);
       NEED("open", fd);
       uint64_t entry = 0;
       NEED("pread", ::pread(fd, &entry, 8, static_cast<off_t>(reinterpret_cast<uintptr_t>(&page[4096]) / 4096 * 8)));
       WANT(entry >> 63, "a touched page is not present");
       return ok();
     }},
    {"proc-auxv", "auxv is what the program was given",
     [] {
       std::string text = slurp("/proc/self/auxv");
       WANT(text.size() >= 16 && text.size() % 16 == 0, "another size");
       WANT(::getauxval(AT_PAGESZ) == 4096 && ::getauxval(AT_RANDOM) != 0, "no page size or no random bytes");
       return ok();
     }},
    {"proc-meminfo", "meminfo tells total, free and available memory",
     [] { return holds("/proc/meminfo", {"MemTotal:", "MemFree:", "MemAvailable:", "Cached:", "SwapTotal:"}); }},
    {"proc-cpuinfo", "cpuinfo lists a processor for each that is online, with flags",
     [] {
       std::string text = slurp("/proc/cpuinfo");
       long count = 0;
       for (size_t at = 0; (at = text.find("processor\t:", at)) != std::string::npos; ++at) ++count;
       WANT(count == ::sysconf(_SC_NPROCESSORS_ONLN), "another number of them");
       return holds("/proc/cpuinfo", {"model name\t:", "flags\t", "cpu cores\t:"});
     }},
    {"proc-stat-machine", "/proc/stat tells processor times and the time of boot",
     [] { return holds("/proc/stat", {"cpu ", "cpu0 ", "btime ", "processes ", "ctxt "}); }},
    {"proc-load", "loadavg has five fields, uptime two",
     [] {
       WANT(words(slurp("/proc/loadavg")).size() == 5, "loadavg");
       WANT(words(slurp("/proc/uptime")).size() == 2, "uptime");
       return ok();
     }},
    {"proc-version", "version and sys/kernel/osrelease are of Linux",
     [] {
       WANT(!slurp("/proc/sys/kernel/osrelease").empty(), "no osrelease");
       return holds("/proc/version", {"Linux version "});
     }},
    {"proc-filesystems", "filesystems lists proc and tmpfs",
     [] { return holds("/proc/filesystems", {"nodev\tproc\n", "nodev\ttmpfs\n"}); }},
    {"proc-net-tcp", "net/tcp lists a listener by its port",
     [] {
       int fd = served();
       NEED("listen", fd);
       char port[10];
       ::snprintf(port, sizeof port, ":%04X ", port_of(fd));
       WANT(slurp("/proc/net/tcp").find(port) != std::string::npos, "it is not listed");
       return ok();
     }},
    {"proc-net-others", "net/dev lists lo, net/unix and net/route are there",
     [] {
       auto one = holds("/proc/net/dev", {"lo:"});
       if (one.kind != Answer::ok) return one;
       one = holds("/proc/net/unix", {"Num"});
       if (one.kind != Answer::ok) return one;
       return holds("/proc/net/route", {"Iface"});
     }},
    {"proc-random", "random/uuid is another each time, boot_id the same",
     [] {
       WANT(slurp("/proc/sys/kernel/random/uuid") != slurp("/proc/sys/kernel/random/uuid"), "uuid is the same");
       std::string id = slurp("/proc/sys/kernel/random/boot_id");
       WANT(id.size() == 37, "no boot_id");
       WANT(id == slurp("/proc/sys/kernel/random/boot_id"), "boot_id is another");
       return ok();
     }},
    {"proc-sys", "the switches that programs look at are there",
     [] {
       for (const char* path :
            {"kernel/pid_max", "kernel/hostname", "kernel/cap_last_cap", "kernel/shmmax", "vm/overcommit_memory",
             "vm/max_map_count", "fs/file-max", "fs/inotify/max_user_watches", "fs/pipe-max-size", "net/core/somaxconn",
             "net/ipv4/ip_local_port_range"})
         WANT(!slurp(std::string("/proc/sys/") + path).empty(), std::string("no ") + path);
       return ok();
     }},
    {"dev-nodes", "null, zero, full, random, urandom, tty and ptmx are the usual devices",
     [] {
       WANT(is_device("/dev/null", 1, 3) && is_device("/dev/zero", 1, 5) && is_device("/dev/full", 1, 7),
            "null, zero or full is another");
       WANT(is_device("/dev/random", 1, 8) && is_device("/dev/urandom", 1, 9), "random or urandom is another");
       WANT(is_device("/dev/tty", 5, 0), "tty is another");
       WANT(is_device("/dev/ptmx", 5, 2), "ptmx is another");
       return ok();
     }},
    {"dev-behave", "full is full, zero gives zeros, random gives bytes",
     [] {
       REFUSED("write to /dev/full", ::write(::open("/dev/full", O_WRONLY), "x", 1), ENOSPC);
       char zeros[4] = {1, 1, 1, 1}, a[16], b[16];
       WANT(::read(::open("/dev/zero", O_RDONLY), zeros, 4) == 4 && zeros[3] == 0, "zero");
       int fd = ::open("/dev/random", O_RDONLY);
       WANT(::read(fd, a, 16) == 16 && ::read(fd, b, 16) == 16 && !std::equal(a, a + 16, b), "random");
       return ok();
     }},
    {"dev-shm", "/dev/shm is a tmpfs that can be written",
     [] {
       std::string name = "/dev/shm/isola-check-" + std::to_string(::getpid());
       WANT(spill(name, "x"), "it cannot");
       ::unlink(name.c_str());
       return holds("/proc/self/mounts", {" /dev/shm tmpfs "});
     }},
    {"dev-list", "/proc, /dev and /sys can be listed",
     [] {
       WANT(lists("/dev", "null"), "/dev");
       WANT(lists("/proc", "meminfo"), "/proc");
       WANT(lists("/sys", "devices") || lists("/sys", "class"), "/sys");
       return ok();
     }},
    {"sys-processors", "/sys tells which processors are online",
     [] {
       WANT(!slurp("/sys/devices/system/cpu/online").empty(), "it does not");
       return ok();
     }},
    {"sys-net", "/sys/class/net lists lo",
     [] {
       WANT(lists("/sys/class/net", "lo"), "it does not");
       return ok();
     }},
    {"sys-cgroup", "/sys/fs/cgroup is mounted",
     [] {
       struct stat a{}, b{};
       NEED("stat", ::stat("/sys/fs/cgroup", &a));
       NEED("stat", ::stat("/sys/fs", &b));
       WANT(a.st_dev != b.st_dev, "it is not");
       return ok();
     }},
};

}  // namespace

Checks proc_checks() { return kProcChecks; }

}  // namespace isola::behaviour
