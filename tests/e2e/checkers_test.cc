// Public kinds of checkers run inside and find nothing: capability and seccomp listings, stress under limits.
#include <fmt/format.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "boundary/jail/protections.h"
#include "e2e/island.h"

namespace isola::e2e {
namespace {

class CheckersTest : public SharedIsland {};

constexpr char kExpected[] = R"(NoNewPrivs 0
Seccomp 2
Seccomp_filters 1
uid_map 0 own 65536
gid_map 0 own 65536
bpf: EPERM
perf_event_open: EPERM
io_uring_setup: EPERM
userfaultfd: EPERM
keyctl: EPERM
add_key: EPERM
kexec_load: EPERM
init_module: EPERM
finit_module: EPERM
mount: EPERM
umount2: EPERM
pivot_root: EPERM
fsopen: EPERM
open_tree: EPERM
move_mount: EPERM
setns: EPERM
unshare user: EPERM
unshare mount: EPERM
unshare net: EPERM
clone user: EPERM
clone3: ENOSYS
reboot: EPERM
settimeofday: EPERM
clock_settime: EPERM
swapon: EPERM
acct: EPERM
quotactl: EPERM
syslog: EPERM
ioperm: EPERM
iopl: EPERM
open_by_handle_at: EPERM
landlock: ENOSYS
socket AF_ALG: EAFNOSUPPORT
socket AF_VSOCK: EAFNOSUPPORT
socket AF_PACKET: EAFNOSUPPORT
socket raw: EPERM
mknod device: EPERM
chroot: works
sethostname: EPERM
socket tcp: works
socket unix: works
setuid: works
chown: works
)";

TEST_F(CheckersTest, CapabilitiesSeccompAndNamespaces) {
  auto checker = read_file(E2E_CHECKER);
  ASSERT_OK(checker);
  // Written inside, as nothing can be shown to a jail that is parked already.
  const char* const script = "cat >/tmp/check && chmod 755 /tmp/check && exec /tmp/check";
  auto client = island().client();
  auto parked = client.park(island().digest(), 1);
  ASSERT_OK(parked);
  ASSERT_TRUE(eventually([&] {
    auto info = client.info();
    return info && info->parked == 1;
  }));
  for (const char* birth : {"cold", "pooled"}) {
    Argv words = {"--latency", "--", "sh", "-c", script};
    if (std::string_view(birth) == "cold") words.insert(words.begin(), "--cold");
    auto done = island().run(words, {.input = *checker});
    ASSERT_EQ(done.code, 0) << done.text();
    EXPECT_NE(done.err.find(birth + std::string(" birth")), std::string::npos) << done.err;
    std::string caps = fmt::format("{:016x}", boundary::jail::kCapabilities);
    std::string expected = "CapInh 0000000000000000\nCapPrm " + caps + "\nCapEff " + caps + "\nCapBnd " + caps +
                           "\nCapAmb 0000000000000000\n" + kExpected;
    EXPECT_EQ(done.out, expected);
  }
  // An ordinary user has none of the capabilities, and reaches no more.
  auto done =
      island().run({"-u", "user", "--mount-ro", std::string(E2E_CHECKER) + ":/usr/bin/id", "--", "/usr/bin/id"});
  EXPECT_NE(done.out.find("CapEff 0000000000000000\n"), std::string::npos) << done.text();
  EXPECT_NE(done.out.find("chroot: EPERM"), std::string::npos) << done.text();
}

// The host's stress-ng, with the libraries that it needs, shown read-only.
class StressTest : public SharedIsland {
 protected:
  void SetUp() override {
    SharedIsland::SetUp();
    if (IsSkipped()) return;
    auto found = run_program({"sh", "-c", "command -v stress-ng"});
    if (found.code != 0) GTEST_SKIP() << "stress-ng is not installed here";
    auto libraries = run_program({"ldd", found.out.substr(0, found.out.find('\n'))});
    std::istringstream lines(libraries.out);
    char name[] = "/tmp/isl-stress-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
    ::chmod(name, 0755);
    std::filesystem::copy_file(found.out.substr(0, found.out.find('\n')), folder_ + "/stress-ng");
    for (std::string line; std::getline(lines, line);) {
      auto arrow = line.find("=> /");
      if (arrow == std::string::npos) continue;
      std::string path = line.substr(arrow + 3, line.find(' ', arrow + 4) - arrow - 3);
      std::filesystem::copy_file(path, folder_ + "/" + std::filesystem::path(path).filename().string());
    }
    loader_ = "/lib64/ld-linux-x86-64.so.2";
    std::filesystem::copy_file(std::filesystem::canonical(loader_), folder_ + "/ld.so");
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
    SharedIsland::TearDown();
  }
  Done stress(Argv flags, const Argv& stressors) {
    flags.insert(flags.end(),
                 {"--mount-ro", folder_ + ":/mnt", "-w", "/tmp", "--", "/mnt/ld.so", "--library-path", "/mnt",
                  "/mnt/stress-ng", "--temp-path", "/tmp", "--timeout", full_suite() ? "30s" : "3s"});
    flags.insert(flags.end(), stressors.begin(), stressors.end());
    return island().run(flags, {.limit = std::chrono::seconds(150)});
  }
  // Whatever it did, the sandbox next door and the launcher do not notice.
  void expect_all_well() { EXPECT_EQ(island().run({"--", "echo", "well"}).out, "well\n"); }
  std::string folder_, loader_;
};

// What the kernel says of the one sandbox that runs, as often as it can be asked, until this goes.
class Watcher {
 public:
  explicit Watcher(launcher::Client client) : client_(std::move(client)), thread_([this] { watch(); }) {}
  ~Watcher() { stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  void stop() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  launcher::StatsReply most;  // of each amount, ever
  double cpus = 0;            // between the first look at a sandbox and the last
  int looks = 0;

 private:
  void watch() {
    std::string id;
    auto begun = std::chrono::steady_clock::now();
    uint64_t cpu_before = 0;
    while (!over_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (auto all = client_.list(); id.empty() && all)
        for (const auto& one : *all)
          if (!one.parked) id = one.id;
      auto now = id.empty() ? Result<launcher::StatsReply>(fail(Code::not_found, "")) : client_.stats(id);
      if (!now) continue;
      auto at = std::chrono::steady_clock::now();
      if (looks++ == 0) begun = at, cpu_before = now->cpu_usec;
      std::chrono::duration<double, std::micro> passed = at - begun;
      if (passed > std::chrono::seconds(1)) cpus = static_cast<double>(now->cpu_usec - cpu_before) / passed.count();
      most.memory_peak_bytes = std::max(most.memory_peak_bytes, now->memory_peak_bytes);
      most.processes = std::max(most.processes, now->processes);
      most.disk_bytes = std::max(most.disk_bytes, now->disk_bytes);
    }
  }
  launcher::Client client_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

TEST_F(StressTest, UnderLimits) {
  std::printf("%s",
              full_suite() ? "" : "reduced: each stressor for 3 s instead of 30 s (ISOLA_TEST_FULL=1 does all)\n");
  const Argv cases[] = {{"--cpu", "4"},
                        {"--fork", "4"},
                        {"--vm", "2", "--vm-bytes", "256M"},
                        {"--hdd", "1", "--hdd-bytes", "256M"},
                        {"--pthread", "4"},
                        {"--sock", "2"},
                        {"--dentry", "2"},
                        {"--pipe", "2"},
                        {"--enosys", "1"}};
  for (const auto& stressors : cases) {
    Watcher watcher(island().client());
    auto done = stress({"--memory", "128M", "--cpus", "0.5", "--pids", "64", "--disk", "64M"}, stressors);
    watcher.stop();
    EXPECT_GT(watcher.looks, 2) << stressors[0];  // how often it can look depends on what else runs here
    // What the kernel cannot refuse (a page for somebody who is being killed) it charges beyond the limit.
    EXPECT_LE(watcher.most.memory_peak_bytes, uint64_t{129} << 20) << stressors[0];
    EXPECT_LE(watcher.most.processes, 64u) << stressors[0];
    EXPECT_LE(watcher.most.disk_bytes, uint64_t{64} << 20) << stressors[0];
    EXPECT_LE(watcher.cpus, 0.6) << stressors[0] << ": half a processor, and what one period lets through";
    // It may fail inside, be killed for memory, or end well; it ends, stays within its limits, and harms nobody.
    EXPECT_FALSE(done.timed_out) << stressors[0] << "\n" << done.text();
    EXPECT_NE((done.out + done.err).find("dispatching hogs"), std::string::npos) << stressors[0] << " did not start\n"
                                                                                 << done.text();
    expect_all_well();
  }
}

}  // namespace
}  // namespace isola::e2e
