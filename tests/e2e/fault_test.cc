// The nth kernel call of a launch fails, for every n: the launch fails with one sentence or succeeds, never hangs, and
// leaves nothing behind. The launcher carries the plan in its environment; its children inherit the counter.
#include "kernel/fault.h"

#include <fmt/format.h>

#include <map>

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
  int stride = count("every nth call, where n =", 7, 1), without = 0, failures = 0, n = 1;
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
                         "verify",     "journal",   "id_range",     "ask_network"};
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

}  // namespace
}  // namespace isola::e2e
