// isola-learns [WORD]: what a program without helpers learns about the machine from where it runs. One line for each
// fact: its name, what it is, how it is compared with the host's (`same`, or `near` for numbers that go on), and what
// was found, with tabs between. Nothing found: an empty last field. WORD is in the command line of a process of the
// host's.
#include <arpa/inet.h>
#include <cpuid.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::string word;

std::string slurp(const std::string& path, size_t most = 65536) {
  std::ifstream file(path, std::ios::binary);
  std::string text(most, '\0');
  file.read(text.data(), static_cast<std::streamsize>(most));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}
std::vector<std::string> names(const std::string& folder) {
  std::vector<std::string> all;
  DIR* dir = ::opendir(folder.c_str());
  while (dirent* entry = dir ? ::readdir(dir) : nullptr)
    if (entry->d_name[0] != '.') all.push_back(entry->d_name);
  if (dir) ::closedir(dir);
  std::sort(all.begin(), all.end());
  return all;
}
std::string joined(const std::vector<std::string>& all) {
  std::string text;
  for (const auto& one : all) text += (text.empty() ? "" : " ") + one;
  return text;
}
// What follows `start` in the first line that begins so.
std::string line_of(const std::string& path, const std::string& start) {
  std::istringstream lines(slurp(path));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(start))
      return line.substr(std::min(line.size(), line.find_first_not_of(": \t", start.size())));
  return "";
}
std::string column(const std::string& path, size_t skip, std::initializer_list<size_t> fields) {
  std::istringstream lines(slurp(path));
  std::string line, text;
  for (size_t i = 0; std::getline(lines, line); ++i) {
    if (i < skip) continue;
    std::istringstream words(line);
    std::vector<std::string> all;
    for (std::string one; words >> one;) all.push_back(one);
    for (size_t field : fields) text += field < all.size() ? all[field] + " " : "";
  }
  return text;
}

std::string uname_field(char (utsname::*field)[65]) {
  utsname name{};
  ::uname(&name);
  std::string text = name.*field;
  return text == "(none)" ? "" : text;
}
std::string signature(unsigned leaf, bool order_of_vendor) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  __cpuid(leaf, a, b, c, d);
  char text[13] = "";
  ::memcpy(text, &b, 4);
  ::memcpy(text + 4, order_of_vendor ? &d : &c, 4);
  ::memcpy(text + 8, order_of_vendor ? &c : &d, 4);
  return text;
}
std::string cpu_brand() {
  unsigned registers[12] = {};
  for (unsigned i = 0; i < 3; ++i)
    __cpuid(0x80000002 + i, registers[4 * i], registers[4 * i + 1], registers[4 * i + 2], registers[4 * i + 3]);
  return std::string(reinterpret_cast<char*>(registers), ::strnlen(reinterpret_cast<char*>(registers), 48));
}
std::string hypervisor() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  __cpuid(1, a, b, c, d);
  return c >> 31 ? signature(0x40000000, false) : "";
}
// Processors had one in 1999.
std::string cpu_serial() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  __cpuid(1, a, b, c, d);
  if (!(d >> 18 & 1)) return "";
  unsigned version = a;
  __cpuid(3, a, b, c, d);
  return std::to_string(version) + "-" + std::to_string(d) + "-" + std::to_string(c);
}
std::string dmi() {
  std::string text;
  for (const char* name : {"sys_vendor", "product_name", "product_serial", "product_uuid", "board_serial",
                           "bios_version", "chassis_asset_tag"})
    text += slurp(std::string("/sys/class/dmi/id/") + name);
  return text + joined(names("/sys/firmware"));
}
std::string addresses(bool hardware) {
  std::set<std::string> all;
  if (hardware) {
    for (const auto& name : names("/sys/class/net")) {
      std::string address = slurp("/sys/class/net/" + name + "/address");
      if (address.find_first_not_of("0:\n") != std::string::npos) all.insert(address);
    }
  } else {
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) < 0) return "";
    for (ifaddrs* one = list; one; one = one->ifa_next) {
      int family = one->ifa_addr ? one->ifa_addr->sa_family : 0;
      if ((family != AF_INET && family != AF_INET6) || (one->ifa_flags & IFF_LOOPBACK)) continue;
      char text[128] = "";
      const void* at = family == AF_INET
                           ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(one->ifa_addr)->sin_addr)
                           : &reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      ::inet_ntop(family, at, text, sizeof text);
      all.insert(text);
    }
  }
  return joined({all.begin(), all.end()});
}
std::string host_processes() {
  if (word.empty()) return "";
  for (const auto& name : names("/proc")) {
    if (!std::isdigit(static_cast<unsigned char>(name[0])) || std::atoi(name.c_str()) == ::getpid()) continue;
    if (std::atoi(name.c_str()) == ::getppid()) continue;
    if (slurp("/proc/" + name + "/cmdline").find(word) != std::string::npos) return "seen";
  }
  return "";
}
std::string kernel_log() {
  std::string text(1 << 20, '\0');
  int n = ::klogctl(3, text.data(), static_cast<int>(text.size()));
  text.resize(static_cast<size_t>(std::max(n, 0)));
  return text.substr(0, 2000);
}
std::string kernel_addresses() {
  std::istringstream text(slurp("/proc/kallsyms", 4096));
  std::string address;
  text >> address;
  return address.find_first_not_of('0') == std::string::npos ? "" : address;
}
std::string root_device() {
  std::istringstream lines(slurp("/proc/self/mountinfo"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> all;
    for (std::string one; words >> one;) all.push_back(one);
    auto dash = std::find(all.begin(), all.end(), "-");
    if (all.size() > 4 && all[4] == "/" && all.end() - dash > 2) return *(dash + 1) + " " + *(dash + 2);
  }
  return "";
}
std::string processor_time() {
  std::istringstream fields(line_of("/proc/stat", "cpu "));
  double sum = 0;
  for (double one = 0; fields >> one;) sum += one;
  return sum > 0 ? std::to_string(sum) : "";
}
std::string vulnerabilities() {
  std::string text, folder = "/sys/devices/system/cpu/vulnerabilities/";
  for (const auto& name : names(folder)) text += name + "=" + slurp(folder + name);
  return text;
}
std::string features() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  __cpuid_count(7, 0, a, b, c, d);
  return std::to_string(b) + " " + std::to_string(c);
}

