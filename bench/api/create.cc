// Create → the output of a first command: through HTTP, and by the launcher alone, in turn.
#include <barrier>
#include <mutex>
#include <thread>

#include "bench/api/world.h"
#include "guest/client.h"

namespace isola::bench {

namespace {

Result<double> by_http(const World& world, http::Client& client) {
  auto start = Clock::now();
  ISOLA_TRY(std::string id, world.create(client));
  ISOLA_TRY(auto reply, client.send({.method = "POST",
                                     .target = "/v1/sandboxes/" + id + "/commands",
                                     .body = R"({"argv":["/bin/echo","x"]})"}));
  double took = micros_since(start);
  if (reply.body.find("\"stdout\":\"x\\n\"") == std::string::npos) return fail(Code::internal, reply.body);
  ISOLA_CHECK(world.remove(client, id));
  return took;
}

Result<double> by_launcher(const World& world, launcher::Client& launcher) {
  auto start = Clock::now();
  ISOLA_TRY(auto sandbox, launcher.launch({.digest = world.digest()}));
  std::string seen;
  {
    guest::PipeClient guest(std::move(sandbox.link.from_guest), std::move(sandbox.link.to_guest));
    ISOLA_TRY(auto exit, guest.run({.argv = {"/bin/echo", "x"}}, {.out = [&](std::string_view s) { seen += s; }}));
    if (exit.code != 0 || seen != "x\n") return fail(Code::internal, "the command failed");
  }
  double took = micros_since(start);
  ISOLA_CHECK(launcher.kill(sandbox.reply.id));
  return took;
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
  Samples http, direct;
  int rounds = times(mode, 40, 300, 1000);
  for (int i = -3; i < rounds; ++i) {  // the first ones warm up
    ISOLA_CHECK(world.wait_parked(launcher, World::kParked));
    ISOLA_TRY(double a, by_http(world, client));
    ISOLA_CHECK(world.wait_parked(launcher, World::kParked));
    ISOLA_TRY(double b, by_launcher(world, launcher));
    if (i >= 0) http.add(a), direct.add(b);
  }
  report.timing("API: create → output of a first command", "one connection, through HTTP", http);
  report.timing("API: create → output of a first command", "by the launcher alone", direct);
  report.goal("HTTP adds to create → first output, p50, ms", (http.p50() - direct.p50()) / 1000, 0.5);

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
  report.timing("API: create → output of a first command", "50 connections at once, through HTTP", many_http);
  report.timing("API: create → output of a first command", "50 at once, by the launcher alone", many_direct);
  return {};
}

}  // namespace isola::bench
