// The nth kernel call of a launch fails, for every n: the launch fails with one sentence or succeeds, never hangs, and
// leaves nothing behind. The launcher carries the plan in its environment; its children inherit the counter.
#include "kernel/fault.h"

#include <fmt/format.h>

#include <map>
#include <random>

#include "e2e/images.h"
#include "e2e/island.h"

namespace isola::e2e {
namespace {

struct Step {
  bool failed = false;
  std::string message;
};

// What a launch mounts on the stage is there for that launch only.
std::string left_on_stage(Island& island) {
  std::string left;
  Census census = island.census();
  for (const auto& mount : census["launcher mount"])
    if (mount.find("/stage/") != mount.npos) left += mount + "\n";
  return left;
}

// One launcher that lives with this fault from its first breath, one command, and the end of both.
Step walk(const std::string& plan, std::vector<std::string> env = {}) {
  Island island({.start = false});
  Step step;
  env.push_back("ISOLA_FAULT=" + plan);
  auto done = island.run({"--cold", "--", "echo", "hi"}, {.env = env, .limit = std::chrono::seconds(30)});
  EXPECT_FALSE(done.timed_out) << plan << " hangs\n" << done.text();
  if (done.code == 0) {
    EXPECT_EQ(done.out, "hi\n") << plan << "\n" << done.text();
  } else {
    step.failed = true;
    step.message = done.err;
    SCOPED_TRACE(plan);
    expect_complaint(done, 125, "");
    // The next one may be struck too (a fault in the unborn child strikes every child anew: the counter of the launcher
    // has not moved), but it is answered as well.
    auto again = island.run({"--cold", "--", "echo", "hi"}, {.limit = std::chrono::seconds(30)});
    EXPECT_FALSE(again.timed_out) << plan << " hangs, afterwards\n" << again.text();
    if (again.code != 0) expect_complaint(again, 125, "");
    // Not at once: jails may be being parked.
    EXPECT_TRUE(eventually([&] { return left_on_stage(island).empty(); })) << left_on_stage(island);
  }
  return step;  // the island's end takes the census
}

void walk_through(const std::vector<std::string>& env) {
  // Until the plan is beyond everything that a launch asks: then a far one makes no difference. The first calls of all
  // look for a layer store that works here, where a failure only means the next kind of store.
  // A run that leaves calls out begins anywhere, so that many runs leave out none.
  int stride = count("every nth call, where n =", 7, 1), without = 0, failures = 0;
  int n = 1 + static_cast<int>(std::random_device()() % static_cast<unsigned>(stride));
  std::printf("begins at call %d\n", n);
  std::map<std::string, int> kinds;
  for (; without < 20 * stride && n < 2000; n += stride) {
    Step step = walk(fmt::format("*:{}:{}", n, n % 3 == 0 ? EIO : ENOMEM), env);
    if (testing::Test::HasFailure()) break;
    without = step.failed || n < 60 ? 0 : without + stride;
    failures += step.failed;
    if (step.failed) ++kinds[step.message];
  }
  std::printf("walked to call %d: %d failed launches, %zu different sentences\n", n, failures, kinds.size());
  for (const auto& [sentence, times] : kinds) std::printf("  %3d× %s", times, sentence.c_str());
  EXPECT_GT(failures, 5) << "no fault was ever hit: the seam is not there";
}

TEST(FaultWalk, EveryKernelCallOfALaunch) {
  NEEDS_TEMPLATE("minimal");
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  walk_through({});
}

// With the layers of the root mounted for a moment: those mounts must not stay.
TEST(FaultWalk, EveryKernelCallOfALaunchOnAnOlderKernel) {
  NEEDS_TEMPLATE("minimal");
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  walk_through({"ISOLA_NO_OVERLAY_FDS=1"});
}

TEST(FaultWalk, NamedCalls) {
  NEEDS_TEMPLATE("minimal");
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  const char* names[] = {"clone",      "uid_map",   "open_ns",      "unshare_net", "unshare_cgroup", "setgroups",
                         "pivot_root", "setrlimit", "capbset_drop", "capset",      "close_range",    "execve",
                         "verify",     "journal",   "id_range",     "ask_network", "keyctl",         "sethostname",
                         "open_root",  "scheduler", "leave_root",   "arrange_fds", "setdomainname",  "borrow_user",
                         "await_word", "say_exec",  "say_furnish",  "island_bind", "say_furnished",  "isolate_mounts"};
  if (!full_suite())
    std::printf("reduced: EINTR for names up to d only, ENOMEM for all (ISOLA_TEST_FULL=1 does all)\n");
  for (const char* name : names)
    for (int e : {EINTR, ENOMEM}) {
      if (!full_suite() && e == EINTR && std::string_view(name) > "d") continue;
      Step step = walk(fmt::format("{}:1:{}", name, e));
      EXPECT_TRUE(step.failed) << name << ": no such call is made, or its failure went unnoticed";
      if (testing::Test::HasFailure()) return;
    }
}

// The same for the jails that are parked ahead: a failure there is nobody's answer, and must not stay in the way.
TEST(FaultWalk, Parking) {
  NEEDS_TEMPLATE("minimal");
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  for (const char* name : {"clone", "pivot_root", "verify", "execve", "journal"})
    for (int nth : {2, 3}) {
      // Before the first jail come the network hand, the janitor's three, and whoever reads the image ahead.
      int at = std::string_view(name) == "clone" ? nth + 4 : nth;
      // (Nobody asks other engines for their versions, which would be processes, too.)
      Island island(
          {.env = {fmt::format("ISOLA_FAULT={}:{}:{}", name, at, ENOMEM), "ISOLA_RUNSC=/none", "ISOLA_UML=none"}});
      {
        auto client = island.client();
        auto parked = client.park(island.digest(), 3);
        ASSERT_OK(parked);
        EXPECT_TRUE(eventually([&] {
          auto info = client.info();
          return info && info->parked == 3;
        })) << name
            << " " << nth;
      }
      island.expect_unchanged(name);
    }
}

// Whoever claims a parked jail with limits of its own gets a cold one if that one cannot be given them, or if it cannot
// be written down; and the jail that was spoiled goes. Which write is the claim's differs from machine to machine.
TEST(FaultWalk, ClaimingAParkedJail) {
  NEEDS_TEMPLATE("minimal");
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  const int most = 16;
  for (const char* name : {"cgroup_write", "journal"}) {
    int pooled = 0, cold = 0;
    for (int nth = 1; nth <= most && !(pooled && cold); ++nth) {
      SCOPED_TRACE(fmt::format("{}:{}", name, nth));
      Island island({.env = {fmt::format("ISOLA_FAULT={}:{}:{}", name, nth, ENOMEM)}});
      {
        auto client = island.client();
        auto parked = client.park(island.digest(), 1);
        ASSERT_OK(parked);
        // One that was struck itself is made again.
        ASSERT_TRUE(eventually([&] {
          auto info = client.info();
          return info && info->parked == 1;
        }));
        launcher::LaunchRequest request{.digest = island.digest()};
        request.limits.memory /= 2;
        request.limits.pids = 100;
        auto sandbox = client.launch(request);
        ASSERT_OK(sandbox);
        ++(sandbox->reply.birth == Birth::pooled ? pooled : cold);
        auto talking = talk(sandbox->reply.id, std::move(sandbox->link));
        ASSERT_OK(talking);
        EXPECT_EQ(hear(*talking->guest, {"echo", "hi"}).out, "hi\n");
        EXPECT_TRUE(client.kill(talking->id));
      }
      island.expect_unchanged(name);
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(pooled, 0) << name;
    EXPECT_GT(cold, 0) << name << ": no fault ever hit a claim";
  }
}

// A sandbox of an image: what is restored is either there or an error, and the image is none the worse for it.
TEST(FaultWalk, EveryKernelCallOfAResume) {
  NEEDS_CRIU();
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  Island island;
  auto saved = [&]() -> Result<launcher::CheckpointReply> {
    auto client = island.client();
    ISOLA_TRY(auto counting, Counting::start(client, island.digest()));
    return counting.save(client, true, false);
  }();
  ASSERT_OK(saved);
  const int stride = count("every nth call of a resume, where n =", 23, 1);
  int n = 1 + static_cast<int>(std::random_device()() % static_cast<unsigned>(stride)), failures = 0, good = 0;
  std::printf("begins at call %d\n", n);
  for (; good < 3 * 23 / stride + 2 && n < 2000; n += stride) {
    SCOPED_TRACE(n);
    if (island.try_client()) island.kill_launcher();
    auto resumed = [&]() -> Result<std::string> {
      ::setenv("ISOLA_FAULT", fmt::format("*:{}:{}", n, n % 3 == 0 ? EIO : ENOMEM).c_str(), 1);
      auto started = island.start();
      ::unsetenv("ISOLA_FAULT");
      ISOLA_CHECK(started);
      auto client = island.try_client();
      if (!client) return fail(Code::unavailable, "the launcher is gone");
      ISOLA_TRY(auto sandbox, launch(*client, {.ephemeral = false, .image = saved->image}));
      auto heard = hear(*sandbox.guest, {"echo", "hi"});
      (void)client->kill(sandbox.id);  // may be struck itself; the next launcher finds it then
      return heard.out;
    }();
    if (resumed) {
      EXPECT_EQ(*resumed, "hi\n");
    } else {
      EXPECT_EQ(resumed.error().message.find('\n'), std::string::npos) << resumed.error().message;
    }
    failures += !resumed;
    good = resumed ? good + 1 : 0;
    if (testing::Test::HasFailure()) break;
  }
  std::printf("walked to call %d: %d failed\n", n, failures);
  EXPECT_GT(failures, 2) << "no fault was ever hit";
  // Without a fault it is what it was.
  if (island.try_client()) island.kill_launcher();
  auto again = island.start();
  ASSERT_OK(again);
  auto client = island.client();
  auto sandbox = launch(client, {.ephemeral = false, .image = saved->image});
  ASSERT_OK(sandbox);
  auto all = client.list();
  ASSERT_OK(all);
  for (const auto& one : *all) EXPECT_TRUE(client.kill(one.id));
  EXPECT_TRUE(client.drop_image(saved->image));
}

}  // namespace
}  // namespace isola::e2e
