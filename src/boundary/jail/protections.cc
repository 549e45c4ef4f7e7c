#include "boundary/jail/protections.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/file.h"
#include "kernel/capability.h"
#include "kernel/fault.h"
#include "kernel/seccomp_program.h"

namespace isola::boundary::jail {

namespace {

using kernel::capability;

// Never seen from inside: they tell about the host or reach into it. Files and folders that nobody may open stand in
// their place; those that ordinary programs look at are empty instead.
constexpr const char* kShutFiles[] = {"kcore",       "keys",          "key-users",  "kmsg",        "sysrq-trigger",
                                      "kallsyms",    "kpagecount",    "kpageflags", "kpagecgroup", "timer_list",
                                      "sched_debug", "latency_stats", "config.gz"};
constexpr const char* kBlankFiles[] = {"cmdline", "modules", "interrupts"};
constexpr const char* kMaskedFolders[] = {"acpi", "scsi", "driver"};
// Seen, but never written: on top of the kernel's own checks.
constexpr const char* kReadOnlyFolders[] = {"sys", "irq", "bus", "fs"};

constexpr const char* kNamespaces[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"};

std::string attribute_words(const kernel::MountAttributes& a) {
  return fmt::format("{}{}{}{}", a.read_only ? "ro" : "rw", a.nosuid ? ",nosuid" : "", a.nodev ? ",nodev" : "",
                     a.noexec ? ",noexec" : "");
}

std::string mount_line(const MountRule& rule) {
  std::string type = rule.from == MountRule::From::filesystem ? rule.source
                     : rule.from == MountRule::From::stage    ? "tmpfs"
                     : rule.from == MountRule::From::itself   ? "proc"
                                                              : "*";
  return fmt::format("/{} {} {}", rule.target, type, attribute_words(rule.attributes));
}

// "Name:\tvalue" of /proc/<pid>/status.
std::string_view status_field(std::string_view status, std::string_view name) {
  size_t at = status.starts_with(name) ? 0 : status.find("\n" + std::string(name) + ":\t");
  if (at == std::string_view::npos) return {};
  at = status.find('\t', at) + 1;
  return status.substr(at, status.find('\n', at) - at);
}

Result<void> differ(std::string_view what, std::string_view wanted, std::string_view found) {
  return fail(Code::internal, fmt::format("protection mismatch: {} should be '{}' but is '{}'", what, wanted, found));
}

std::string limit_words(const kernel::CgroupLimits& limits) {
  return fmt::format("memory {} pids {} cpus {:.2f}", limits.memory, limits.pids, limits.cpus);
}

Result<void> verify_namespaces(pid_t pid) {
  for (const char* kind : kNamespaces) {
    struct stat own{}, its{};
    std::string name = std::string("ns/") + kind;
    if (::stat(("/proc/self/" + name).c_str(), &own) < 0 ||
        ::stat(fmt::format("/proc/{}/{}", pid, name).c_str(), &its) < 0)
      return sys_error("cannot compare namespaces");
    if (own.st_ino == its.st_ino) return differ(name, "its own", "the launcher's");
  }
  return {};
}

Result<void> verify_status(pid_t pid, const Protections& wanted) {
  ISOLA_TRY(std::string status, read_file(fmt::format("/proc/{}/status", pid)));
  const std::string caps = fmt::format("{:016x}", wanted.capabilities);
  const std::string own = fmt::format("{:016x}", wanted.capabilities | kBadge);
  const std::string badge = fmt::format("{:016x}", kBadge), none = fmt::format("{:016x}", 0);
  const std::string id = fmt::format("{0}\t{0}\t{0}\t{0}", wanted.id_base);
  const std::pair<std::string_view, std::string_view> fields[] = {
      {"Uid", id},     {"Gid", id},      {"CapBnd", caps}, {"CapPrm", own},
      {"CapEff", own}, {"CapAmb", none}, {"Seccomp", "2"}, {"Seccomp_filters", "1"},
  };
  for (auto [name, value] : fields) {
    auto found = status_field(status, name);
    if (found != value) return differ(name, value, found);
  }
  // The badge crosses the exec as inheritable, and the guest's first act is to make it not so.
  if (auto found = status_field(status, "CapInh"); found != badge && found != none)
    return differ("CapInh", badge, found);
  ISOLA_TRY(std::string hash, kernel::installed_filter_hash(pid));
  if (hash != wanted.filter_hash) return differ("the seccomp filter", wanted.filter_hash, hash);
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

Result<void> verify_cgroup(pid_t pid, const Protections& wanted) {
  ISOLA_TRY(std::string text, read_file(fmt::format("/proc/{}/cgroup", pid)));
  int inside = 0;
  bool unlimited = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    bool ours = line.ends_with("/" + wanted.cgroup);
    inside += ours;
    // On v1 each controller has its own line; every one that we limit by must lead into our group.
    for (const char* controller : {":cpu:", ":cpu,", ":memory:", ":pids:"})
      if (line.find(controller) != std::string::npos && !ours) unlimited = true;
  }
  if (inside == 0 || unlimited) return differ("the control group", wanted.cgroup, text);
  return {};
}

Result<void> verify_mounts(pid_t pid, const Protections& wanted) {
  ISOLA_TRY(std::string text, read_file(fmt::format("/proc/{}/mountinfo", pid)));
  ISOLA_TRY(auto found, mount_lines(text));
  std::vector<std::string> lines;
  for (const auto& rule : wanted.mounts) lines.push_back(mount_line(rule));
  std::sort(lines.begin(), lines.end());
  std::sort(found.begin(), found.end());
  for (size_t i = 0; i < std::max(lines.size(), found.size()); ++i) {
    std::string want = i < lines.size() ? lines[i] : "nothing more";
    std::string have = i < found.size() ? found[i] : "nothing more";
    // A shown folder may be of any filesystem.
    if (size_t star = want.find(" * "); star != std::string::npos) {
      size_t type = star + 1, end = have.find(' ', type);
      if (have.size() > type && end != std::string::npos) have = have.substr(0, type) + "*" + have.substr(end);
    }
    if (want != have) return differ("the mount table", want, have);
  }
  return {};
}

}  // namespace

const uint64_t kCapabilities = capability(CAP_CHOWN) | capability(CAP_DAC_OVERRIDE) | capability(CAP_FOWNER) |
                               capability(CAP_FSETID) | capability(CAP_KILL) | capability(CAP_SETGID) |
                               capability(CAP_SETUID) | capability(CAP_SETPCAP) | capability(CAP_NET_BIND_SERVICE) |
                               capability(CAP_SYS_CHROOT) | capability(CAP_AUDIT_WRITE) | capability(CAP_SETFCAP);

const uint64_t kBadge = capability(CAP_WAKE_ALARM);

std::vector<MountRule> standard_mounts() {
  using From = MountRule::From;
  const kernel::MountAttributes quiet{.nosuid = true, .nodev = true, .noexec = true};
  const kernel::MountAttributes sealed{.read_only = true, .nosuid = true, .nodev = true, .noexec = true};
  std::vector<MountRule> rules = {
      {"", From::filesystem, "overlay", {.nodev = true}, {}},
      {"proc", From::filesystem, "proc", quiet, {}},
  };
  auto there = [](const char* name) { return ::access((std::string("/proc/") + name).c_str(), F_OK) == 0; };
  for (const char* name : kReadOnlyFolders)
    if (there(name)) rules.push_back({std::string("proc/") + name, From::itself, "", sealed, {}});
  // The stand-ins are not device nodes: nothing to write to, nothing that could be swapped (CVE-2025-31133).
  for (const char* name : kShutFiles)
    if (there(name)) rules.push_back({std::string("proc/") + name, From::stage, "shut", sealed, {}});
  for (const char* name : kBlankFiles)
    if (there(name)) rules.push_back({std::string("proc/") + name, From::stage, "blank", sealed, {}});
  for (const char* name : kMaskedFolders)
    if (there(name)) rules.push_back({std::string("proc/") + name, From::stage, "empty", sealed, {}});
  // One /dev and one /sys for all sandboxes. /dev also holds the guest's program, so it is executable; it is read-only.
  rules.push_back({"dev", From::stage, "dev", {.read_only = true, .nosuid = true}, {}});
  // The machine has one number of terminals for all (kernel.pty.max): none may use it up.
  rules.push_back({"dev/pts",
                   From::filesystem,
                   "devpts",
                   {.nosuid = true, .noexec = true},
                   {{"ptmxmode", "0666"}, {"mode", "0620"}, {"gid", "5"}, {"max", "512"}}});
  rules.push_back(
      {"dev/shm", From::filesystem, "tmpfs", quiet, {{"size", "512m"}, {"nr_inodes", "65536"}, {"mode", "1777"}}});
  rules.push_back({"sys", From::stage, "sys", sealed, {}});
  return rules;
}

std::string Protections::describe() const {
  std::string text = fmt::format("ids 0 {} {}\ncapabilities {:016x}\nseccomp {}\ncgroup {}\nnamespaces", id_base,
                                 id_count, capabilities, filter_hash, cgroup);
  for (const char* kind : kNamespaces) text += fmt::format(" {}", kind);
  text += "\n";
  for (const auto& rule : mounts) text += "mount " + mount_line(rule) + "\n";
  return text + network;
}

Result<std::vector<std::string>> mount_lines(std::string_view mountinfo) {
  std::vector<std::string> lines;
  std::istringstream in{std::string(mountinfo)};
  for (std::string line; std::getline(in, line);) {
    // id parent dev root MOUNTPOINT OPTIONS [tags…] - TYPE source superoptions
    std::istringstream words(line);
    std::string skip, target, options, word, type;
    words >> skip >> skip >> skip >> skip >> target >> options;
    while (words >> word && word != "-") {
    }
    if (!(words >> type)) return fail(Code::corrupt, "cannot read the mount table");
    kernel::MountAttributes attributes;
    std::istringstream flags(options);
    for (std::string flag; std::getline(flags, flag, ',');) {
      if (flag == "ro") attributes.read_only = true;
      if (flag == "nosuid") attributes.nosuid = true;
      if (flag == "nodev") attributes.nodev = true;
      if (flag == "noexec") attributes.noexec = true;
    }
    lines.push_back(fmt::format("{} {} {}", target, type, attribute_words(attributes)));
  }
  return lines;
}

Result<void> verify_around(const Protections& wanted, const kernel::CgroupLimits& limits, const std::string& network) {
  // The kernel rounds memory down to pages and processor time to its own unit.
  if (limits.memory == 0 || limits.memory > wanted.limits.memory || limits.pids != wanted.limits.pids ||
      std::abs(limits.cpus - wanted.limits.cpus) > 0.01)
    return differ("the limits", limit_words(wanted.limits), limit_words(limits));
  if (network != wanted.network) return differ("the network", wanted.network, network);
  return {};
}

Result<void> verify(pid_t pid, const Protections& wanted) {
  if (int e = kernel::fault::at("verify")) return sys_error("protection mismatch", e);
  ISOLA_CHECK(verify_namespaces(pid));
  ISOLA_CHECK(verify_maps(pid, wanted));
  ISOLA_CHECK(verify_cgroup(pid, wanted));
  ISOLA_CHECK(verify_mounts(pid, wanted));
  return verify_status(pid, wanted);
}

}  // namespace isola::boundary::jail
