#include "boundary/gvisor/bundle.h"

#include <fmt/format.h>
#include <linux/capability.h>

#include "kernel/capability.h"

namespace isola::boundary::gvisor {

namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\')
      out += std::string("\\") + c;
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + "\"";
}

// Those that a sandbox can have, by the names that OCI has for them.
constexpr std::pair<int, const char*> kNames[] = {{CAP_CHOWN, "CAP_CHOWN"},
                                                  {CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"},
                                                  {CAP_FOWNER, "CAP_FOWNER"},
                                                  {CAP_FSETID, "CAP_FSETID"},
                                                  {CAP_KILL, "CAP_KILL"},
                                                  {CAP_SETGID, "CAP_SETGID"},
                                                  {CAP_SETUID, "CAP_SETUID"},
                                                  {CAP_SETPCAP, "CAP_SETPCAP"},
                                                  {CAP_NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"},
                                                  {CAP_SYS_CHROOT, "CAP_SYS_CHROOT"},
                                                  {CAP_AUDIT_WRITE, "CAP_AUDIT_WRITE"},
                                                  {CAP_SETFCAP, "CAP_SETFCAP"}};

std::string capability_names(uint64_t set) {
  std::string names;
  for (auto [number, name] : kNames)
    if (set & kernel::capability(number)) names += (names.empty() ? "" : ",") + quoted(name);
  return "[" + names + "]";
}

std::string bound(std::string_view from, std::string_view to, bool read_only) {
  return fmt::format(R"({{"destination":{},"type":"bind","source":{},"options":["bind","{}","nosuid","nodev"]}})",
                     quoted(to), quoted(from), read_only ? "ro" : "rw");
}

}  // namespace

std::string shown_at(size_t number) { return fmt::format("shown/{}", number); }

std::string describe_bundle(const LaunchSpec& spec, uint64_t capabilities) {
  std::string mounts = R"({"destination":"/proc","type":"proc","source":"proc"},)" +
                       bound(std::string("/") + kPrograms, kProgramsInside, true);
  for (size_t i = 0; i < spec.shown.size(); ++i)
    mounts += "," + bound("/" + shown_at(i), spec.shown[i].target, spec.shown[i].read_only);
  const std::string names = capability_names(capabilities);
  return fmt::format(
      R"({{"ociVersion":"1.0.2","hostname":"isola","root":{{"path":"rootfs","readonly":false}},)"
      R"("process":{{"terminal":false,"cwd":"/","user":{{"uid":0,"gid":0}},"env":[],)"
      R"("args":["{0}/isola-guest","--stdio"],)"
      R"("capabilities":{{"bounding":{1},"effective":{1},"permitted":{1},"inheritable":[]}},)"
      R"("rlimits":[{{"type":"RLIMIT_NOFILE","hard":{2},"soft":{2}}},{{"type":"RLIMIT_CORE","hard":0,"soft":0}}]}},)"
      R"("mounts":[{3}],)"
      R"("linux":{{"namespaces":[{{"type":"pid"}},{{"type":"mount"}},{{"type":"ipc"}},{{"type":"uts"}},)"
      R"({{"type":"network","path":"/{4}"}}]}}}})",
      kProgramsInside, names, spec.limits.open_files, mounts, kWire);
}

std::string describe_memory(uint64_t bytes) {
  return fmt::format("MemTotal: {0:14} kB\nMemFree: {0:15} kB\nMemAvailable: {0:10} kB\n", bytes / 1024);
}

}  // namespace isola::boundary::gvisor
