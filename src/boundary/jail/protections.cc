#include "boundary/jail/protections.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "base/units.h"
#include "boundary/jail/words.h"
#include "kernel/capability.h"

namespace isola::boundary::jail {

namespace {

using kernel::capability;

// Never seen from inside: they tell about the host or reach into it. Files and folders that nobody may open stand in
// their place; those that ordinary programs look at are empty instead.
constexpr const char* kShutFiles[] = {"kcore",       "keys",          "key-users",  "kmsg",        "sysrq-trigger",
                                      "kallsyms",    "kpagecount",    "kpageflags", "kpagecgroup", "timer_list",
                                      "sched_debug", "latency_stats", "config.gz"};
constexpr const char* kBlankFiles[] = {"cmdline", "bootconfig", "modules", "interrupts"};
constexpr const char* kMaskedFolders[] = {"acpi", "scsi", "driver", "pressure"};
// Seen, but never written: on top of the kernel's own checks.
constexpr const char* kReadOnlyFolders[] = {"sys", "irq", "bus", "fs"};

std::string attribute_words(const kernel::MountAttributes& a) {
  return fmt::format("{}{}{}{}", a.read_only ? "ro" : "rw", a.nosuid ? ",nosuid" : "", a.nodev ? ",nodev" : "",
                     a.noexec ? ",noexec" : "");
}

// Those options of a filesystem that bound what the sandbox can take of the machine, in the kernel's spelling.
constexpr std::string_view kBounds[] = {"size", "nr_inodes", "max"};

std::string bounds_of(std::span<const kernel::FilesystemOption> options) {
  std::string words;
  for (std::string_view bound : kBounds)
    for (const auto& option : options) {
      if (option.key != bound) continue;
      // The kernel shows sizes in KiB.
      auto size = bound == "size" ? parse_size(option.value) : Result<uint64_t>(0);
      words += fmt::format("{}{}={}", words.empty() ? "" : ",", bound,
                           size && *size > 0 ? fmt::format("{}k", *size / 1024) : option.value);
    }
  return words.empty() ? "-" : words;
}

// Blanks and backslashes of a path as the kernel writes them in mountinfo.
std::string escaped(std::string_view path) {
  std::string out;
  for (char c : path)
    out += c == ' ' || c == '\t' || c == '\n' || c == '\\' ? fmt::format("\\{:03o}", c) : std::string(1, c);
  return out;
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
                   {{"ptmxmode", "0666"}, {"mode", "0620"}, {"gid", "5"}, {"max", "64"}}});
  rules.push_back(
      {"dev/shm", From::filesystem, "tmpfs", quiet, {{"size", "512m"}, {"nr_inodes", "65536"}, {"mode", "1777"}}});
  rules.push_back({"sys", From::stage, "sys", sealed, {}});
  return rules;
}

std::string shown_limit(uint64_t value) { return value == RLIM_INFINITY ? "unlimited" : fmt::format("{}", value); }

std::vector<ResourceLimit> resource_limits(uint32_t open_files) {
  return {{RLIMIT_NOFILE, "Max open files", open_files},
          // Nothing of the launcher's own: a real-time priority would even escape the processor limit.
          {RLIMIT_RTPRIO, "Max realtime priority", 0},
          {RLIMIT_NICE, "Max nice priority", 0},
          {RLIMIT_MEMLOCK, "Max locked memory", 8 << 20},
          {RLIMIT_MSGQUEUE, "Max msgqueue size", 819200},
          // Control groups limit these. What a shell had when it started the launcher is nobody's wish.
          {RLIMIT_CPU, "Max cpu time", RLIM_INFINITY},
          {RLIMIT_FSIZE, "Max file size", RLIM_INFINITY},
          {RLIMIT_AS, "Max address space", RLIM_INFINITY},
          {RLIMIT_DATA, "Max data size", RLIM_INFINITY},
          {RLIMIT_NPROC, "Max processes", RLIM_INFINITY},
          // 1, not 0: with 0 the kernel would still start a core handler of the host that is set as a pipe.
          {RLIMIT_CORE, "Max core file size", 1}};
}

std::string Protections::describe() const {
  std::string text = fmt::format(
      "ids 0 {0} {1}\nowner {0}\ncapabilities {2:016x}\nseccomp {3}\npersonality 00000000\nno_new_privs "
      "0\ncgroup {4}\nnamespaces",
      id_base, id_count, capabilities, filter_hash.empty() ? "none" : filter_hash, cgroup);
  for (const char* kind : kOwnNamespaces) text += fmt::format(" {}", kind);
  text += "\n";
  for (const auto& limit : resource_limits(open_files))
    text += fmt::format("limit {} {}\n", limit.name, shown_limit(limit.value));
  for (const auto& rule : mounts) text += "mount " + mount_line(rule) + "\n";
  return text + network;
}

std::string mount_line(const MountRule& rule) {
  std::string type, root = "/", bounds = "-";
  switch (rule.from) {
    case MountRule::From::filesystem: type = rule.source, bounds = bounds_of(rule.options); break;
    case MountRule::From::stage: type = "tmpfs", root = "/" + rule.source, bounds = kStageBounds; break;
    // A folder of the mount that its path begins with.
    case MountRule::From::itself: type = "proc", root = rule.target.substr(rule.target.find('/')); break;
    case MountRule::From::root: type = "overlay"; break;
    case MountRule::From::own: type = "tmpfs", root = "/" + rule.source, bounds = bounds_of(rule.options); break;
    case MountRule::From::shown:
    case MountRule::From::host:
    case MountRule::From::disk:
    case MountRule::From::wire: type = root = bounds = "*"; break;
  }
  return fmt::format("/{} {} {} {} {}", escaped(rule.target), type, attribute_words(rule.attributes), root, bounds);
}

Result<std::vector<std::string>> mount_lines(std::string_view mountinfo) {
  std::vector<std::string> lines;
  while (!mountinfo.empty()) {
    std::string_view line = mountinfo.substr(0, mountinfo.find('\n'));
    mountinfo.remove_prefix(std::min(line.size() + 1, mountinfo.size()));
    // id parent dev ROOT MOUNTPOINT OPTIONS [tags…] - TYPE source SUPEROPTIONS
    for (int skip = 0; skip < 3; ++skip) next_word(line);
    const auto root = next_word(line), target = next_word(line);
    auto options = next_word(line);
    for (auto tag = next_word(line); !tag.empty() && tag != "-";) tag = next_word(line);
    const auto type = next_word(line), source = next_word(line);
    auto super = next_word(line);
    if (source.empty() || super.empty()) return fail(Code::corrupt, "cannot read the mount table");
    kernel::MountAttributes attributes;
    for (auto flag = next_word(options, ','); !flag.empty(); flag = next_word(options, ',')) {
      if (flag == "ro") attributes.read_only = true;
      if (flag == "nosuid") attributes.nosuid = true;
      if (flag == "nodev") attributes.nodev = true;
      if (flag == "noexec") attributes.noexec = true;
    }
    std::vector<kernel::FilesystemOption> bounds;
    for (auto pair = next_word(super, ','); !pair.empty(); pair = next_word(super, ',')) {
      size_t equals = pair.find('=');
      if (equals != std::string_view::npos && std::ranges::find(kBounds, pair.substr(0, equals)) != std::end(kBounds))
        bounds.push_back({std::string(pair.substr(0, equals)), std::string(pair.substr(equals + 1))});
    }
    lines.push_back(fmt::format("{} {} {} {} {}", target, type, attribute_words(attributes), root, bounds_of(bounds)));
  }
  return lines;
}

}  // namespace isola::boundary::jail
