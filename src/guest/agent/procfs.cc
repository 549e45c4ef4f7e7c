#include "guest/agent/procfs.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "base/fd.h"
#include "guest/agent/open_folder.h"

namespace isola::guest {

namespace {

constexpr size_t kMaxPorts = 4096;

std::string read_some(int dir, const char* path, size_t max) {
  Fd fd(::openat(dir, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string out;
  if (!fd) return out;
  char part[4096];
  while (out.size() < max) {
    ssize_t n = ::read(fd.get(), part, sizeof part);
    if (n <= 0) break;
    out.append(part, static_cast<size_t>(n));
  }
  return out;
}

struct ProcStat {
  pid_t pid = 0, group = 0, session = 0;
  unsigned long utime = 0, stime = 0;
  long rss = 0;
};

bool parse_stat(const std::string& text, ProcStat& out) {
  auto after = text.rfind(')');  // the name before it may hold anything
  if (after == std::string::npos) return false;
  int group = 0, session = 0;
  int n = std::sscanf(text.c_str() + after + 1,
                      " %*c %*d %d %d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d %*u %*u %ld", &group,
                      &session, &out.utime, &out.stime, &out.rss);
  out.group = group;
  out.session = session;
  return n == 5;
}

template <typename F>
void each_process(F use) {
  OpenFolder proc(::opendir("/proc"));
  if (!proc) return;
  while (dirent* e = ::readdir(proc.get())) {
    if (e->d_name[0] < '1' || e->d_name[0] > '9') continue;
    ProcStat s;
    if (!parse_stat(read_some(::dirfd(proc.get()), (std::string(e->d_name) + "/stat").c_str(), 4096), s)) continue;
    s.pid = std::atoi(e->d_name);
    use(s);
  }
}

}  // namespace

int signal_session(pid_t session, int signal) {
  // The leader's group in one go: none of it can fork out of that. Who is in it has the signal, and a second one would
  // be another signal to a program that counts them; only SIGKILL may come twice, for those who move into the group
  // meanwhile.
  const bool whole_group = ::kill(-session, signal) == 0;
  std::vector<pid_t> done;
  for (int pass = 0; pass < 16; ++pass) {
    size_t before = done.size();
    each_process([&](const ProcStat& s) {
      if (s.session != session || s.pid == ::getpid()) return;
      if (whole_group && s.group == session && signal != SIGKILL) return;
      if (std::find(done.begin(), done.end(), s.pid) != done.end()) return;
      if (::kill(s.pid, signal) == 0) done.push_back(s.pid);
    });
    if (done.size() == before) break;
  }
  return static_cast<int>(done.size()) + (whole_group ? 1 : 0);
}

Metrics read_metrics() {
  Metrics m;
  uint64_t ticks = 0;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto hertz = static_cast<uint64_t>(::sysconf(_SC_CLK_TCK));
  each_process([&](const ProcStat& s) {
    ++m.processes;
    ticks += s.utime + s.stime;
    m.memory_bytes += s.rss > 0 ? static_cast<uint64_t>(s.rss) * page : 0;
  });
  rusage reaped{};
  ::getrusage(RUSAGE_CHILDREN, &reaped);
  auto us = [](timeval t) { return static_cast<uint64_t>(t.tv_sec) * 1000000 + static_cast<uint64_t>(t.tv_usec); };
  m.cpu_us = ticks * 1000000 / hertz + us(reaped.ru_utime) + us(reaped.ru_stime);
  auto meminfo = read_some(AT_FDCWD, "/proc/meminfo", 16 << 10);
  if (auto at = meminfo.find("MemTotal:"); at != std::string::npos) {
    m.memory_total = std::strtoull(meminfo.c_str() + at + 9, nullptr, 10) << 10;
  }
  auto uptime = read_some(AT_FDCWD, "/proc/uptime", 128);
  m.uptime_ms = static_cast<uint64_t>(std::atof(uptime.c_str()) * 1000);
  struct statvfs fs;
  if (::statvfs("/", &fs) == 0) {
    m.disk_total = uint64_t{fs.f_blocks} * fs.f_frsize;
    m.disk_used = uint64_t{fs.f_blocks - fs.f_bfree} * fs.f_frsize;
    m.inodes_total = fs.f_files;
    m.inodes_used = fs.f_files - fs.f_ffree;
  }
  return m;
}

void parse_ports(std::string_view table, bool v6, Ports& out) {
  while (!table.empty()) {
    auto end = table.find('\n');
    std::string line(table.substr(0, std::min<size_t>(end, 256)));
    table.remove_prefix(end == table.npos ? table.size() : end + 1);
    char address[33];
    unsigned port = 0, state = 0, uid = 0;
    if (std::sscanf(line.c_str(), " %*d: %32[0-9A-Fa-f]:%x %*[^ ] %x %*s %*s %*s %u", address, &port, &state, &uid) !=
        4) {
      continue;
    }
    constexpr unsigned kListen = 0x0a;
    if (state != kListen || port == 0 || port > 65535 || out.list.size() >= kMaxPorts) continue;
    std::string_view a(address);
    bool loopback = v6 ? a == "00000000000000000000000001000000" : a.ends_with("7F");
    Port p{.port = static_cast<uint16_t>(port), .v6 = v6, .loopback = loopback, .uid = uid};
    auto same = [&](const Port& o) { return o.port == p.port && o.v6 == p.v6 && o.loopback == p.loopback; };
    if (std::none_of(out.list.begin(), out.list.end(), same)) out.list.push_back(p);
  }
}

Ports read_ports() {
  Ports out;
  parse_ports(read_some(AT_FDCWD, "/proc/net/tcp", 4 << 20), false, out);
  parse_ports(read_some(AT_FDCWD, "/proc/net/tcp6", 4 << 20), true, out);
  std::sort(out.list.begin(), out.list.end(), [](const Port& a, const Port& b) { return a.port < b.port; });
  return out;
}

}  // namespace isola::guest
