#include "cli/remains.h"

#include <dirent.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "base/file.h"
#include "image/tree.h"
#include "kernel/cgroup_layout.h"
#include "launcher/id_ranges.h"

namespace isola::cli {

namespace {
std::string namespace_of(pid_t pid) {
  char link[64];
  ssize_t n = ::readlink(fmt::format("/proc/{}/ns/pid", pid).c_str(), link, sizeof link);
  return n > 0 ? std::string(link, static_cast<size_t>(n)) : "";
}

std::string name_and_state(pid_t pid) {
  std::string stat = read_file(fmt::format("/proc/{}/stat", pid)).value_or("");
  auto open = stat.find('('), close = stat.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open || close + 2 >= stat.size())
    return "gone";
  return stat.substr(open + 1, close - open - 1) + ", " + stat[close + 2];
}

bool is_there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }
}  // namespace

std::vector<kernel::ProcessName> processes_inside(pid_t init) {
  std::vector<kernel::ProcessName> inside;
  std::string own = namespace_of(init);
  std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), ::closedir);
  if (own.empty() || !proc) return inside;
  while (dirent* entry = ::readdir(proc.get())) {
    pid_t pid = ::atoi(entry->d_name);
    if (pid <= 0 || namespace_of(pid) != own) continue;
    if (auto start = kernel::start_time(pid)) inside.push_back({pid, *start});
  }
  return inside;
}

std::string remains(const Destroyed& sandbox) {
  const std::string& id = sandbox.id;
  for (const auto& name : sandbox.processes)
    if (auto start = kernel::start_time(name.pid); start && *start == name.start_time)
      return fmt::format("process {} ({}) of {} lives on", name.pid, name_and_state(name.pid), id);
  if (is_there(sandbox.data_dir + "/run/" + id)) return "the journal still has " + id;
  if (auto layout = kernel::find_cgroup_layout({})) {
    auto folders = layout->folders();
    folders.push_back(layout->io);
    for (const auto& folder : folders)
      if (!folder.empty() && is_there(folder + "/" + id)) return "a control group is left: " + folder + "/" + id;
  }
  auto ranges = launcher::IdRanges::open(sandbox.data_dir);
  if (!ranges) return "the id ranges cannot be read: " + ranges.error().message;
  auto taken = ranges->mine();
  if (!taken) return "the id ranges cannot be read: " + taken.error().message;
  for (const auto& one : *taken)
    if (one.sandbox == id) return "a range of ids is still taken by " + id;
  std::string view = fmt::format("/proc/{}", sandbox.launcher);
  // One that was made of an image has more to its layer's name.
  for (const std::string folder : {"/layers", "/files"}) {
    auto names = image::list_dir(view + "/root" + sandbox.data_dir + "/storage" + folder);
    if (!names && names.error().sys_errno != ENOENT) return "the layers cannot be read: " + names.error().message;
    for (const auto& name : names.value_or(std::vector<std::string>()))
      if (name == id || name.starts_with(id + "-") || name.starts_with(id + "."))
        return "a layer is left: " + folder + "/" + name;
  }
  auto mounts = read_file(view + "/mountinfo");
  if (!mounts) return "the launcher's mounts cannot be read: " + mounts.error().message;
  if (mounts->find(id) != std::string::npos) return "the launcher still has a mount of " + id;
  return "";
}

}  // namespace isola::cli
