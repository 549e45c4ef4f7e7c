// kill -9, anywhere, any time: what lives is adopted, what was half-made is cleared away, nothing leaks.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <random>
#include <thread>

#include "e2e/island.h"

namespace isola::e2e {
namespace {

using launcher::LaunchRequest;

// Of one kind, by the name that it gave itself; children of the launcher only.
pid_t child_called(pid_t parent, const std::string& name) {
  std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", parent));
  for (pid_t pid; children >> pid;) {
    std::ifstream comm(fmt::format("/proc/{}/comm", pid));
    std::string word;
    if (std::getline(comm, word) && word == name) return pid;
  }
  return -1;
}

TEST(Crash, ALivingSandboxIsAdopted) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  std::string id;
  uint32_t pid = 0;
  std::string early;
  {
    auto client = island.client();
    auto sandbox = launch(client, {.digest = island.digest(), .ephemeral = false});
    ASSERT_OK(sandbox);
    id = sandbox->id;
    // It says something, and goes on saying it when told to.
    auto run = sandbox->guest->begin_run(
        {.argv = {"sh", "-c", "echo before; while [ ! -e /go ]; do sleep 0.05; done; echo after; exec sleep 1000"}},
        {.out = [&](std::string_view s) { early += s; }});
    auto heard = sandbox->guest->pump_until([&] { return early == "before\n" && run->pid() != 0; },
                                            std::chrono::milliseconds(20000));
    ASSERT_OK(heard);
    pid = run->pid();
    island.kill_launcher();
  }
  auto started = island.start();
  ASSERT_OK(started);
  {
    auto client = island.client();
    auto all = client.list();
    ASSERT_OK(all);
    ASSERT_EQ(all->size(), 1u);
    EXPECT_EQ((*all)[0].id, id);
    EXPECT_EQ((*all)[0].state, State::running);
    auto link = client.link(id);
    ASSERT_OK(link);
    auto again = talk(id, std::move(*link));
    ASSERT_OK(again);
    auto processes = again->guest->processes();
    ASSERT_OK(processes);
    // Everything from the beginning is said again, and what comes now follows.
    std::string replayed;
    auto attached = again->guest->begin_attach(pid, 0, {.out = [&](std::string_view s) { replayed += s; }});
    EXPECT_EQ(hear(*again->guest, {"touch", "/go"}).exit->code, 0);
    auto heard = again->guest->pump_until([&] { return replayed.find("after") != std::string::npos; },
                                          std::chrono::milliseconds(20000));
    ASSERT_OK(heard);
    EXPECT_EQ(replayed, "before\nafter\n");
    auto stats = client.stats(id);
    EXPECT_TRUE(stats);
    // Freezing, thawing and a second generation of the link work on an adopted one, too.
    EXPECT_TRUE(client.freeze(id));
    EXPECT_TRUE(client.thaw(id));
    auto ended = client.kill(id);
    ASSERT_OK(ended);
    EXPECT_EQ(ended->reason, EndReason::killed);
  }
  island.expect_unchanged();
}

// Somebody wanted it to stand still; nobody has said since that it shall go on.
TEST(Crash, AFrozenOneStaysFrozen) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  std::string frozen, thawed;
  {
    auto client = island.client();
    for (auto* id : {&frozen, &thawed}) {
      auto sandbox = launch(client, {.digest = island.digest(), .ephemeral = false});
      ASSERT_OK(sandbox);
      *id = sandbox->id;
      ASSERT_TRUE(client.freeze(*id));
    }
    ASSERT_TRUE(client.thaw(thawed));
    island.kill_launcher();
  }
  auto started = island.start();
  ASSERT_OK(started);
  {
    auto client = island.client();
    auto state_of = [&](const std::string& id) {
      auto all = client.list();
      for (const auto& one : all.value_or(std::vector<launcher::SandboxSummary>()))
        if (one.id == id) return one.state;
      return State::ending;
    };
    EXPECT_TRUE(eventually([&] { return state_of(frozen) == State::frozen; }));
    EXPECT_EQ(state_of(thawed), State::running);
    EXPECT_TRUE(client.thaw(frozen));
    EXPECT_EQ(state_of(frozen), State::running);
    auto link = client.link(frozen);
    EXPECT_TRUE(link) << link.error().message;
    for (const auto& id : {frozen, thawed}) EXPECT_TRUE(client.kill(id));
  }
  island.expect_unchanged();
}

