#include "e2e/census.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/file.h"
#include "base/ids.h"
#include "image/layer_store.h"
#include "kernel/cgroup.h"
#include "kernel/process.h"
#include "launcher/id_ranges.h"

namespace isola::e2e {

namespace fs = std::filesystem;

namespace {

std::vector<std::string> mount_points(const std::string& pid) {
  std::vector<std::string> targets;
  std::ifstream table("/proc/" + pid + "/mountinfo");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string skip;
    words >> skip >> skip >> skip >> skip >> targets.emplace_back();
  }
  return targets;
}

using launcher::NameFiles;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator it(folder, ignored), end; it != end; it.increment(ignored))
    names.push_back(it->path().filename());
  return names;
}

bool is_number(const std::string& s) { return !s.empty() && s.find_first_not_of("0123456789") == std::string::npos; }

std::string link_of(const std::string& path) {
  std::error_code ignored;
  return fs::read_symlink(path, ignored).string();
}

std::string name_of(const std::string& pid) {
  auto name = read_file("/proc/" + pid + "/comm");
  return name ? name->substr(0, name->find('\n')) : "?";
}

// "4711 (a name) S 1 …"
std::string parent_of(const std::string& pid) {
  auto stat = read_file("/proc/" + pid + "/stat");
  std::istringstream words(stat ? stat->substr(std::min(stat->rfind(')') + 1, stat->size())) : "");
  std::string state, parent;
  words >> state >> parent;
  return parent;
}

// "socket", "anon_inode", a path.
std::vector<std::string> descriptors_of(const std::string& pid) {
  std::vector<std::string> targets;
  for (const auto& fd : names_in("/proc/" + pid + "/fd")) {
    std::string target = link_of("/proc/" + pid + "/fd/" + fd);
    target = target.substr(0, target.find(":["));
    if (target.find("/launcher.log") == std::string::npos) targets.push_back(target);
  }
  return targets;
}

// A gate is started for the first sandbox that needs one, and stays while the launcher lives. What it has then when it
// serves nobody: its loop, the launcher's conversation, and two to ask for the host's addresses.
void count_gate(const std::string& pid, std::vector<std::string>& found) {
  std::map<std::string, int> own = {{"anon_inode", 1}, {"socket", 3}, {"/dev/null", 3}};
  for (const auto& target : descriptors_of(pid))
    if (own[target]-- <= 0) found.push_back(target);
}

// Everything that lies where layers lie, below a storage folder as somebody sees it: whole layers, the file of one, and
// the ones by which a store tries itself. Empty filesystems to copy from stay, one per size.
std::vector<std::string> layers_below(const std::string& storage) {
  std::vector<std::string> layers;
  for (const char* folder : {"layers", "files"})
    for (const auto& name : names_in(storage + "/" + folder))
      if (!name.starts_with("template-")) layers.push_back(std::string(folder) + "/" + name);
  return layers;
}

// Without a launcher nobody has the store mounted: it is opened, in a mount namespace that goes with the child.
std::vector<std::string> layers_at_rest(const std::string& data_dir) {
  auto layers = layers_below(data_dir + "/storage");
  if (!fs::exists(data_dir + "/storage/provider")) return layers;
  auto pipe = kernel::make_pipe();
  auto child = kernel::spawn(0, [&] {
    if (::unshare(CLONE_NEWNS) < 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0) return 2;
    auto store = image::open_layer_store(data_dir, {}, std::nullopt);
    auto names = store ? (*store)->list() : Result<std::vector<std::string>>(std::unexpected(store.error()));
    std::string text;
    if (!names) text = "cannot be read: " + names.error().message + "\n";
    if (names)
      for (const auto& name : *names) text += name + "\n";
    return write_all(pipe->second.get(), text) ? 0 : 3;  // the store is closed here, and its mount is gone
  });
  pipe->second.reset();
  std::string text;
  char buffer[8192];
  for (ssize_t n; (n = ::read(pipe->first.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  int status = 1;
  if (!child || ::waitpid(child->pid, &status, 0) < 0 || status != 0) layers.emplace_back("the store cannot be asked");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) layers.push_back("store/" + line);
  return layers;
}

}  // namespace

std::string difference(const Census& before, const Census& after) {
  std::string text;
  std::set<std::string> kinds;
  for (const auto& side : {before, after})
    for (const auto& [kind, things] : side) kinds.insert(kind);
  for (const auto& kind : kinds) {
    auto a = before.contains(kind) ? before.at(kind) : std::vector<std::string>{};
    auto b = after.contains(kind) ? after.at(kind) : std::vector<std::string>{};
    std::vector<std::string> lost, extra;
    std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(lost));
    std::set_difference(b.begin(), b.end(), a.begin(), a.end(), std::back_inserter(extra));
    for (const auto& x : extra) text += fmt::format("left behind: {} {}\n", kind, x);
    for (const auto& x : lost) text += fmt::format("missing: {} {}\n", kind, x);
  }
  return text;
}

CensusTaker::CensusTaker(const std::string& data_dir)
    : data_dir_(data_dir), watch_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
  if (!make_dirs(data_dir + "/run", 0700)) std::abort();
  if (!watch_ || ::inotify_add_watch(watch_.get(), (data_dir + "/run").c_str(), IN_CREATE | IN_MOVED_TO) < 0)
    std::abort();
}

