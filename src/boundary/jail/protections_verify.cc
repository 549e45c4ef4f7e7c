// Protections: what is installed, read from the kernel and compared.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/nsfs.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>

#include "base/file.h"
#include "boundary/jail/protections.h"
#include "boundary/jail/words.h"
#include "kernel/fault.h"
#include "kernel/process.h"
#include "kernel/seccomp_program.h"

namespace isola::boundary::jail {

namespace {

// "Name:\tvalue" of /proc/<pid>/status.
std::string_view status_field(std::string_view status, std::string_view name) {
  size_t at = status.starts_with(name) ? 0 : status.find("\n" + std::string(name) + ":\t");
  if (at == std::string_view::npos) return {};
  at = status.find('\t', at) + 1;
  return status.substr(at, status.find('\n', at) - at);
}

// In one line, though the kernel tells some things in several (of a process that just died, say, each group is "/").
Result<void> differ(std::string_view what, std::string_view wanted, std::string_view found) {
  std::string line(found.substr(0, found.find_last_not_of('\n') + 1));
  std::ranges::replace(line, '\n', ' ');
  return fail(Code::internal, fmt::format("protection mismatch: {} should be '{}' but is '{}'", what, wanted, line));
}

std::string limit_words(const kernel::CgroupLimits& limits) {
  return fmt::format("memory {} pids {} cpus {:.2f} io {}", limits.memory, limits.pids, limits.cpus,
                     limits.io_bytes_per_second);
}

// A shown folder may be of any filesystem, and any folder of it.
std::string as_shown(const std::string& line) {
  std::istringstream words(line);
  std::string target, type, how;
  words >> target >> type >> how;
  return target + " * " + how + " * *";
}

using Namespaces = std::array<ino_t, std::size(kOwnNamespaces)>;

Result<Namespaces> namespaces_of(const std::string& process) {
  Namespaces found{};
  Fd folder(::open(("/proc/" + process + "/ns").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (size_t i = 0; i < found.size(); ++i) {
    struct stat st{};
    if (!folder || ::fstatat(folder.get(), kOwnNamespaces[i], &st, 0) < 0)
      return sys_error("cannot compare namespaces");
    found[i] = st.st_ino;
  }
  return found;
}

// A launcher's own, which it never changes once it launches (whoever visits a sandbox's network is back by then), are
// asked for once in each process.
Result<Namespaces> own_namespaces() {
  static pid_t whose = 0;
  static Namespaces own{};
  if (whose != ::getpid()) {
    ISOLA_TRY(own, namespaces_of("self"));
    whose = ::getpid();
  }
  return own;
}

Result<void> verify_namespaces(pid_t pid) {
  ISOLA_TRY(Namespaces own, own_namespaces());
  ISOLA_TRY(Namespaces its, namespaces_of(std::to_string(pid)));
  for (size_t i = 0; i < own.size(); ++i)
    if (own[i] == its[i]) return differ(std::string("ns/") + kOwnNamespaces[i], "its own", "the launcher's");
  return {};
}

Result<void> verify_status(pid_t pid, const Protections& wanted, const std::string* filter) {
  ISOLA_TRY(std::string status, read_file(fmt::format("/proc/{}/status", pid)));
  const std::string caps = fmt::format("{:016x}", wanted.capabilities);
  const std::string own = fmt::format("{:016x}", wanted.capabilities | wanted.badge);
  const std::string badge = fmt::format("{:016x}", wanted.badge), none = fmt::format("{:016x}", 0);
  const bool filtered = !wanted.filter_hash.empty();
  const std::string id = fmt::format("{0}\t{0}\t{0}\t{0}", wanted.id_base);
  const std::pair<std::string_view, std::string_view> fields[] = {
      {"Uid", id},
      {"Gid", id},
      {"CapBnd", caps},
      {"CapPrm", own},
      {"CapEff", own},
      {"CapAmb", none},
      {"NoNewPrivs", "0"},  // programs inside that change their user must be able to
      {"Seccomp", filtered ? "2" : "0"},
      {"Seccomp_filters", filtered ? "1" : "0"},
      {"Groups", ""},  // a group of the launcher's would open files of the host to the sandbox
  };
  for (auto [name, value] : fields) {
    auto found = status_field(status, name);
    while (found.ends_with(' ')) found.remove_suffix(1);
    if (found != value) return differ(name, value, found);
  }
  // The badge crosses the exec as inheritable, and the guest's first act is to make it not so.
  if (auto found = status_field(status, "CapInh"); found != badge && found != none)
    return differ("CapInh", badge, found);
  if (!filtered) return {};
  std::string hash;
  if (filter) {
    hash = *filter;
  } else {
    ISOLA_TRY(hash, kernel::installed_filter_hash(pid));
  }
  if (hash != wanted.filter_hash) return differ("the seccomp filter", wanted.filter_hash, hash);
  return {};
}

// Without random addresses, or with all memory executable, what is hard to exploit is easy.
Result<void> verify_personality(pid_t pid) {
  ISOLA_TRY(std::string found, read_file(fmt::format("/proc/{}/personality", pid)));
  if (found.ends_with('\n')) found.pop_back();
  if (found != "00000000") return differ("the personality", "00000000", found);
  return {};
}

Result<void> verify_maps(pid_t pid, const Protections& wanted) {
  for (const char* file : {"uid_map", "gid_map"}) {
    ISOLA_TRY(std::string text, read_file(fmt::format("/proc/{}/{}", pid, file)));
    uint64_t inside = 1, outside = 0, count = 0;
    std::string more;
    std::istringstream words(text);
    words >> inside >> outside >> count;
    if (inside != 0 || outside != wanted.id_base || count != wanted.id_count || words >> more)
      return differ(file, fmt::format("0 {} {}", wanted.id_base, wanted.id_count), text);
  }
  return {};
}

// The kernel counts some things per owner of a user namespace (inotify instances): so it must not be the host's root,
// nor another sandbox.
Result<void> verify_owner(pid_t pid, const Protections& wanted) {
  ISOLA_TRY(Fd users, kernel::open_namespace(pid, "user"));
  uid_t owner = 0;
  if (::ioctl(users.get(), NS_GET_OWNER_UID, &owner) < 0) return sys_error("cannot ask whose a user namespace is");
  if (owner != wanted.id_base)
    return differ("the owner of ns/user", std::to_string(wanted.id_base), std::to_string(owner));
  return {};
}

Result<void> verify_cgroup(pid_t pid, const Protections& wanted) {
  ISOLA_TRY(std::string text, read_file(fmt::format("/proc/{}/cgroup", pid)));
  if (auto wrong = misplaced_controller(text, wanted.cgroup, wanted.limits.wants_io()); !wrong.empty())
    return differ("the control group (" + wrong + ")", wanted.cgroup, text);
  return {};
}

Result<void> verify_mounts(pid_t pid, const Protections& wanted) {
  ISOLA_TRY(std::string text, read_file(fmt::format("/proc/{}/mountinfo", pid)));
  ISOLA_TRY(auto found, mount_lines(text));
  std::vector<std::string> lines;
  lines.reserve(wanted.mounts.size());
  for (const auto& rule : wanted.mounts) lines.push_back(mount_line(rule));
  std::sort(lines.begin(), lines.end());
  std::sort(found.begin(), found.end());
  for (size_t i = 0; i < std::max(lines.size(), found.size()); ++i) {
    std::string want = i < lines.size() ? lines[i] : "nothing more";
    std::string have = i < found.size() ? found[i] : "nothing more";
    if (want.ends_with(" * *")) have = as_shown(have);
    if (want != have) return differ("the mount table", want, have);
  }
  return {};
}

// The numbers stand in columns behind the name: soft, hard.
Result<void> verify_resources(pid_t pid, const Protections& wanted) {
  ISOLA_TRY(std::string text, read_file(fmt::format("/proc/{}/limits", pid)));
  for (const auto& limit : resource_limits(wanted.open_files)) {
    rlimit own{};
    if (::getrlimit(static_cast<__rlimit_resource>(limit.resource), &own) < 0) return sys_error("cannot read a limit");
    const std::string value = shown_limit(std::min<uint64_t>(limit.value, own.rlim_max));
    size_t at = text.find(fmt::format("\n{} ", limit.name));
    std::string_view columns =
        at == std::string::npos ? "" : std::string_view(text).substr(at + 1 + std::strlen(limit.name), 64);
    const std::string soft(next_word(columns)), hard(next_word(columns));
    if (soft != value || hard != value) return differ(limit.name, value, soft + " " + hard);
  }
  return {};
}

}  // namespace

std::string misplaced_controller(std::string_view cgroups, std::string_view group, bool limits_io) {
  // Each line is "number:controllers:path": v1 names its controllers, also several by commas; v2 has one line for all
  // that no other line names.
  std::map<std::string, bool, std::less<>> ours;
  const std::string end = "/" + std::string(group);
  for (auto line = next_word(cgroups, '\n'); !line.empty(); line = next_word(cgroups, '\n')) {
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) return "unreadable";
    bool inside = line.ends_with(end);
    auto names = line.substr(first + 1, second - first - 1);
    if (names.empty()) ours["*"] = inside;
    for (auto name = next_word(names, ','); !name.empty(); name = next_word(names, ','))
      ours[std::string(name)] = inside;
  }
  std::vector<std::string_view> limiting = {"cpu", "memory", "pids", "freezer"};
  if (limits_io) limiting.push_back(ours.contains("blkio") ? "blkio" : "io");
  for (auto name : limiting) {
    if (name == "freezer" && !ours.contains(name) && ours.contains("memory")) continue;  // a v1 machine may lack it
    auto at = ours.find(name);
    if (at == ours.end()) at = ours.find("*");
    if (at == ours.end() || !at->second) return std::string(name);
  }
  return "";
}

Result<void> verify_descriptors(pid_t pid, const std::vector<std::string>& wanted) {
  std::string folder = fmt::format("/proc/{}/fd", pid);
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), ::closedir);
  if (!dir) return sys_error("cannot read " + folder);
  std::map<std::string, std::string> found;
  while (dirent* entry = ::readdir(dir.get())) {
    if (entry->d_name[0] == '.') continue;
    char target[512];
    ssize_t n = ::readlinkat(::dirfd(dir.get()), entry->d_name, target, sizeof target);
    if (n < 0) return sys_error("cannot read " + folder);
    found[entry->d_name] = std::string(target, static_cast<size_t>(n));
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    auto at = found.find(std::to_string(i));
    std::string have = at == found.end() ? "closed" : at->second;
    if (have != wanted[i]) return differ(fmt::format("descriptor {}", i), wanted[i], have);
    found.erase(at);
  }
  if (!found.empty()) return differ("descriptor " + found.begin()->first, "closed", found.begin()->second);
  return {};
}