// The wall time of a sandbox goes on while there is no launcher, and its end comes from the one that adopted it.
TEST(Crash, ADeadlineOutlivesTheLauncher) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  // On a busy machine the first may be over before the new launcher can be asked to tell of it.
  for (auto wall_time : {std::chrono::seconds(2), std::chrono::seconds(10), std::chrono::seconds(40)}) {
    std::string id;
    {
      auto client = island.client();
      auto sandbox =
          launch(client, {.digest = island.digest(), .limits = {.wall_time = wall_time}, .ephemeral = false});
      ASSERT_OK(sandbox);
      id = sandbox->id;
      island.kill_launcher();
    }
    auto started = island.start();
    ASSERT_OK(started);
    auto client = island.client();
    if (auto owned = client.own(id); !owned) {
      ASSERT_EQ(owned.error().code, Code::not_found) << owned.error().message;
      continue;
    }
    pollfd ready{client.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 60000), 1) << "it lives on";
    auto event = client.next_event();
    ASSERT_OK(event);
    ASSERT_TRUE(*event);
    EXPECT_EQ((*event)->id, id);
    EXPECT_EQ((*event)->reason, EndReason::deadline);
    break;
  }
  island.expect_unchanged();
}

TEST(Crash, EphemeralAndParkedOnesEndWithTheLauncher) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  {
    auto client = island.client();
    ASSERT_TRUE(launch(client, {.digest = island.digest(), .ephemeral = true}));
    auto kept = launch(client, {.digest = island.digest(), .ephemeral = true});
    ASSERT_OK(kept);
    ASSERT_TRUE(client.park(island.digest(), 2));
    ASSERT_TRUE(eventually([&] { return client.info()->parked == 2; }));
    island.kill_launcher();
  }
  auto started = island.start();
  ASSERT_OK(started);
  EXPECT_TRUE(eventually([&] { return island.client().list()->empty(); }));
  island.expect_unchanged();
}

TEST(Crash, TheJanitorIsReplaced) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  pid_t launcher = island.launcher_pid();
  int kills = count("deaths of the janitor", 5, 50);
  for (int i = 0; i < kills; ++i) {
    auto client = island.client();
    std::vector<std::string> ids;
    for (int j = 0; j < 3; ++j) {
      auto sandbox = launch(client, {.digest = island.digest()});
      ASSERT_OK(sandbox);
      ids.push_back(sandbox->id);
    }
    pid_t janitor = child_called(launcher, "isola-janitor");
    ASSERT_GT(janitor, 1);
    // Stopped, so that it dies with jobs in its hands.
    ::kill(janitor, SIGSTOP);
    std::thread killer([&] {
      eventually([&] { return island.client().info()->cleaning > 0; });
      ::kill(janitor, SIGKILL);
    });
    for (const auto& id : ids) {
      auto ended = client.kill(id);
      EXPECT_TRUE(ended) << ended.error().message;
    }
    killer.join();
  }
  island.expect_unchanged();
  EXPECT_EQ(island.launcher_pid(), launcher) << "the launcher itself lived through it";
}

TEST(Crash, TheNetworkHandIsReplaced) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  pid_t launcher = island.launcher_pid();
  int kills = count("deaths of the network hand", 5, 50);
  for (int i = 0; i < kills; ++i) {
    auto client = island.client();
    pid_t hand = child_called(launcher, "isola-network");
    ASSERT_GT(hand, 1);
    // Stopped, so that somebody waits for it when it dies.
    ::kill(hand, SIGSTOP);
    std::thread killer([&] {
      eventually([&] { return island.client().info()->live > 0; });
      ::kill(hand, SIGKILL);
    });
    auto refused = launch(client, {.digest = island.digest(), .cold = true});
    killer.join();
    ASSERT_FALSE(refused) << "it came to life without a network";
    EXPECT_NE(refused.error().message.find("the helper that makes networks"), std::string::npos)
        << refused.error().message;
    auto sandbox = launch(client, {.digest = island.digest(), .cold = true});
    ASSERT_OK(sandbox);
    EXPECT_TRUE(client.kill(sandbox->id));
  }
  island.expect_unchanged();
  EXPECT_EQ(island.launcher_pid(), launcher) << "the launcher itself lived through it";
}

// One that hangs is found out by the launch that waits for it in vain.
TEST(Crash, ANetworkHandThatHangsIsReplaced) {
  NEEDS_TEMPLATE("minimal");
  if (!full_suite()) {
    std::printf("reduced: no hanging network hand, which takes 30 s (ISOLA_TEST_FULL=1 does all)\n");
    return;
  }
  Island island;
  pid_t launcher = island.launcher_pid();
  {
    auto client = island.client();
    pid_t hand = child_called(launcher, "isola-network");
    ASSERT_GT(hand, 1);
    ::kill(hand, SIGSTOP);
    auto late = launch(client, {.digest = island.digest(), .cold = true});
    ASSERT_FALSE(late) << "it came to life without a network";
    auto sandbox = launch(client, {.digest = island.digest(), .cold = true});
    ASSERT_OK(sandbox);
    EXPECT_TRUE(client.kill(sandbox->id));
    EXPECT_NE(child_called(launcher, "isola-network"), hand);
  }
  island.expect_unchanged();
}