const std::set<std::string>& CensusTaker::ids() {
  alignas(inotify_event) char buffer[65536];
  for (ssize_t n; (n = ::read(watch_.get(), buffer, sizeof buffer)) > 0;)
    for (char* at = buffer; at < buffer + n;) {
      auto* event = reinterpret_cast<inotify_event*>(at);
      std::string name = event->len ? event->name : "";
      if (name.starts_with('.')) name.erase(0, 1);
      if (is_sandbox_id(name)) ids_.insert(name);
      at += sizeof *event + event->len;
    }
  return ids_;
}

// A process is ours when it is a launcher (or a fork of it) on our data directory, a guest of ours, or in a group of
// ours.
bool CensusTaker::ours(const std::string& pid) {
  auto cmdline = read_file("/proc/" + pid + "/cmdline");
  if (!cmdline) return false;
  if (cmdline->find("launcher") != std::string::npos && cmdline->find(data_dir_) != std::string::npos) return true;
  auto groups = read_file("/proc/" + pid + "/cgroup");
  for (const auto& id : ids_)
    if (cmdline->find(id) != std::string::npos || (groups && groups->find(id) != std::string::npos)) return true;
  return false;
}

Census CensusTaker::take() {
  ids();
  Census census;
  bool layers_seen = false;
  // First of all, because to look at the layers without a launcher takes a device for a moment.
  for (const auto& name : names_in("/sys/block"))
    if (auto file = read_file("/sys/block/" + name + "/loop/backing_file");
        file && file->find(data_dir_) != std::string::npos)
      census["loop device"].push_back("of " + *file);  // its number is whichever is free when a launcher starts
  // Mounts of this namespace.
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);)
    if (line.find(data_dir_) != std::string::npos) census["mount"].push_back(line);
  // Control groups, in every hierarchy.
  if (auto layout = kernel::find_cgroup_layout({}); layout) {
    std::set<std::string> folders{layout->cpu,  layout->cpuacct, layout->memory,
                                  layout->pids, layout->freezer, layout->io};
    for (const auto& folder : folders)
      for (const auto& id : ids_)
        if (!folder.empty() && fs::exists(folder + "/" + id)) census["cgroup"].push_back(folder + "/" + id);
  }
  // Processes, and the network namespaces that they are in.
  std::set<std::string> own_net{link_of("/proc/self/ns/net")}, nets, launchers, others;
  for (const auto& pid : names_in("/proc")) {
    if (!is_number(pid)) continue;
    if (!ours(pid)) {
      others.insert(pid);
      continue;
    }
    const std::string command = name_of(pid);
    census["process"].push_back(command);
    if (auto net = link_of("/proc/" + pid + "/ns/net"); !net.empty() && !own_net.contains(net)) nets.insert(net);
    if (command != "isola-launcher") continue;
    launchers.insert(pid);
    // What the launcher holds, and what is mounted in its own namespace.
    std::ranges::copy(descriptors_of(pid), std::back_inserter(census["launcher descriptor"]));
    // What it found when it began is the host's, where mounts of other tests come and go.
    std::set<std::string> hosts;
    for (const auto& target : mount_points("self")) hosts.insert(target);
    for (const auto& target : mount_points(pid)) {
      if (hosts.contains(target)) continue;
      // Images stay mounted while the launcher lives: a cache, not a leak.
      if (target.find("/stage/images/") == std::string::npos) census["launcher mount"].push_back(target);
    }
    census["layer"] = layers_below("/proc/" + pid + "/root" + data_dir_ + "/storage");
    layers_seen = true;
  }
  // Its children, too, that became another program: the gate, and whoever else.
  bool gate_seen = false;
  for (const auto& pid : others) {
    if (!launchers.contains(parent_of(pid))) continue;
    const std::string command = name_of(pid);
    if (command == "isola-gate" && !std::exchange(gate_seen, true))
      count_gate(pid, census["gate descriptor"]);
    else
      census["process"].push_back(command);
  }
  if (!layers_seen) census["layer"] = layers_at_rest(data_dir_);
  census["network namespace"].assign(nets.begin(), nets.end());
  // What is put aside there is a file to use again, nobody's entry.
  for (const auto& name : names_in(data_dir_ + "/run"))
    if (!NameFiles::is_aside(name)) census["journal"].push_back(name);
  auto ranges = launcher::IdRanges::open(data_dir_);
  auto taken =
      ranges ? ranges->mine() : Result<std::vector<launcher::IdRanges::Taken>>(std::unexpected(ranges.error()));
  if (!taken) census["id range"].push_back("cannot be read: " + taken.error().message);
  if (taken)
    for (const auto& one : *taken) census["id range"].push_back(fmt::format("{} {}", one.base, one.sandbox));
  // Images, and what a restore needs for a moment.
  for (const auto& kind : {"images", "scratch"})
    for (const auto& name : names_in(data_dir_ + "/" + kind)) census[kind].push_back(name);
  for (auto& [kind, things] : census) std::sort(things.begin(), things.end());
  std::erase_if(census, [](const auto& kind) { return kind.second.empty(); });
  return census;
}

}  // namespace isola::e2e
