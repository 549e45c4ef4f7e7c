#include "bench/peers.h"

#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "boundary/jail/syscall_policy.h"

namespace isola::bench {

namespace {

using Json = nlohmann::json;

constexpr uint32_t kMappedRoot = 0x3f000000;  // below the launcher's ranges

// Names of system calls by number, from the header that every compiler's C library brings.
std::map<uint32_t, std::string> call_names() {
  std::map<uint32_t, std::string> names;
  for (const char* header : {"/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h",
                             "/usr/include/asm-generic/unistd.h"}) {
    std::ifstream in(header);
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      std::string define, name;
      uint32_t number = 0;
      if (words >> define >> name >> number && define == "#define" && name.starts_with("__NR_"))
        names[number] = name.substr(5);
    }
    if (!names.empty()) break;
  }
  return names;
}

Json filter_section() {
  Json allowed = Json::array();
  auto names = call_names();
  for (const auto& call : boundary::jail_syscall_policy().calls)
    if (auto it = names.find(call.number); it != names.end()) allowed.push_back(it->second);
  return {{"defaultAction", "SCMP_ACT_ERRNO"}, {"syscalls", {{{"names", allowed}, {"action", "SCMP_ACT_ALLOW"}}}}};
}

// What `runc spec` writes, with our program, a user and a network namespace, limits and a filter.
Json bundle_config(const std::string& root, const std::vector<std::string>& argv) {
  Json capabilities = {"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETUID", "CAP_SETGID", "CAP_KILL"};
  Json map = {{{"containerID", 0}, {"hostID", kMappedRoot}, {"size", 65536}}};
  auto mount = [](const char* where, const char* type, const char* what, Json options) {
    return Json{{"destination", where}, {"type", type}, {"source", what}, {"options", std::move(options)}};
  };
  Json namespaces = Json::array();
  for (const char* kind : {"pid", "network", "ipc", "uts", "mount", "user", "cgroup"})
    namespaces.push_back({{"type", kind}});
  return {{"ociVersion", "1.0.2"},
          {"process",
           {{"terminal", false},
            {"user", {{"uid", 0}, {"gid", 0}}},
            {"args", argv},
            {"env", {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}},
            {"cwd", "/"},
            {"capabilities", {{"bounding", capabilities}, {"effective", capabilities}, {"permitted", capabilities}}},
            {"rlimits", {{{"type", "RLIMIT_NOFILE"}, {"hard", 16384}, {"soft", 1024}}}}}},
          {"root", {{"path", root}, {"readonly", false}}},
          {"hostname", "isola"},
          {"mounts",
           {mount("/proc", "proc", "proc", {"nosuid", "noexec", "nodev"}),
            mount("/dev", "tmpfs", "tmpfs", {"nosuid", "strictatime", "mode=755", "size=65536k"}),
            mount("/dev/pts", "devpts", "devpts", {"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}),
            mount("/dev/shm", "tmpfs", "shm", {"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}),
            mount("/dev/mqueue", "mqueue", "mqueue", {"nosuid", "noexec", "nodev"}),
            mount("/sys", "sysfs", "sysfs", {"nosuid", "noexec", "nodev", "ro"})}},
          {"linux",
           {{"namespaces", namespaces},
            {"uidMappings", map},
            {"gidMappings", map},
            {"cgroupsPath", "/isola-bench-" + std::to_string(::getppid())},
            {"resources",
             {{"memory", {{"limit", 512 << 20}}},
              {"pids", {{"limit", 512}}},
              {"cpu", {{"quota", 200000}, {"period", 100000}}},
              {"devices", {{{"allow", false}, {"access", "rwm"}}}}}},
            {"seccomp", filter_section()},
            {"maskedPaths", {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"}},
            {"readonlyPaths", {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}}}}};
}

// crun refuses a machine that has both cgroup versions mounted. In this process's own mount namespace the second one
// can go: nobody else notices, and our launcher has a namespace of its own.
void hide_second_cgroup_version(Report& report) {
  std::ifstream mounts("/proc/self/mounts");
  std::string second;
  bool first = false;
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string what, where, type;
    words >> what >> where >> type;
    first |= type == "cgroup";
    if (type == "cgroup2") second = where;
  }
  if (!first || second.empty()) return;
  if (::umount2(second.c_str(), MNT_DETACH) == 0)
    report.note("peers run in a mount namespace without " + second +
                ": crun refuses machines with both cgroup versions");
}

Result<Fd> filter_file() {
  ISOLA_TRY(auto program, boundary::jail_syscall_program());
  Fd file(::memfd_create("filter", MFD_CLOEXEC));
  if (!file) return sys_error("cannot make a file in memory");
  const auto& code = program.code();
  ISOLA_CHECK(write_all(file.get(), {reinterpret_cast<const char*>(code.data()), code.size() * sizeof code[0]}));
  return file;
}

}  // namespace

std::string oci_config(const std::string& root, const std::vector<std::string>& argv) {
  return bundle_config(root, argv).dump();
}

Result<std::vector<Peer>> make_peers(Stage& stage) {
  Report& report = stage.report();
  hide_second_cgroup_version(report);
  std::string bundle = stage.scratch() + "/bundle", state = stage.scratch() + "/peer-state";
  ISOLA_CHECK(make_dirs(bundle));
  ISOLA_CHECK(make_dirs(state));
  ISOLA_TRY(std::string root, stage.outside_root("peers", stage.digest(), true));
  // Runtimes bring their own.
  if (::umount((root + "/proc").c_str()) < 0 || ::umount((root + "/dev").c_str()) < 0)
    return sys_error("cannot clear " + root);
  ISOLA_CHECK(replace_file(bundle + "/config.json", oci_config(root, {kHello})));

  std::vector<Peer> wanted;
  auto add = [&](const char* name, const char* program, std::vector<std::string> words) {
    std::string path = installed(program);
    if (path.empty()) return report.note(std::string(program) + " is not installed: not compared");
    words.insert(words.begin(), path);
    wanted.push_back({.name = name, .program = {.argv = std::move(words)}, .filter = {}});
  };
  add("crun run", "crun", {"--root", state, "run", "--bundle", bundle, "isola-bench"});
  add("runc run", "runc", {"--root", state, "run", "--bundle", bundle, "isola-bench"});
  add("bwrap", "bwrap",
      {"--unshare-all", "--die-with-parent", "--new-session", "--bind", root, "/", "--proc", "/proc", "--dev", "/dev",
       "--cap-drop", "ALL", "--hostname", "isola", "--seccomp", "9", kHello});
  add("runsc run", "runsc",
      {"--root", state, "--network=none", "--ignore-cgroups", "run", "--bundle", bundle, "isola-bench"});
  add("podman run", "podman", {"run", "--rm", "--network=none", "--rootfs", root, kHello});

  std::vector<Peer> working;
  for (auto& peer : wanted) {
    if (peer.name == "bwrap") {
      ISOLA_TRY(peer.filter, filter_file());
      peer.program.extra = peer.filter.get();
    }
    if (auto tried = run_program(peer.program, kHelloSays); !tried)
      report.note(peer.name + " does not work here, left out: " + tried.error().message);
    else
      working.push_back(std::move(peer));
  }
  return working;
}

}  // namespace isola::bench
