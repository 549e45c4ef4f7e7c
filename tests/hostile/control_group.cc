#include "control_group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "probe.h"

namespace isola::hostile {
namespace {

const std::string kRoot = "/sys/fs/cgroup";

bool is_v2() { return ::access((kRoot + "/cgroup.controllers").c_str(), F_OK) == 0; }

Result<void> set(const std::string& path, long value) {
  if (spill(path, fmt::format("{}", value)) != 0) return sys_error("cannot write " + path);
  return {};
}

std::vector<int> members(const std::string& dir) {
  std::vector<int> pids;
  auto text = slurp(dir + "/cgroup.procs");
  int pid = 0, used = 0;
  for (const char* at = text ? text->c_str() : ""; ::sscanf(at, "%d%n", &pid, &used) == 1; at += used)
    pids.push_back(pid);
  return pids;
}

}  // namespace

Result<ControlGroup> ControlGroup::create(const std::string& name, long memory_bytes, long pids) {
  ControlGroup group;
  auto make = [&](const std::string& dir) -> Result<void> {
    if (::mkdir(dir.c_str(), 0755) != 0) return sys_error("cannot make the control group " + dir);
    group.dirs_.push_back(dir);
    return {};
  };
  if (is_v2()) {
    std::string dir = kRoot + "/" + name;
    ISOLA_CHECK(make(dir));
    ISOLA_CHECK(set(dir + "/memory.max", memory_bytes));
    ISOLA_CHECK(set(dir + "/pids.max", pids));
    return group;
  }
  std::string memory = kRoot + "/memory/" + name, processes = kRoot + "/pids/" + name;
  ISOLA_CHECK(make(memory));
  ISOLA_CHECK(set(memory + "/memory.limit_in_bytes", memory_bytes));
  ISOLA_CHECK(make(processes));
  ISOLA_CHECK(set(processes + "/pids.max", pids));
  return group;
}

ControlGroup::~ControlGroup() {
  for (const std::string& dir : dirs_) {
    wait_until(5000, [&] {
      for (int pid : members(dir)) ::kill(pid, SIGKILL);
      return ::rmdir(dir.c_str()) == 0;
    });
  }
}

bool ControlGroup::join() const {
  for (const std::string& dir : dirs_) {
    if (spill(dir + "/cgroup.procs", fmt::format("{}", ::getpid())) != 0) return false;
  }
  return true;
}

bool show_group(const std::string& at) {
  if (is_v2()) return ::mount("cgroup2", at.c_str(), "cgroup2", 0, nullptr) == 0;
  if (::mount("tmpfs", at.c_str(), "tmpfs", 0, "mode=755") != 0) return false;
  for (const char* controller : {"memory", "pids"}) {
    std::string dir = at + "/" + controller;
    if (::mkdir(dir.c_str(), 0755) != 0 || ::mount("cgroup", dir.c_str(), "cgroup", 0, controller) != 0) return false;
  }
  return true;
}

}  // namespace isola::hostile
