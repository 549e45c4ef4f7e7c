#include "cli/host_facts.h"

#include <sys/utsname.h>
#include <time.h>

#include <cstdlib>

#include "base/file.h"

namespace isola::cli {

namespace {
int64_t milliseconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}
}  // namespace

HostFacts host_facts() {
  HostFacts facts;
  utsname name{};
  ::uname(&name);
  facts.settings["the host's name"] = name.nodename;
  facts.settings["the host's domain"] = name.domainname;
  for (const char* file : {"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe",
                           "/proc/sys/vm/overcommit_memory", "/proc/self/timens_offsets"})
    facts.settings[file] = read_file(file).value_or("?");
  facts.clock_offset_ms = milliseconds(CLOCK_REALTIME) - milliseconds(CLOCK_BOOTTIME);
  return facts;
}

std::string changed(const HostFacts& before, const HostFacts& after) {
  for (const auto& [what, value] : before.settings)
    if (auto now = after.settings.find(what); now == after.settings.end() || now->second != value) return what;
  if (std::abs(after.clock_offset_ms - before.clock_offset_ms) > kMostDriftMs) return "the host's clock";
  return "";
}

}  // namespace isola::cli
