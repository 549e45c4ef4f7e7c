// Create → the output of a first command: through HTTP, and by the launcher alone, in turn.
#include <barrier>
#include <mutex>
#include <thread>

#include "bench/api/world.h"
#include "guest/client.h"

namespace isola::bench {

namespace {

// What a sample made, and its time. Ended by whoever asked, when it disturbs no other sample.
struct Made {
  std::string id;
  double took = 0;
};

Result<Made> make_by_http(const World& world, http::Client& client) {
  auto start = Clock::now();
  ISOLA_TRY(std::string id, world.create(client));
  ISOLA_TRY(auto reply, client.send({.method = "POST",
                                     .target = "/v1/sandboxes/" + id + "/commands",
                                     .body = R"({"argv":["/bin/echo","x"]})"}));
  double took = micros_since(start);
  if (reply.body.find("\"stdout\":\"x\\n\"") == std::string::npos) return fail(Code::internal, reply.body);
  return Made{id, took};
}

Result<double> by_http(const World& world, http::Client& client) {
  ISOLA_TRY(Made made, make_by_http(world, client));
  ISOLA_CHECK(world.remove(client, made.id));
  return made.took;
}

Result<Made> make_by_launcher(const World& world, launcher::Client& launcher) {
  auto start = Clock::now();
  ISOLA_TRY(auto sandbox, launcher.launch({.digest = world.digest()}));
  std::string seen;
  {
    guest::PipeClient guest(std::move(sandbox.link.from_guest), std::move(sandbox.link.to_guest));
    ISOLA_TRY(auto exit, guest.run({.argv = {"/bin/echo", "x"}}, {.out = [&](std::string_view s) { seen += s; }}));
    if (exit.code != 0 || seen != "x\n") return fail(Code::internal, "the command failed");
  }
  return Made{sandbox.reply.id, micros_since(start)};
}

Result<double> by_launcher(const World& world, launcher::Client& launcher) {
  ISOLA_TRY(Made made, make_by_launcher(world, launcher));
  ISOLA_CHECK(launcher.kill(made.id));
  return made.took;
}

struct Pair {
  Samples http, direct;
};

// A few at a time without a pause, as a program does that works through a list; what they leave is cleared away, and
// the pool filled again, between these bursts.
Result<Pair> one_after_another(const World& world, http::Client& client, launcher::Client& launcher, int rounds) {
  constexpr int kBurst = 8;
  Pair pair;
  for (int i = 0; i < rounds; i += kBurst) {
    ISOLA_CHECK(world.wait_parked(launcher, 2 * (kBurst + 1)));
    std::vector<std::string> mine, launchers;
    for (int j = 0; j <= kBurst; ++j) {  // the first one wakes everybody up
      ISOLA_TRY(Made a, make_by_http(world, client));
      mine.push_back(a.id);
      ISOLA_TRY(Made b, make_by_launcher(world, launcher));
      launchers.push_back(b.id);
      if (j > 0) pair.http.add(a.took), pair.direct.add(b.took);
    }
    for (const auto& id : mine) ISOLA_CHECK(world.remove(client, id));
    for (const auto& id : launchers) ISOLA_CHECK(launcher.kill(id));
  }
  return pair;
}

// Each when all that the one before left is cleared away and the pool is full: ten or twenty milliseconds of other
// work in between, after which code and data have to come from memory again.
Result<Pair> after_a_rest(const World& world, http::Client& client, launcher::Client& launcher, int rounds) {
  Pair pair;
  for (int i = -3; i < rounds; ++i) {  // the first ones warm up
    ISOLA_CHECK(world.wait_parked(launcher, World::kParked));
    ISOLA_TRY(double a, by_http(world, client));
    ISOLA_CHECK(world.wait_parked(launcher, World::kParked));
    ISOLA_TRY(double b, by_launcher(world, launcher));
    if (i >= 0) pair.http.add(a), pair.direct.add(b);
  }
  return pair;
}

// `one(thread)` gives a sample; all threads begin together.
Result<Samples> at_once(int threads, int rounds, const std::function<Result<std::function<Result<double>()>>()>& make) {
  Samples samples;
  Result<void> result;
  std::mutex mutex;
  std::barrier all(threads);
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&] {
      auto one = make();
      all.arrive_and_wait();
      for (int i = 0; i < rounds && one; ++i) {
        auto took = (*one)();
        std::lock_guard lock(mutex);
        if (took)
          samples.add(*took);
        else
          result = std::unexpected(took.error());
      }
      std::lock_guard lock(mutex);
      if (!one) result = std::unexpected(one.error());
    });
  }
  for (auto& worker : workers) worker.join();
  if (!result) return std::unexpected(result.error());
  return samples;
}

}  // namespace

Result<void> bench_create(const World& world, Report& report, Mode mode) {
  auto client = world.client();
  ISOLA_TRY(auto launcher, world.launcher());
  const char* what = "API: create → output of a first command";
  int rounds = times(mode, 40, 296, 1000);
  ISOLA_TRY(Pair steady, one_after_another(world, client, launcher, rounds));
  report.timing(what, "one connection, one after another, through HTTP", steady.http);
  report.timing(what, "one after another, by the launcher alone", steady.direct);
  report.goal("HTTP adds to create → first output, one after another, p50, ms",
              (steady.http.p50() - steady.direct.p50()) / 1000, 0.5);
  ISOLA_TRY(Pair rested, after_a_rest(world, client, launcher, rounds));
  report.timing(what, "one connection, each after a rest, through HTTP", rested.http);
  report.timing(what, "each after a rest, by the launcher alone", rested.direct);

  constexpr int kThreads = 50;
  int each = times(mode, 2, 6, 20);
  Samples many_http, many_direct;
  for (int turn = 0; turn < 2; ++turn) {
    ISOLA_CHECK(world.wait_parked(launcher, World::kParked));
    ISOLA_TRY(auto a, at_once(kThreads, each, [&]() -> Result<std::function<Result<double>()>> {
                auto own = std::make_shared<http::Client>(world.client());
                return [&world, own] { return by_http(world, *own); };
              }));
    ISOLA_CHECK(world.wait_parked(launcher, World::kParked));
    ISOLA_TRY(auto b, at_once(kThreads, each, [&]() -> Result<std::function<Result<double>()>> {
                ISOLA_TRY(auto made, world.launcher());
                auto own = std::make_shared<launcher::Client>(std::move(made));
                return [&world, own] { return by_launcher(world, *own); };
              }));
    for (double v : a.values()) many_http.add(v);
    for (double v : b.values()) many_direct.add(v);
  }
  report.timing(what, "50 connections at once, through HTTP", many_http);
  report.timing(what, "50 at once, by the launcher alone", many_direct);
  return {};
}

}  // namespace isola::bench
