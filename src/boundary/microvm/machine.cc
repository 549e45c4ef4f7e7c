#include "boundary/microvm/machine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <sstream>
#include <vector>

#include "base/file.h"
#include "boundary/microvm/command_line.h"
#include "boundary/versions.h"
#include "kernel/process.h"

namespace isola::boundary::microvm {

namespace {

constexpr char kUsualPlace[] = "/var/cache/isola/tools/microvm";
constexpr char kRemembered[] = "/run/isola/kvm-probe";
constexpr auto kProbeTime = std::chrono::seconds(8);  // a guest that works takes well below one

bool is_outdated(const std::string& source) {
  std::istringstream words(source);
  std::string path;
  int64_t size = 0, changed = 0;
  struct stat st{};
  if (!(words >> path >> size >> changed) || ::stat(path.c_str(), &st) < 0) return false;
  return st.st_size != size || st.st_mtime != changed;
}

// A kernel and nothing but our own first program, which switches the machine off as soon as it runs.
Result<bool> comes_up(const Machine& machine, const std::string& archive) {
  auto words = probe_line(machine, archive);
  ISOLA_TRY(auto child, kernel::spawn(0, [&] {
              Fd null(::open("/dev/null", O_RDWR));
              for (int fd = 0; fd < 3; ++fd) ::dup2(null.get(), fd);
              (void)::setpgid(0, 0);
              std::vector<char*> argv;
              for (auto& word : words) argv.push_back(word.data());
              argv.push_back(nullptr);
              char* const env[] = {nullptr};
              ::execve(argv[0], argv.data(), env);
              return 127;
            }));
  pollfd ended{child.pidfd.get(), POLLIN, 0};
  const int ready = ::poll(&ended, 1, static_cast<int>(std::chrono::milliseconds(kProbeTime).count()));
  if (ready <= 0) (void)kernel::send_signal(child.pidfd.get(), SIGKILL);
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  return ready > 0 && WIFEXITED(status) && WEXITSTATUS(status) == kProbeCode;
}

// What was found out holds until the host or one of these is another.
std::string key_of(const Machine& machine) {
  std::string boot = read_file("/proc/sys/kernel/random/boot_id", 100).value_or("");
  return boot.substr(0, boot.find('\n')) + " " + machine.folder;
}

constexpr char kHangs[] = "/dev/kvm is there, but a guest does not come up with it";

bool decided_elsewhere(Machine& machine) {
  machine.kvm = false;
  const char* wish = ::getenv("ISOLA_MICROVM_ACCEL");
  if (wish && std::string(wish) == "tcg") return machine.why_not = "ISOLA_MICROVM_ACCEL says so", true;
  if (::access("/dev/kvm", R_OK | W_OK) < 0) return machine.why_not = "there is no /dev/kvm that can be used", true;
  if (wish && std::string(wish) == "kvm") return machine.kvm = true;
  return false;
}

bool remembered(Machine& machine) {
  auto text = read_file(kRemembered, 4096);
  if (!text || !text->starts_with(key_of(machine) + "\n")) return false;
  machine.kvm = text->ends_with("\nyes\n");
  machine.why_not = machine.kvm ? "" : kHangs;
  return true;
}

}  // namespace

Result<Machine> parse_versions(const std::string& text) {
  Machine machine;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t blank = line.find(' ');
    if (blank == std::string::npos) continue;
    const std::string label = line.substr(0, blank), value = line.substr(blank + 1);
    if (label == "kernel") machine.kernel_version = value;
    if (label == "build") machine.kernel_build = value;
    if (label == "qemu") machine.qemu_version = value;
    if (label == "from") machine.source = value;
  }
  if (machine.kernel_version.empty() || machine.qemu_version.empty())
    return fail(Code::corrupt, "it does not tell which kernel and which QEMU it has");
  return machine;
}

Result<Machine> Machine::find() {
#if !defined(__x86_64__)
  return fail(Code::unsupported, "the boundary microvm needs x86-64 in this version");
#endif
  const char* named = ::getenv("ISOLA_MICROVM");
  const std::string path = named && *named ? named : kUsualPlace;
  if (path == "none" || ::access(path.c_str(), F_OK) < 0)
    return fail(
        Code::not_found,
        "there is no QEMU with a kernel for it (`./dev up --boundary microvm` provides them; ISOLA_MICROVM names "
        "another folder)");
  std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), ::free);
  if (!real) return sys_error("cannot use " + path);
  auto text = read_file(std::string(real.get()) + "/versions", 4096);
  if (!text) return std::unexpected(text.error().in(path));
  auto machine = parse_versions(*text);
  if (!machine) return std::unexpected(machine.error().in(path));
  machine->folder = real.get();
  for (const auto& needed : {machine->kernel(), machine->modules(), machine->disk(), machine->engine() + "/qemu"})
    if (::access(needed.c_str(), R_OK) < 0) return sys_error("cannot use " + needed);
  if (::access("/dev/net/tun", R_OK | W_OK) < 0)
    return sys_error("a virtual machine needs /dev/net/tun for its network");
  machine->outdated = is_outdated(machine->source);
  return *machine;
}

void Machine::look_for_kvm(const std::string& archive) {
  if (decided_elsewhere(*this) || remembered(*this)) return;
  auto up = comes_up(*this, archive);
  kvm = up.value_or(false);
  why_not = kvm ? "" : up ? kHangs : up.error().message;
  // Else it is tried again, which is only slow.
  (void)make_dirs("/run/isola", 0755);
  (void)replace_file(kRemembered, key_of(*this) + (kvm ? "\nyes\n" : "\nno\n"), 0644);
}

void Machine::recall_kvm() {
  if (decided_elsewhere(*this) || remembered(*this)) return;
  why_not = "not yet tried: a launcher does when it starts";
}

std::string Machine::kernel_concern() const {
  auto known = known_concern(Program::kernel, boundary::kernel_version(kernel_version, kernel_build));
  return known.empty() ? "" : "in microvm: " + known;
}

std::string Machine::concern() const {
  if (auto known = known_concern(Program::qemu, qemu_version); !known.empty()) return known;
  if (auto known = kernel_concern(); !known.empty()) return known;
  return staleness();
}

std::string Machine::staleness() const {
  return outdated ? "QEMU was updated since it was copied: `./dev up --boundary microvm` takes the new one" : "";
}

uint64_t ticks_per_millisecond() {
#if defined(__x86_64__)
  static const uint64_t measured = [] {
    constexpr int64_t kSpan = 10'000'000;  // nanoseconds
    auto now = [] {
      timespec at{};
      ::clock_gettime(CLOCK_MONOTONIC_RAW, &at);
      return int64_t{at.tv_sec} * 1'000'000'000 + at.tv_nsec;
    };
    uint64_t best = 0;
    for (int i = 0; i < 3; ++i) {  // whoever was interrupted in between measured wrong; two agree
      const int64_t begin = now();
      const uint64_t ticks = __builtin_ia32_rdtsc();
      int64_t end = begin;
      while (end - begin < kSpan) end = now();
      const uint64_t rate = (__builtin_ia32_rdtsc() - ticks) * 1'000'000 / static_cast<uint64_t>(end - begin);
      const uint64_t apart = rate > best ? rate - best : best - rate;
      best = rate;
      if (i > 0 && apart < rate / 10'000) break;
    }
    return best;
  }();
  return measured;
#else
  return 0;
#endif
}

}  // namespace isola::boundary::microvm