TEST(Crash, ADeadGuestIsAnEndWithAReason) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  {
    auto client = island.client();
    auto sandbox = launch(client, {.digest = island.digest()});
    ASSERT_OK(sandbox);
    pid_t guest = (*client.list())[0].pid;
    ASSERT_GT(guest, 1);
    ::kill(guest, SIGKILL);
    pollfd ready{client.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 20000), 1);
    auto event = client.next_event();
    ASSERT_OK(event);
    ASSERT_TRUE(*event);
    EXPECT_EQ((*event)->id, sandbox->id);
    EXPECT_EQ((*event)->reason, EndReason::boundary_failure);
    EXPECT_TRUE(WIFSIGNALED((*event)->status));
  }
  // The same seen by a user of `isola run`.
  Program program(island.run_words({"--", "sh", "-c", "echo ready; sleep 1000"}),
                  island.with_data({.keep_input_open = true}));
  ASSERT_TRUE(program.out_has("ready"));
  auto all = island.client().list();
  ASSERT_OK(all);
  for (const auto& one : *all)
    if (!one.parked) ::kill(one.pid, SIGKILL);
  auto done = program.finish();
  EXPECT_EQ(done.code, 125) << done.text();
  EXPECT_NE(done.err.find("boundary-failure"), std::string::npos) << done.text();
  island.expect_unchanged();
}

TEST(Crash, ADeadLauncherIsOneSentence) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  Program program(island.run_words({"--", "sh", "-c", "echo ready; sleep 1000"}),
                  island.with_data({.keep_input_open = true}));
  ASSERT_TRUE(program.out_has("ready"));
  island.kill_launcher();
  auto done = program.finish();
  EXPECT_EQ(done.code, 125) << done.text();
  EXPECT_TRUE(done.err.starts_with("isola: ")) << done.text();
  EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.text();
  auto started = island.start();
  ASSERT_OK(started);
  island.expect_unchanged();
}

// Launches, commands and kills without end, while the launcher is killed at random moments.
TEST(Crash, RandomKills) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  int kills = count("kills of the launcher", 15, 200);
  unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  std::set<std::string> kept;  // acknowledged, not ephemeral, not killed by us: must be there until the end
  for (int i = 0; i < kills; ++i) {
    auto started = island.start();
    ASSERT_TRUE(started) << "after " << i << " kills: " << started.error().message;
    auto connected = island.try_client();
    ASSERT_TRUE(connected);
    auto pid = connected->info()->pid;
    auto all = connected->list();
    ASSERT_OK(all);
    std::set<std::string> there;
    for (const auto& one : *all) there.insert(one.id);
    for (const auto& id : kept) EXPECT_TRUE(there.contains(id)) << id << " was lost";
    (void)connected->park(island.digest(), random() % 3);
    std::thread killer([pid, pause = std::chrono::microseconds(random() % 60000)] {
      std::this_thread::sleep_for(pause);  // the random moment itself, not synchronisation
      ::kill(pid, SIGKILL);
    });
    auto client = std::move(*connected);
    for (int round = 0; round < 1000; ++round) {
      LaunchRequest request{.digest = island.digest(), .ephemeral = random() % 2 == 0, .cold = random() % 2 == 0};
      auto sandbox = client.launch(request);
      if (!sandbox) break;
      std::string id = sandbox->reply.id;
      if (!request.ephemeral) kept.insert(id);
      auto talking = talk(id, std::move(sandbox->link));
      if (talking && random() % 2) (void)hear(*talking->guest, {"true"});
      if (random() % 3) {
        kept.erase(id);  // whether or not the answer arrives
        if (!client.kill(id)) break;
      }
    }
    killer.join();
    EXPECT_TRUE(eventually([pid] { return ::kill(pid, 0) < 0 || !std::ifstream(fmt::format("/proc/{}/exe", pid)); }));
    // Keep it small: what lives on is ended now and then.
    if (kept.size() > 8) {
      auto again = island.start();
      ASSERT_OK(again);
      auto c = island.client();
      for (const auto& id : kept) EXPECT_TRUE(c.kill(id)) << id;
      kept.clear();
    }
    if (testing::Test::HasFailure()) break;
  }
  auto started = island.start();
  ASSERT_OK(started);
  {
    // One that was acknowledged to nobody (the launcher died in between) lives on too: by design it is in the list.
    auto client = island.client();
    auto all = client.list();
    ASSERT_OK(all);
    for (const auto& one : *all)
      if (!one.parked) (void)client.kill(one.id);
  }
  island.expect_unchanged("after all kills");
}

}  // namespace
}  // namespace isola::e2e