Result<void> verify_around(const Protections& wanted, const kernel::CgroupLimits& limits, const std::string& network) {
  // The kernel rounds memory down to pages and processor time to its own unit.
  if (limits.memory == 0 || limits.memory > wanted.limits.memory || limits.pids != wanted.limits.pids ||
      std::abs(limits.cpus - wanted.limits.cpus) > 0.01 ||
      limits.io_bytes_per_second != wanted.limits.io_bytes_per_second)
    return differ("the limits", limit_words(wanted.limits), limit_words(limits));
  if (network != wanted.network) return differ("the network", wanted.network, network);
  return {};
}

Result<void> verify(pid_t pid, const Protections& wanted, const std::string* filter) {
  if (int e = kernel::fault::at("verify")) return sys_error("protection mismatch", e);
  ISOLA_CHECK(verify_namespaces(pid));
  ISOLA_CHECK(verify_maps(pid, wanted));
  ISOLA_CHECK(verify_owner(pid, wanted));
  ISOLA_CHECK(verify_cgroup(pid, wanted));
  ISOLA_CHECK(verify_mounts(pid, wanted));
  ISOLA_CHECK(verify_resources(pid, wanted));
  ISOLA_CHECK(verify_personality(pid));
  return verify_status(pid, wanted, filter);
}

