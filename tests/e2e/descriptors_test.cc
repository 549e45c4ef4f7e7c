// Nothing of the host leaks in: descriptors, environment, limits.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "e2e/island.h"

// Two rooms that do not know each other name the guest's ends of the link: they must mean the same.
#include "boundary/jail/cell.h"
#include "guest/link.h"
static_assert(isola::boundary::jail::kGuestInput == isola::guest::kFdInRead);
static_assert(isola::boundary::jail::kGuestOutput == isola::guest::kFdOutWrite);

namespace isola::e2e {
namespace {

std::vector<std::string> sorted_fds(const std::string& folder) {
  std::vector<std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code gone;
    all.push_back(entry.path().filename().string() + " " + std::filesystem::read_symlink(entry.path(), gone).string());
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST(Descriptors, ACommandHasItsThree) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  for (const char* birth : {"--cold", "--open-files=16384"}) {
    auto done =
        island.run({birth, "--", "python3", "-c", "import os\nprint(sorted(map(int, os.listdir('/proc/self/fd'))))"});
    EXPECT_EQ(done.out, "[0, 1, 2, 3]\n") << "0, 1, 2 and the folder being listed\n" << done.text();
    done = island.run(
        {birth, "-t", "--", "python3", "-c", "import os\nprint(sorted(map(int, os.listdir('/proc/self/fd'))))"});
    EXPECT_EQ(done.out, "[0, 1, 2, 3]\r\n") << done.text();
  }
  island.expect_unchanged();
}

TEST(Descriptors, TheGuestHasItsOwnAndNoOther) {
  NEEDS_TEMPLATE("minimal");
  // A launcher that was itself started with all sorts of things open, and a secret in its environment.
  int secret = ::open("/etc/shadow", O_RDONLY);
  int folder = ::open("/", O_RDONLY | O_DIRECTORY);
  ASSERT_GE(::fcntl(secret, F_DUPFD, 50), 0);
  ASSERT_GE(::fcntl(folder, F_DUPFD, 200), 0);
  Island island({.env = {"ISOLA_TEST_SECRET=leak"}});
  {
    auto client = island.client();
    std::vector<std::string> ids;
    for (bool cold : {true, false}) {
      if (!cold) {
        ASSERT_TRUE(client.park(island.digest(), 1));
        ASSERT_TRUE(eventually([&] { return client.info()->parked == 1; }));
      }
      auto sandbox = client.launch({.digest = island.digest(), .cold = cold});
      ASSERT_OK(sandbox);
      EXPECT_EQ(sandbox->reply.birth, cold ? Birth::cold : Birth::pooled);
      auto talking = talk(sandbox->reply.id, std::move(sandbox->link));
      ASSERT_OK(talking);
      pid_t pid = 0;
      auto all = client.list();
      ASSERT_OK(all);
      for (const auto& one : *all)
        if (one.id == talking->id) pid = one.pid;
      auto fds = sorted_fds(fmt::format("/proc/{}/fd", pid));
      std::multiset<std::string> kinds;
      std::set<int> numbers;
      for (const auto& fd : fds) {
        numbers.insert(std::stoi(fd));
        std::string target = fd.substr(fd.find(' ') + 1);
        kinds.insert(target.starts_with("pipe:") ? "pipe" : target);
      }
      for (int n = 0; n <= 6; ++n) EXPECT_TRUE(numbers.contains(n)) << n;
      EXPECT_EQ(kinds.count("pipe"), 4u);
      EXPECT_EQ(kinds.count("/dev/null"), 3u);
      for (const auto& kind : kinds)
        EXPECT_TRUE(kind == "pipe" || kind == "/dev/null" || kind == "anon_inode:[eventpoll]" ||
                    kind == "anon_inode:[signalfd]" || kind == "anon_inode:[timerfd]" ||
                    kind == "anon_inode:[eventfd]" || kind == "anon_inode:inotify")
            << "the guest holds " << kind;
      std::ifstream environment(fmt::format("/proc/{}/environ", pid));
      std::string text((std::istreambuf_iterator<char>(environment)), {});
      EXPECT_EQ(text, "") << "the guest's environment is empty";
      auto heard = hear(*talking->guest, {"env"});
      EXPECT_EQ(heard.out.find("leak"), std::string::npos);
      ids.push_back(talking->id);
    }
    // The launcher itself does not keep what it was started with either.
    for (const auto& fd : sorted_fds(fmt::format("/proc/{}/fd", client.info()->pid)))
      EXPECT_EQ(fd.find("/etc/shadow"), std::string::npos) << fd;
    for (const auto& id : ids) EXPECT_TRUE(client.kill(id));
  }
  island.expect_unchanged();
  ::close(secret), ::close(folder), ::close(50), ::close(200);
}

TEST(Descriptors, LimitsOfWhoeverStartedTheLauncherStayOutside) {
  NEEDS_TEMPLATE("minimal");
  rlimit before{}, small{1 << 30, 1 << 30};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  small.rlim_max = before.rlim_max;  // a hard one might not be ours to lift again
  rlimit signals{}, none{};
  ASSERT_EQ(::getrlimit(RLIMIT_SIGPENDING, &signals), 0);
  none.rlim_max = signals.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  ASSERT_EQ(::setrlimit(RLIMIT_SIGPENDING, &none), 0);
  Island island;
  ASSERT_EQ(::setrlimit(RLIMIT_SIGPENDING, &signals), 0);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  auto done = island.run({"--", "bash", "-c", "ulimit -f; ulimit -t; test \"$(ulimit -i)\" != 0 && echo signals"});
  EXPECT_EQ(done.out, "unlimited\nunlimited\nsignals\n") << done.text();
  island.expect_unchanged();
}

// As taskset, ionice and setarch leave it behind.
TEST(Descriptors, SchedulingOfWhoeverStartedTheLauncherStaysOutside) {
  NEEDS_TEMPLATE("minimal");
  cpu_set_t before{}, one{};
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  const int persona = ::personality(0xffffffff);
  constexpr int kProcess = 1, kIdle = 3 << 13;  // <linux/ioprio.h> is for C alone
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  ASSERT_EQ(::syscall(SYS_ioprio_set, kProcess, 0, kIdle), 0);
  ASSERT_NE(::personality(ADDR_NO_RANDOMIZE), -1);
  Island island;
  ::personality(static_cast<unsigned long>(persona));
  ::syscall(SYS_ioprio_set, kProcess, 0, 0);
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
  {
    auto client = island.client();
    auto sandbox = launch(client, {.digest = island.digest()});
    ASSERT_OK(sandbox);
    auto all = client.list();
    ASSERT_OK(all);
    for (const auto& each : *all) {
      cpu_set_t its{};
      ASSERT_EQ(::sched_getaffinity(each.pid, sizeof its, &its), 0);
      EXPECT_EQ(CPU_COUNT(&its), CPU_COUNT(&before));
      EXPECT_NE(::syscall(SYS_ioprio_get, kProcess, each.pid), kIdle);
    }
    EXPECT_EQ(hear(*sandbox->guest, {"cat", "/proc/self/personality"}).out, "00000000\n");
    EXPECT_TRUE(client.kill(sandbox->id));
  }
  island.expect_unchanged();
}

// A sandbox in which `sudo` fails without saying why is worse than none.
TEST(Descriptors, ALauncherThatMayGainNoPrivilegesDoesNotStart) {
  NEEDS_TEMPLATE("minimal");
  Island island({.start = false});
  ProgramOptions options;
  options.before_exec = [] { ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); };
  expect_complaint(island.run({"--", "true"}, options), 125, "no_new_privs");
}

TEST(Descriptors, LimitsAreTheSandboxsOwn) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  auto done = island.run({"--open-files", "100", "--", "sh", "-c", "ulimit -n; ulimit -c; umask; hostname"});
  EXPECT_EQ(done.out, "100\n0\n0022\nisola\n") << done.text();
  island.expect_unchanged();
}

}  // namespace
}  // namespace isola::e2e