struct Fact {
  const char *name, *what;
  std::string (*find)();
  const char* compare = "same";
};
constexpr Fact kFacts[] = {
    {"kernel-release", "release of the kernel (`uname -r`)", [] { return uname_field(&utsname::release); }},
    {"kernel-build", "who built it and when (`uname -v`)", [] { return uname_field(&utsname::version); }},
    {"kernel-command-line", "`/proc/cmdline`", [] { return slurp("/proc/cmdline"); }},
    {"kernel-configuration", "`/proc/config.gz`",
     [] {
       std::string text = slurp("/proc/config.gz", 1 << 20);
       return text.empty() ? "" : std::to_string(text.size()) + " bytes";
     }},
    {"kernel-log", "the kernel's messages", kernel_log},
    {"kernel-addresses", "addresses in `/proc/kallsyms`", kernel_addresses},
    {"kernel-modules", "`/proc/modules`", [] { return column("/proc/modules", 0, {0}); }},
    {"host-name", "name of the machine", [] { return uname_field(&utsname::nodename); }},
    {"domain-name", "NIS domain", [] { return uname_field(&utsname::domainname); }},
    {"machine-id", "`/etc/machine-id`", [] { return slurp("/etc/machine-id") + slurp("/var/lib/dbus/machine-id"); }},
    {"boot-id", "random number of this boot", [] { return slurp("/proc/sys/kernel/random/boot_id"); }},
    {"boot-time", "when the machine was started", [] { return line_of("/proc/stat", "btime "); }, "time"},
    {"clock", "date and time", [] { return std::to_string(::time(nullptr)); }, "time"},
    {"cpu-model", "processor, by `/proc/cpuinfo`", [] { return line_of("/proc/cpuinfo", "model name"); }},
    {"cpu-microcode", "version of its microcode", [] { return line_of("/proc/cpuinfo", "microcode"); }},
    {"cpu-serial", "serial number of the processor", cpu_serial},
    {"cpuid-vendor", "processor's maker, by the instruction `cpuid`", [] { return signature(0, true); }},
    {"cpuid-brand", "processor, by `cpuid`", cpu_brand},
    {"cpuid-features", "features, by `cpuid`", features},
    {"cpuid-hypervisor", "what the host itself runs on, by `cpuid`", hypervisor},
    {"cpu-weaknesses", "`/sys/devices/system/cpu/vulnerabilities`", vulnerabilities},
    {"cpu-count", "number of processors", [] { return std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)); }},
    {"cpu-time", "processor time of the whole machine (`/proc/stat`)", processor_time, "near"},
    {"memory-size", "size of the memory", [] { return line_of("/proc/meminfo", "MemTotal"); }},
    {"memory-counters", "pages that the machine read so far (`/proc/vmstat`)",
     [] { return line_of("/proc/vmstat", "pgpgin "); }, "near"},
    {"memory-layout", "`/proc/iomem`", [] { return slurp("/proc/iomem", 2000); }},
    {"dmi", "maker, model, serial number and UUID of the machine; its firmware", dmi},
    {"pci", "devices on the PCI bus", [] { return joined(names("/sys/bus/pci/devices")); }},
    {"interrupts", "`/proc/interrupts`", [] { return column("/proc/interrupts", 1, {0}); }},
    {"disks", "disks and their sizes (`/proc/partitions`)", [] { return column("/proc/partitions", 2, {2, 3}); }},
    {"root-device", "what the root file system lies on", root_device},
    {"swap", "`/proc/swaps`", [] { return column("/proc/swaps", 1, {0}); }},
    {"control-group", "path of the own control group", [] { return slurp("/proc/self/cgroup"); }},
    {"network-devices", "names of network devices",
     [] {
       auto all = names("/sys/class/net");
       std::erase(all, "lo");
       return joined(all);
     }},
    {"network-hardware", "addresses of network cards", [] { return addresses(true); }},
    {"network-addresses", "the machine's addresses", [] { return addresses(false); }},
    {"network-neighbours", "machines beside it (`/proc/net/arp`)", [] { return column("/proc/net/arp", 1, {0, 3}); }},
    {"processes", "programs of the host and of other sandboxes", host_processes},
};

}  // namespace

int main(int argc, char** argv) {
  word = argc > 1 ? argv[1] : "";
  for (const Fact& fact : kFacts) {
    std::string found = fact.find();
    for (char& c : found)
      if (static_cast<unsigned char>(c) < 32 || c == 127) c = ' ';
    while (found.ends_with(' ')) found.pop_back();
    ::printf("%s\t%s\t%s\t%s\n", fact.name, fact.what, fact.compare, found.c_str());
  }
  return 0;
}