Result<void> verify_companions(pid_t first, const std::vector<pid_t>& pids, const Protections& wanted) {
  const std::string caps = fmt::format("{:016x}", wanted.capabilities);
  ISOLA_TRY(const Namespaces own, namespaces_of(std::to_string(first)));
  for (pid_t pid : pids) {
    if (pid == first) continue;
    ISOLA_TRY(const Namespaces its, namespaces_of(std::to_string(pid)));
    for (size_t i = 0; i < own.size(); ++i)
      if (its[i] != own[i])
        return differ(fmt::format("ns/{} of process {}", kOwnNamespaces[i], pid), "process 1's", "another");
    std::string folder = fmt::format("/proc/{}/task", pid);
    std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), ::closedir);
    if (!dir) return sys_error("cannot read " + folder);
    while (dirent* entry = ::readdir(dir.get())) {
      if (entry->d_name[0] == '.') continue;
      ISOLA_TRY(std::string status, read_file(folder + "/" + entry->d_name + "/status"));
      if (status_field(status, "State").starts_with('Z')) continue;
      if (auto found = status_field(status, "Seccomp"); found != "2")
        return differ(fmt::format("Seccomp of process {}", pid), "2", found);
      // A program may have added filters of its own, and given up more than it had to.
      if (auto found = status_field(status, "Seccomp_filters"); std::atoi(std::string(found).c_str()) < 1)
        return differ(fmt::format("Seccomp_filters of process {}", pid), "1 or more", found);
      for (const char* set : {"CapBnd", "CapInh", "CapPrm", "CapEff", "CapAmb"}) {
        auto found = status_field(status, set);
        uint64_t held = std::strtoull(std::string(found).c_str(), nullptr, 16);
        if (found.empty() || (held & ~wanted.capabilities))
          return differ(fmt::format("{} of process {}", set, pid), "within " + caps, found);
      }
    }
  }
  return {};
}

}  // namespace isola::boundary::jail
