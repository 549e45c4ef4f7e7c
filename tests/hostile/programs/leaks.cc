// What a guest learns about the host. Words that the runner knows from the host (ISOLA_HOST_WORDS, by commas: storage
// folder, template folder, canary folder, control groups) must not be readable anywhere. Nor must the host's name
// (ISOLA_HOST_NAME), which is looked for as a whole word: a short one may well be part of another.
#include <stdio.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

std::vector<std::string> host_words() {
  std::vector<std::string> words;
  std::string list = env("ISOLA_HOST_WORDS");
  for (size_t at = 0; at < list.size();) {
    size_t end = std::min(list.find(',', at), list.size());
    if (end > at) words.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

Outcome look_for_words(std::initializer_list<const char*> paths) {
  auto words = host_words();
  if (words.empty()) return untried("ISOLA_HOST_WORDS is not set");
  Attempts attempts;
  for (const char* path : paths) {
    auto text = slurp(path);
    if (!text) {
      attempts.add(path, -1);
      continue;
    }
    bool found = false;
    for (const std::string& word : words) {
      if (text->find(word) == std::string::npos) continue;
      attempts.worked(fmt::format("{} says {}", path, word));
      found = true;
    }
    if (!found) attempts.refused(path, "clean");
  }
  return attempts.outcome();
}

Outcome mount_paths(const Args&) {
  return look_for_words({"/proc/self/mountinfo", "/proc/1/mountinfo", "/proc/self/mounts", "/proc/self/mountstats"});
}
Outcome group_paths(const Args&) {
  return look_for_words({"/proc/self/cgroup", "/proc/1/cgroup", "/proc/self/cpuset"});
}

Outcome host_identity(const Args&) {
  Attempts attempts;
  for (const char* path :
       {"/sys/class/dmi/id/product_uuid", "/sys/class/dmi/id/product_name", "/sys/class/dmi/id/board_serial",
        "/sys/devices/virtual/dmi/id/sys_vendor", "/sys/firmware/dmi/tables/DMI", "/sys/firmware/acpi/tables/DSDT",
        "/sys/hypervisor/uuid", "/sys/class/net/eth0/address", "/proc/cmdline"}) {
    auto text = slurp(path);
    if (!text)
      attempts.add(path, -1);
    else if (text->empty() || *text == "\n")
      attempts.refused(path, "empty");
    else
      attempts.worked(path);
  }
  return attempts.outcome();
}

// The name itself, or the name with a domain behind it.
bool names_host(std::string_view word, const std::string& name) { return word == name || word.starts_with(name + "."); }

bool says_name(const std::string& text, const std::string& name) {
  constexpr std::string_view kBetween = " \t\n";
  for (size_t at = 0; (at = text.find_first_not_of(kBetween, at)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    if (names_host(std::string_view(text).substr(at, end - at), name)) return true;
    at = end;
  }
  return false;
}

Outcome host_name_seen(const Args&) {
  const std::string name = env("ISOLA_HOST_NAME");
  if (name.empty()) return untried("ISOLA_HOST_NAME is not set");
  Attempts attempts;
  utsname own{};
  ::uname(&own);
  if (names_host(own.nodename, name))
    attempts.worked("uname says " + name);
  else
    attempts.refused("uname", own.nodename);
  for (const char* path : {"/proc/sys/kernel/hostname", "/etc/hostname", "/etc/hosts"}) {
    auto text = slurp(path);
    if (!text)
      attempts.add(path, -1);
    else if (says_name(*text, name))
      attempts.worked(fmt::format("{} says {}", path, name));
    else
      attempts.refused(path, "clean");
  }
  return attempts.outcome();
}

// A command line in /proc that is not ours is somebody else's secret.
Outcome host_processes(const Args&) {
  auto words = host_words();
  Attempts attempts;
  for (int pid : all_pids()) {
    auto line = slurp(fmt::format("/proc/{}/cmdline", pid));
    for (const std::string& word : words) {
      if (line && line->find(word) != std::string::npos) attempts.worked(fmt::format("process {} says {}", pid, word));
    }
    // Kernel threads are visible in the machine's own pid namespace only.
    if (auto status = slurp(fmt::format("/proc/{}/comm", pid)); status && status->starts_with("kthreadd"))
      attempts.worked("kernel threads are visible");
  }
  if (!attempts.any_worked()) return contained(fmt::format("{} processes, all our own", all_pids().size()));
  return attempts.outcome();
}

Outcome host_environment(const Args&) {
  auto words = host_words();
  const std::string name = env("ISOLA_HOST_NAME");
  Attempts attempts;
  for (char** entry = ::environ; *entry; ++entry) {
    std::string_view text = *entry;
    if (text.starts_with("ISOLA_")) continue;  // the runner's own
    for (const std::string& word : words) {
      if (text.find(word) != std::string_view::npos) attempts.worked(fmt::format("{} says {}", text, word));
    }
    if (!name.empty() && names_host(text.substr(text.find('=') + 1), name))
      attempts.worked(fmt::format("{} says {}", text, name));
    for (std::string_view secret : {"TOKEN", "SECRET", "PASSWORD", "API_KEY", "SSH_AUTH_SOCK", "SUDO_USER"}) {
      if (text.substr(0, text.find('=')).find(secret) != std::string_view::npos)
        attempts.worked(fmt::format("{} is set", text.substr(0, text.find('='))));
    }
  }
  return attempts.any_worked() ? attempts.outcome() : contained("the environment is the sandbox's own");
}

constexpr Program kLeakPrograms[] = {
    {"leak-mounts", "leaks", "looks for folders of the host in mountinfo", "none of the host's words", mount_paths},
    {"leak-cgroup", "leaks", "looks for the group's path on the host", "/ only", group_paths, Expect::contained,
     kControlHostGroups},
    {"leak-identity", "leaks", "reads the machine's serial numbers, firmware tables, addresses and boot line",
     "masked or not there", host_identity},
    {"leak-hostname", "leaks", "looks for the host's name", "a name of its own", host_name_seen},
    {"leak-processes", "leaks", "looks for processes and command lines of the host", "only its own", host_processes},
    {"leak-environment", "leaks", "looks for secrets of the host in its environment", "none", host_environment},
};

}  // namespace

Family leak_programs() { return kLeakPrograms; }

}  // namespace isola::hostile
