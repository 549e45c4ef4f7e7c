#include "kernel/cgroup_layout.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <sstream>

#include "base/file.h"

namespace isola::kernel {

namespace {

constexpr std::array<std::string_view, 3> kRequired = {"cpu", "memory", "pids"};

struct Mount {
  std::string point, type, source, super_options, device;
};

// mountinfo writes blanks and backslashes in paths as three octal digits.
std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0')));
      i += 3;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

// "id parent major:minor root point options [tag…] - type source super-options"
std::vector<Mount> parse_mountinfo(const std::string& text) {
  std::vector<Mount> mounts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    Mount m;
    std::string skip, point;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    if (!(before >> skip >> skip >> m.device >> skip >> point)) continue;
    if (!(after >> m.type >> m.source)) continue;
    after >> m.super_options;
    m.point = unescaped(point);
    m.source = unescaped(m.source);
    mounts.push_back(std::move(m));
  }
  return mounts;
}

bool has_word(std::string_view text, std::string_view word, std::string_view separators) {
  while (!text.empty()) {
    auto end = text.find_first_of(separators);
    if (text.substr(0, end) == word) return true;
    if (end == std::string_view::npos) return false;
    text.remove_prefix(end + 1);
  }
  return false;
}

struct Found {
  std::string mount;        // of the v2 hierarchy
  std::string controllers;  // its cgroup.controllers
};

}  // namespace

bool is_cgroup_name(std::string_view name) {
  if (name.empty() || name.size() > 64 || name[0] == '.' || name[0] == '-') return false;
  return std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '-';
  });
}

Result<CgroupLayout> find_cgroup_layout(const CgroupOptions& options) {
  if (!is_cgroup_name(options.parent)) return fail(Code::invalid, "bad parent cgroup name '" + options.parent + "'");
  ISOLA_TRY(std::string text, read_file(options.mountinfo));
  auto mounts = parse_mountinfo(text);

  // The first mount of a hierarchy counts: later ones are copies of it (containers, chroots).
  auto v1_mount = [&](std::string_view controller) -> std::string {
    for (const auto& m : mounts)
      if (m.type == "cgroup" && has_word(m.super_options, controller, ",")) return m.point;
    return "";
  };
  Found v2;
  for (const auto& m : mounts) {
    if (m.type != "cgroup2") continue;
    if (auto list = read_file(m.point + "/cgroup.controllers")) {
      v2 = {m.point, *list};
      break;
    }
  }
  auto in_v2 = [&](std::string_view controller) { return has_word(v2.controllers, controller, " \n"); };
  auto v1_count = std::ranges::count_if(kRequired, [&](auto c) { return !v1_mount(c).empty(); });
  auto v2_count = std::ranges::count_if(kRequired, in_v2);

  CgroupLayout layout{.parent = options.parent};
  layout.version = v2_count > v1_count ? CgroupVersion::v2 : CgroupVersion::v1;
  auto folder = [&](std::string_view controller) -> std::string {
    if (layout.version == CgroupVersion::v2) return in_v2(controller) ? v2.mount + "/" + options.parent : "";
    auto mount = v1_mount(controller);
    return mount.empty() ? "" : mount + "/" + options.parent;
  };
  layout.cpu = folder("cpu");
  layout.memory = folder("memory");
  layout.pids = folder("pids");
  if (layout.version == CgroupVersion::v2) {
    // Every v2 group counts cpu time and can be frozen, controllers or not.
    layout.cpuacct = layout.freezer = v2.mount + "/" + options.parent;
    layout.io = folder("io");
  } else {
    layout.cpuacct = folder("cpuacct");
    layout.freezer = folder("freezer");
    layout.io = folder("blkio");
    layout.swap_accounting =
        !layout.memory.empty() && ::access((v1_mount("memory") + "/memory.memsw.limit_in_bytes").c_str(), F_OK) == 0;
  }
  for (const auto& path : options.disks) {
    auto device = disk_device_of(path);
    if (!device && layout.disk_devices.empty()) break;
    if (!device)
      layout.off_disk = path;
    else if (std::ranges::find(layout.disk_devices, *device) == layout.disk_devices.end())
      layout.disk_devices.push_back(*device);
  }
  return layout;
}

std::vector<std::string> CgroupLayout::folders() const {
  std::vector<std::string> out;
  for (const auto* f : {&cpu, &cpuacct, &memory, &pids, &freezer})
    if (!f->empty() && std::ranges::find(out, *f) == out.end()) out.push_back(*f);
  return out;
}

std::vector<std::string> CgroupLayout::missing() const {
  std::vector<std::string> out;
  if (cpu.empty()) out.emplace_back("cpu");
  if (memory.empty()) out.emplace_back("memory");
  if (pids.empty()) out.emplace_back("pids");
  return out;
}

std::string CgroupLayout::io_note() const {
  if (io.empty()) return "no io limits: the kernel offers no block io controller";
  if (disk_devices.empty()) return "no io limits: the data directory is not on a disk";
  std::string but = off_disk.empty() ? "" : "; not for " + off_disk + ", which is not on a disk";
  if (version == CgroupVersion::v1)
    return "io limits hold for reads and direct writes only: cgroup v1 does not see buffered writes" + but;
  return "io limits hold for reads and writes" + but;
}

Result<std::string> disk_device_of(const std::string& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) < 0) {
    if (errno != ENOENT || path.rfind('/') == std::string::npos) return sys_error("cannot look at " + path);
    return disk_device_of(path.rfind('/') == 0 ? "/" : path.substr(0, path.rfind('/')));
  }
  dev_t device = st.st_dev;
  if (major(device) == 0) {
    // A file system with an anonymous device number (btrfs, overlay): the mount may still name its disk.
    auto id = std::to_string(major(device)) + ":" + std::to_string(minor(device));
    ISOLA_TRY(std::string text, read_file("/proc/self/mountinfo"));
    for (const auto& m : parse_mountinfo(text)) {
      struct stat disk;
      if (m.device == id && m.source.starts_with("/dev/") && ::stat(m.source.c_str(), &disk) == 0 &&
          S_ISBLK(disk.st_mode)) {
        device = disk.st_rdev;
        break;
      }
    }
    if (major(device) == 0) return fail(Code::unsupported, path + " is not on a disk");
  }
  auto link = "/sys/dev/block/" + std::to_string(major(device)) + ":" + std::to_string(minor(device));
  char real[PATH_MAX];
  if (!::realpath(link.c_str(), real)) return sys_error("cannot find the disk of " + path);
  std::string folder = real;
  if (::access((folder + "/partition").c_str(), F_OK) == 0) folder = folder.substr(0, folder.rfind('/'));
  ISOLA_TRY(std::string number, read_file(folder + "/dev"));
  while (!number.empty() && number.back() == '\n') number.pop_back();
  return number;
}

}  // namespace isola::kernel
