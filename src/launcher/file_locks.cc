#include "launcher/file_locks.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "base/fd.h"
#include "base/file.h"

namespace isola::launcher {

namespace {

// 192-byte objects of other kinds may live in the same cache; the kernel keeps the name as a link to it.
constexpr char kLockCache[] = "/sys/kernel/slab/file_lock_cache/total_objects";
// Of all that can be there. A machine with more is read as far as that, the newest first.
constexpr uint64_t kMostLockLines = 1'000'000;

std::string_view cut_word(std::string_view& rest, char between) {
  rest.remove_prefix(std::min(rest.find_first_not_of(between), rest.size()));
  std::string_view word = rest.substr(0, rest.find(between));
  rest.remove_prefix(word.size());
  return word;
}

template <typename Number>
std::optional<Number> number_in(std::string_view text, int base) {
  Number number{};
  auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (text.empty() || wrong != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

class LockCount {
 public:
  LockCount(const std::vector<LockHolder>& holders, uint64_t share) : share_(share) {
    for (const auto& holder : holders) {
      auto mounts = read_file(fmt::format("/proc/{}/mountinfo", holder.first));
      if (!mounts) continue;  // it has just ended
      for (auto& device : devices_in(*mounts)) {
        // One that two of them have, or that we have, tells nothing.
        auto [at, fresh] = by_device_.try_emplace(std::move(device), holder.id);
        if (!fresh && at->second != holder.id) at->second.clear();
      }
    }
    if (auto own = read_file("/proc/self/mountinfo"))
      for (const auto& device : devices_in(*own)) by_device_.erase(device);
  }

  // True: somebody has more than the share.
  bool add(std::string_view line) {
    auto at = by_device_.find(lock_device(line));
    if (at == by_device_.end() || at->second.empty()) {
      ++elsewhere_;
      return false;
    }
    hoarder_ = {at->second, ++held_[at->second]};
    return hoarder_.locks > share_;
  }
  const LockHoarder& hoarder() const { return hoarder_; }
  uint64_t elsewhere() const { return elsewhere_; }

 private:
  uint64_t share_, elsewhere_ = 0;
  std::map<std::string, uint64_t> held_;
  std::map<std::string, std::string> by_device_;  // "": not one sandbox's alone
  LockHoarder hoarder_;
};

// Calls `each` with every line until it says true.
Result<bool> any_lock(const std::function<bool(std::string_view)>& each) {
  Fd file(::open("/proc/locks", O_RDONLY | O_CLOEXEC));
  if (!file) return sys_error("cannot open /proc/locks");
  std::string rest;
  char block[65536];
  for (uint64_t lines = 0; lines < kMostLockLines;) {
    ssize_t n = ::read(file.get(), block, sizeof block);
    if (n < 0) return sys_error("cannot read /proc/locks");
    if (n == 0) return false;
    rest.append(block, static_cast<size_t>(n));
    size_t from = 0;
    for (size_t end; (end = rest.find('\n', from)) != std::string::npos; from = end + 1, ++lines)
      if (each(std::string_view(rest).substr(from, end - from))) return true;
    rest.erase(0, from);
  }
  return false;
}

// Locks that the processes of a group hold, each once however many of them have the file open.
uint64_t locks_behind_descriptors(const std::vector<pid_t>& pids, uint64_t enough) {
  std::set<size_t> seen;
  for (pid_t pid : pids) {
    const std::string folder = fmt::format("/proc/{}/fdinfo", pid);
    std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), ::closedir);
    while (dirent* entry = dir ? ::readdir(dir.get()) : nullptr) {
      if (entry->d_name[0] == '.') continue;
      std::ifstream lines(folder + "/" + entry->d_name);
      for (std::string line; std::getline(lines, line);) {
        if (auto lock = lock_of_descriptor(line); !lock.empty()) seen.insert(std::hash<std::string_view>()(lock));
        if (seen.size() > enough) return seen.size();
      }
    }
  }
  return seen.size();
}

LockHoarder hoarder_behind_descriptors(const std::vector<LockHolder>& holders, const kernel::CgroupTree& groups,
                                       uint64_t share) {
  for (const auto& holder : holders) {
    auto group = groups.known(holder.id, false);
    auto pids = group.processes();
    group.release();
    if (!pids) continue;  // it has just ended
    if (uint64_t locks = locks_behind_descriptors(*pids, share); locks > share) return {holder.id, locks};
  }
  return {};
}

}  // namespace

// "7: POSIX  ADVISORY  WRITE 4711 fe:00:9979726 0 EOF"; who waits for a lock has an arrow behind the number.
std::string lock_device(std::string_view line) {
  if (!cut_word(line, ' ').ends_with(':')) return "";
  if (cut_word(line, ' ') == "->") cut_word(line, ' ');
  for (int skipped = 0; skipped < 3; ++skipped) cut_word(line, ' ');  // ADVISORY, WRITE, the process
  std::string_view file = cut_word(line, ' ');
  auto major = number_in<unsigned>(cut_word(file, ':'), 16), minor = number_in<unsigned>(cut_word(file, ':'), 16);
  if (!major || !minor || file.size() < 2) return "";
  return fmt::format("{}:{}", *major, *minor);
}

std::vector<std::string> devices_in(std::string_view mountinfo) {
  std::vector<std::string> devices;
  for (auto line = cut_word(mountinfo, '\n'); !line.empty(); line = cut_word(mountinfo, '\n')) {
    cut_word(line, ' ');
    cut_word(line, ' ');
    if (auto device = cut_word(line, ' '); device.contains(':')) devices.emplace_back(device);
  }
  return devices;
}

// "lock:\t1: OFDLCK ADVISORY  WRITE -1 00:01:1034 0 0"
std::string_view lock_of_descriptor(std::string_view line) {
  constexpr std::string_view kStart = "lock:\t";
  size_t number = line.find(": ");
  if (!line.starts_with(kStart) || number == std::string_view::npos) return {};
  return line.substr(number + 2);
}

// "357 N0=357"
std::optional<uint64_t> lock_objects() {
  auto text = read_file(kLockCache, 4096);
  if (!text) return std::nullopt;
  std::string_view rest = *text;
  auto word = cut_word(rest, ' ');
  while (word.ends_with('\n')) word.remove_suffix(1);
  return number_in<uint64_t>(word, 10);
}

Result<LockHoarder> find_lock_hoarder(const std::vector<LockHolder>& holders, const kernel::CgroupTree& groups,
                                      uint64_t share) {
  LockCount count(holders, share);
  LockHoarder behind;
  // Not at the end of the list, which may be far; and again when there are many more, since a program of the host's may
  // have had those.
  uint64_t enough_elsewhere = share;
  ISOLA_TRY(bool found, any_lock([&](std::string_view line) {
              if (count.add(line)) return true;
              if (count.elsewhere() <= enough_elsewhere) return false;
              enough_elsewhere *= 4;
              behind = hoarder_behind_descriptors(holders, groups, share);
              return !behind.id.empty();
            }));
  if (!found) return LockHoarder{};
  return behind.id.empty() ? count.hoarder() : behind;
}

}  // namespace isola::launcher
