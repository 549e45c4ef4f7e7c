#include "kernel/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "base/file.h"
#include "base/log.h"
#include "kernel/cgroup_file.h"
#include "kernel/fault.h"

namespace isola::kernel {

using namespace cgroup_file;

namespace {

constexpr uint64_t kPeriodUsec = 100'000;  // the kernel's own default for cpu quotas
constexpr double kLeastCpus = 0.01;        // the kernel refuses quotas below 1 ms
constexpr double kMostCpus = 65536;
constexpr uint64_t kLeastMemory = 1 << 20;
constexpr uint64_t kUnlimitedV1 = 1ULL << 62;  // v1 shows "no limit" as a huge number of pages

constexpr const char* kThrottleFiles[] = {"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device",
                                          "blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device"};

Result<void> check(const CgroupLimits& limits, const CgroupLayout& layout) {
  if (limits.cpus != 0 && !(limits.cpus >= kLeastCpus && limits.cpus <= kMostCpus))
    return fail(Code::invalid, "a cpu limit must be between 0.01 and 65536 cores");
  if (limits.memory != 0 && limits.memory < kLeastMemory)
    return fail(Code::invalid, "a memory limit must be at least 1 MiB");
  if (limits.memory >= kUnlimitedV1) return fail(Code::invalid, "a memory limit that large is none");
  if (limits.wants_io() && !layout.can_limit_io()) return fail(Code::unsupported, layout.io_note());
  return {};
}

uint64_t quota_of(double cpus) { return static_cast<uint64_t>(std::llround(cpus * kPeriodUsec)); }

Result<void> make_folder(const std::string& path) {
  if (int e = fault::at("cgroup_mkdir")) return sys_error("cannot make the cgroup " + path, e);
  if (::mkdir(path.c_str(), 0755) < 0) return sys_error("cannot make the cgroup " + path);
  return {};
}

// What stands behind a disk in lines of "major:minor value"; empty: none.
std::string_view line_of(std::string_view text, const std::string& device) {
  while (!text.empty()) {
    auto line = text.substr(0, text.find('\n'));
    if (line.starts_with(device + " ")) return line.substr(device.size() + 1);
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return {};
}

// v1 alone: sockets' buffers are not part of the memory limit there.
constexpr char kSocketMemory[] = "memory.kmem.tcp.limit_in_bytes";
constexpr char kSocketMemoryUsed[] = "memory.kmem.tcp.usage_in_bytes";
uint64_t share_for_sockets(uint64_t bytes) { return bytes / 4; }

Result<uint64_t> number_or_none(const std::string& file) {
  auto number = read_number(file);
  if (!number && number.error().sys_errno == ENOENT) return 0;  // a kernel without such a limit
  return number;
}

// A limit that only one direction, or only one of the disks, has is none.
class SameEverywhere {
 public:
  void add(uint64_t limit) {
    if (value_ && *value_ != limit) limit = 0;
    value_ = limit;
  }
  uint64_t value() const { return value_.value_or(0); }

 private:
  std::optional<uint64_t> value_;
};

}  // namespace

std::string Cgroup::path(const std::string& hierarchy, const char* file) const {
  std::string out;
  out.reserve(hierarchy.size() + name_.size() + std::strlen(file) + 2);
  return out.append(hierarchy).append("/").append(name_).append("/").append(file);
}

Cgroup& Cgroup::operator=(Cgroup&& other) noexcept {
  if (this != &other) {
    Cgroup old(std::move(*this));
    layout_ = std::move(other.layout_), name_ = std::move(other.name_), io_ = other.io_;
  }
  return *this;
}

Cgroup::~Cgroup() {
  if (!layout_) return;
  auto gone = kill_all();
  if (gone) gone = destroy();
  if (!gone) log::warn("kernel", "{}", gone.error().text());
}

Result<void> Cgroup::apply_memory(uint64_t bytes, bool fresh) const {
  if (bytes == 0 && fresh) return {};
  const auto& l = *layout_;
  auto text = std::to_string(bytes);
  if (l.version == CgroupVersion::v2) {
    if (bytes != 0 && !fresh) {
      // v2 would take any limit and then kill to reach it.
      auto current = path(l.memory, "memory.current");
      ISOLA_TRY(uint64_t used, read_number(current));
      if (used > bytes) {
        (void)write(path(l.memory, "memory.reclaim"), std::to_string(used - bytes));
        ISOLA_TRY(used, read_number(current));
      }
      if (used > bytes)
        return fail(Code::exhausted, "the memory limit is below what is in use (" + std::to_string(used) + " bytes)");
    }
    ISOLA_CHECK(write(path(l.memory, "memory.max"), bytes == 0 ? "max" : text));
    // No swap at all under a limit: else the limit would only say how much of the sandbox is fast.
    auto swap = write(path(l.memory, "memory.swap.max"), bytes == 0 ? "max" : "0");
    if (!swap && swap.error().sys_errno != ENOENT) return swap;  // a kernel without swap has no such file
    return {};
  }
  auto limit = path(l.memory, "memory.limit_in_bytes");
  auto with_swap = path(l.memory, "memory.memsw.limit_in_bytes");
  if (bytes == 0) text = "-1";
  if (!l.swap_accounting) {
    ISOLA_CHECK(write(path(l.memory, "memory.swappiness"), bytes == 0 ? "60" : "0"));
  } else if (!fresh) {
    // memory <= memory+swap must hold at every moment: going up, the latter goes first.
    ISOLA_TRY(uint64_t now, read_number(with_swap));
    if (bytes == 0 || bytes > now) ISOLA_CHECK(write(with_swap, text));
  }
  auto done = write(limit, text);
  if (!done && done.error().sys_errno == EBUSY)
    return fail(Code::exhausted, "the memory limit is below what is in use", EBUSY);
  ISOLA_CHECK(done);
  if (l.swap_accounting) {
    done = write(with_swap, text);
    if (!done && done.error().sys_errno == EBUSY)
      return fail(Code::exhausted, "the memory limit is below what is in use", EBUSY);
    ISOLA_CHECK(done);
  }
  // What lies in sockets counts only once it has a limit, and then by itself.
  done = write(path(l.memory, kSocketMemory), bytes == 0 ? "-1" : std::to_string(share_for_sockets(bytes)));
  if (!done && done.error().sys_errno == ENOENT) return {};  // a kernel without such a limit
  if (!done && done.error().sys_errno == EBUSY)
    return fail(Code::exhausted, "the memory limit is below what is in use by sockets", EBUSY);
  return done;
}

Result<void> Cgroup::apply_io(const CgroupLimits& limits, bool fresh) {
  const auto& l = *layout_;
  if (l.version == CgroupVersion::v2) {
    if (!l.can_limit_io() || (fresh && !limits.wants_io())) return {};
    auto value = [](uint64_t n) { return n == 0 ? std::string("max") : std::to_string(n); };
    auto bytes = value(limits.io_bytes_per_second), operations = value(limits.io_operations_per_second);
    for (const auto& disk : l.disk_devices)
      ISOLA_CHECK(write(path(l.io, "io.max"),
                        disk + " rbps=" + bytes + " wbps=" + bytes + " riops=" + operations + " wiops=" + operations));
    return {};
  }
  if (!io_ && !limits.wants_io()) return {};
  if (!io_) {
    ISOLA_CHECK(make_folder(l.io + "/" + name_));
    io_ = true;
    // Whoever lives in the group already has to move as well; a process forked meanwhile shows up in the next round.
    for (size_t moved = 0; !fresh;) {
      ISOLA_TRY(auto inside, processes());
      if (inside.size() == moved) break;
      moved = inside.size();
      for (pid_t pid : inside) {
        auto done = write(path(l.io, "cgroup.procs"), std::to_string(pid));
        if (!done && done.error().sys_errno != ESRCH) return done;
      }
    }
  }
  uint64_t values[] = {limits.io_bytes_per_second, limits.io_bytes_per_second, limits.io_operations_per_second,
                       limits.io_operations_per_second};
  for (const auto& disk : l.disk_devices)
    for (size_t i = 0; i < std::size(values); ++i)
      ISOLA_CHECK(write(path(l.io, kThrottleFiles[i]), disk + " " + std::to_string(values[i])));
  return {};
}

Result<void> Cgroup::apply(const CgroupLimits& limits, bool fresh) {
  const auto& l = *layout_;
  if (!fresh && limits.pids != 0) {
    ISOLA_TRY(uint64_t now, read_number(path(l.pids, "pids.current")));
    if (now > limits.pids)
      return fail(Code::exhausted, "the process limit is below what is in use (" + std::to_string(now) + ")");
  }
  ISOLA_CHECK(apply_memory(limits.memory, fresh));
  ISOLA_CHECK(apply_io(limits, fresh));
  if (limits.cpus != 0 || !fresh) ISOLA_CHECK(apply_cpus(limits.cpus));
  if (limits.pids != 0 || !fresh)
    ISOLA_CHECK(write(path(l.pids, "pids.max"), limits.pids == 0 ? "max" : std::to_string(limits.pids)));
  return {};
}

Result<void> Cgroup::apply_cpus(double cpus) const {
  const auto& l = *layout_;
  auto quota = std::to_string(quota_of(cpus));
  if (l.version == CgroupVersion::v1) return write(path(l.cpu, "cpu.cfs_quota_us"), cpus == 0 ? "-1" : quota);
  return write(path(l.cpu, "cpu.max"), (cpus == 0 ? "max" : quota) + " " + std::to_string(kPeriodUsec));
}

Result<void> Cgroup::set_cpus(double cpus) {
  ISOLA_CHECK(check({.cpus = cpus}, *layout_));
  return apply_cpus(cpus);
}

Result<void> Cgroup::set_io(const CgroupLimits& limits) {
  ISOLA_CHECK(check(limits, *layout_));
  return apply_io(limits, false);
}

Result<void> Cgroup::set(const CgroupLimits& limits) {
  ISOLA_CHECK(check(limits, *layout_));
  return apply(limits, false);
}

Result<CgroupLimits> Cgroup::limits() const {
  const auto& l = *layout_;
  CgroupLimits out;
  if (l.version == CgroupVersion::v2) {
    ISOLA_TRY(std::string cpu, read_file(path(l.cpu, "cpu.max")));
    auto period = number(std::string_view(cpu).substr(std::min(cpu.find(' ') + 1, cpu.size())));
    if (!cpu.starts_with("max") && period != 0)
      out.cpus = static_cast<double>(number(cpu)) / static_cast<double>(period);
    ISOLA_TRY(out.memory, read_number(path(l.memory, "memory.max")));
    // A limit that swap goes past is none. A kernel without swap has no such file.
    auto swap = read_file(path(l.memory, "memory.swap.max"));
    if (swap ? !swap->starts_with("0") : swap.error().sys_errno != ENOENT) out.memory = 0;
  } else {
    ISOLA_TRY(std::string quota, read_file(path(l.cpu, "cpu.cfs_quota_us")));
    ISOLA_TRY(uint64_t period, read_number(path(l.cpu, "cpu.cfs_period_us")));
    if (!quota.starts_with("-") && period != 0)
      out.cpus = static_cast<double>(number(quota)) / static_cast<double>(period);
    ISOLA_TRY(out.memory, read_number(path(l.memory, "memory.limit_in_bytes")));
    if (l.swap_accounting) {
      ISOLA_TRY(uint64_t with_swap, read_number(path(l.memory, "memory.memsw.limit_in_bytes")));
      if (with_swap > out.memory) out.memory = 0;  // a limit that swap goes past is none
    }
    if (out.memory >= kUnlimitedV1) out.memory = 0;
    auto sockets = read_number(path(l.memory, kSocketMemory));
    if (!sockets && sockets.error().sys_errno != ENOENT) return std::unexpected(sockets.error());
    if (sockets && *sockets > share_for_sockets(out.memory)) out.memory = 0;  // nor one that sockets go past
  }
  ISOLA_CHECK(read_io(out));
  ISOLA_TRY(uint64_t pids, read_number(path(l.pids, "pids.max")));
  out.pids = static_cast<uint32_t>(pids);
  return out;
}

Result<void> Cgroup::read_io(CgroupLimits& out) const {
  const auto& l = *layout_;
  const bool v2 = l.version == CgroupVersion::v2;
  if (!l.can_limit_io() || (!v2 && !io_)) return {};
  constexpr const char* kWords[std::size(kThrottleFiles)] = {"rbps", "wbps", "riops", "wiops"};
  SameEverywhere bytes, operations;
  for (size_t i = 0; i < std::size(kWords); ++i) {
    ISOLA_TRY(std::string text, read_file(path(l.io, v2 ? "io.max" : kThrottleFiles[i])));
    for (const auto& disk : l.disk_devices) {
      auto line = line_of(text, disk);
      (i < 2 ? bytes : operations).add(v2 ? keyed(line, kWords[i]) : number(line));
    }
  }
  out.io_bytes_per_second = bytes.value();
  out.io_operations_per_second = static_cast<uint32_t>(operations.value());
  return {};
}

std::vector<std::string> Cgroup::folders() const {
  auto folders = layout_->folders();
  if (io_ && layout_->version == CgroupVersion::v1 && std::ranges::find(folders, layout_->io) == folders.end())
    folders.push_back(layout_->io);
  return folders;
}

Result<CgroupDoors> Cgroup::doors() const {
  CgroupDoors doors;
  bool v2 = layout_->version == CgroupVersion::v2;
  for (const auto& folder : folders()) {
    std::string door = v2 ? folder + "/" + name_ : path(folder, "tasks");
    if (int e = fault::at("cgroup_door")) return sys_error("cannot open the cgroup " + name_, e);
    Fd fd(::open(door.c_str(), (v2 ? O_RDONLY | O_DIRECTORY : O_WRONLY) | O_CLOEXEC));
    if (!fd) return sys_error("cannot open the cgroup " + name_);
    if (v2)
      doors.folder = std::move(fd);
    else
      doors.files.push_back(std::move(fd));
  }
  return doors;
}

Result<void> CgroupDoors::enter() const {
  for (const auto& file : files) {
    if (int e = fault::at("cgroup_enter")) return sys_error("cannot enter a cgroup", e);
    if (::write(file.get(), "0", 1) != 1) return sys_error("cannot enter a cgroup");
  }
  return {};
}

Result<void> Cgroup::attach(pid_t pid) const {
  if (pid < 0) return fail(Code::invalid, "no such process to put into a cgroup");
  auto text = std::to_string(pid);
  for (const auto& folder : folders()) {
    if (int e = fault::at("cgroup_attach")) return sys_error("cannot put a process into the cgroup " + name_, e);
    ISOLA_CHECK(write(path(folder, "cgroup.procs"), text));
  }
  return {};
}

Result<uint64_t> Cgroup::socket_memory() const {
  if (layout_->version == CgroupVersion::v2) return 0;
  return number_or_none(path(layout_->memory, kSocketMemoryUsed));
}

Result<uint64_t> CgroupTree::socket_memory() const {
  if (version() == CgroupVersion::v2) return 0;
  return number_or_none(layout_->memory + "/" + kSocketMemoryUsed);
}

Result<CgroupStats> Cgroup::stats() const {
  const auto& l = *layout_;
  bool v2 = l.version == CgroupVersion::v2;
  CgroupStats out;
  ISOLA_TRY(std::string cpu, read_file(path(l.cpu, "cpu.stat")));
  out.cpu_throttled = keyed(cpu, "nr_throttled");
  if (v2) {
    out.cpu_usec = keyed(cpu, "usage_usec");
  } else if (!l.cpuacct.empty()) {
    ISOLA_TRY(uint64_t nanoseconds, read_number(path(l.cpuacct, "cpuacct.usage")));
    out.cpu_usec = nanoseconds / 1000;
  }
  ISOLA_TRY(out.memory_bytes, read_number(path(l.memory, v2 ? "memory.current" : "memory.usage_in_bytes")));
  auto peak = read_number(path(l.memory, v2 ? "memory.peak" : "memory.max_usage_in_bytes"));
  if (peak)
    out.memory_peak_bytes = *peak;
  else if (peak.error().sys_errno != ENOENT)
    return std::unexpected(peak.error());
  ISOLA_TRY(std::string events, read_file(path(l.memory, v2 ? "memory.events" : "memory.oom_control")));
  out.oom_kills = keyed(events, "oom_kill");
  ISOLA_TRY(uint64_t processes, read_number(path(l.pids, "pids.current")));
  out.processes = static_cast<uint32_t>(processes);
  return out;
}

Result<uint64_t> Cgroup::page_cache() const {
  const auto& l = *layout_;
  const bool v2 = l.version == CgroupVersion::v2;
  ISOLA_TRY(std::string stat, read_file(path(l.memory, "memory.stat")));
  const uint64_t files = keyed(stat, v2 ? "file" : "total_cache");
  // Files in memory alone count as files, and go nowhere.
  return files - std::min(files, keyed(stat, v2 ? "shmem" : "total_shmem"));
}

Result<CgroupTree> CgroupTree::detect(const CgroupOptions& options) {
  ISOLA_TRY(CgroupLayout layout, find_cgroup_layout(options));
  return CgroupTree(std::move(layout));
}

Result<void> CgroupTree::prepare() const {
  const auto& l = *layout_;
  if (auto none = missing(); !none.empty()) {
    std::string list;
    for (const auto& name : none) list += (list.empty() ? "" : ", ") + name;
    return fail(Code::unsupported, "cgroup controllers are missing: " + list);
  }
  auto folders = l.folders();
  if (l.version == CgroupVersion::v1 && !l.io.empty() && std::ranges::find(folders, l.io) == folders.end())
    folders.push_back(l.io);
  std::string down = l.io.empty() ? "+cpu +memory +pids" : "+cpu +memory +pids +io";
  for (const auto& folder : folders) {
    auto root = folder.substr(0, folder.rfind('/'));
    if (l.version == CgroupVersion::v2) ISOLA_CHECK(write(root + "/cgroup.subtree_control", down));
    auto made = make_folder(folder);
    if (!made && made.error().sys_errno != EEXIST) return made;
    if (l.version == CgroupVersion::v2) ISOLA_CHECK(write(folder + "/cgroup.subtree_control", down));
  }
  // Kernels before 5.11 count a child's memory for its parent only when told so; later ones always do.
  if (l.version == CgroupVersion::v1) (void)write(l.memory + "/memory.use_hierarchy", "1");
  return {};
}

Result<Cgroup> CgroupTree::create(const std::string& name, const CgroupLimits& limits) const {
  if (!is_cgroup_name(name)) return fail(Code::invalid, "bad cgroup name '" + name + "'");
  ISOLA_CHECK(check(limits, *layout_));
  auto folders = layout_->folders();
  if (folders.empty() || !missing().empty()) ISOLA_CHECK(prepare());  // says what is missing
  size_t made = 0;
  for (; made < folders.size(); ++made) {
    auto path = folders[made] + "/" + name;
    auto done = make_folder(path);
    if (!done && done.error().sys_errno == ENOENT) {
      done = prepare();  // the first group since the machine started
      if (done) done = make_folder(path);
    }
    if (done) continue;
    // What was there before is somebody else's: only our own folders go.
    while (made > 0) ::rmdir((folders[--made] + "/" + name).c_str());
    return std::unexpected(done.error());
  }
  Cgroup group(layout_, name);
  if (auto set = group.apply(limits, true); !set) return std::unexpected(set.error());  // ~Cgroup removes it
  return group;
}

Result<Cgroup> CgroupTree::adopt(const std::string& name) const {
  if (!is_cgroup_name(name)) return fail(Code::invalid, "bad cgroup name '" + name + "'");
  auto folders = layout_->folders();
  bool all = !folders.empty() && std::ranges::all_of(folders, [&](const auto& folder) {
    return ::access((folder + "/" + name).c_str(), F_OK) == 0;
  });
  if (!all) return fail(Code::not_found, "there is no cgroup '" + name + "'");
  Cgroup group(layout_, name);
  group.io_ = !layout_->io.empty() && ::access((layout_->io + "/" + name).c_str(), F_OK) == 0;
  return group;
}

bool CgroupTree::has(const std::string& name) const {
  auto folders = layout_->folders();
  return is_cgroup_name(name) && std::ranges::any_of(folders, [&](const auto& folder) {
           return ::access((folder + "/" + name).c_str(), F_OK) == 0;
         });
}

Cgroup CgroupTree::known(const std::string& name, bool with_io) const {
  Cgroup group(layout_, name);
  group.io_ = with_io;
  return group;
}

std::vector<std::string> CgroupTree::list() const {
  std::set<std::string> names;
  auto folders = layout_->folders();
  if (!layout_->io.empty()) folders.push_back(layout_->io);
  for (const auto& folder : folders) {
    DIR* dir = ::opendir(folder.c_str());
    if (!dir) continue;
    while (auto* entry = ::readdir(dir))
      if (entry->d_type == DT_DIR && is_cgroup_name(entry->d_name)) names.insert(entry->d_name);
    ::closedir(dir);
  }
  return {names.begin(), names.end()};
}

Result<void> CgroupTree::remove(const std::string& name) const {
  if (!is_cgroup_name(name)) return fail(Code::invalid, "bad cgroup name '" + name + "'");
  Cgroup group(layout_, name);
  group.io_ = true;
  auto done = group.kill_all();
  if (done) done = group.destroy();
  group.release();
  return done;
}

}  // namespace isola::kernel
