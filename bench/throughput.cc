// Many at once: bursts of creates that all stay alive until the last has run its program, and creates per second for a
// while. Bare processes with the same parallelism are the measure.
#include <fmt/format.h>

#include <atomic>

#include "bench/stage.h"

namespace isola::bench {

namespace {

struct Burst {
  double all_ran = 0;   // until every program's exit was known
  double all_gone = 0;  // … and every sandbox was gone
  Samples each;         // create → first output of each
};

// `count` sandboxes from `threads` clients; each client has a connection of its own, as separate callers would.
Result<Burst> burst_of_sandboxes(Stage& stage, unsigned count, unsigned threads, bool cold) {
  std::vector<launcher::Client> clients;
  for (unsigned i = 0; i < threads; ++i) {
    ISOLA_TRY(auto client, stage.connect());
    clients.push_back(std::move(client));
  }
  std::vector<std::vector<Ran>> ran(threads);
  std::atomic<unsigned> next = 0;
  Burst burst;
  auto start = Clock::now();
  ISOLA_CHECK(in_parallel(threads, [&](unsigned me) -> Result<void> {
    while (next++ < count) {
      ISOLA_TRY(auto one, create_and_run(clients[me], stage.digest(), cold));
      ran[me].push_back(std::move(one));
    }
    return {};
  }));
  burst.all_ran = micros_since(start);
  for (const auto& some : ran)
    for (const auto& one : some) burst.each.add(one.timing.first);
  start = Clock::now();
  ran.clear();
  clients.clear();  // closing the connections ends their sandboxes
  auto give_up = Clock::now() + std::chrono::seconds(120);
  for (;;) {
    ISOLA_TRY(auto info, stage.launcher().info());
    if (info.live == 0 && info.cleaning == 0) break;
    if (Clock::now() > give_up) return fail(Code::timeout, "the sandboxes of a burst do not go away");
    ::usleep(1000);
  }
  burst.all_gone = micros_since(start);
  return burst;
}

Result<double> burst_of_processes(Stage& stage, unsigned count, unsigned threads) {
  Program bare{.argv = {stage.root() + kHello}};
  std::atomic<unsigned> next = 0;
  auto start = Clock::now();
  ISOLA_CHECK(in_parallel(threads, [&](unsigned) -> Result<void> {
    while (next++ < count) ISOLA_CHECK(run_program(bare, kHelloSays));
    return {};
  }));
  return micros_since(start);
}

Result<void> bursts(Stage& stage, unsigned count, unsigned threads, int rounds, bool goal) {
  Report& report = stage.report();
  const std::string group = fmt::format("Bursts ({} clients at once)", threads);
  Samples bare, cold, cold_each, cold_gone, parked;
  bool pooled = count <= 256;  // as many as a launcher parks
  for (int round = 0; round < rounds; ++round) {
    ISOLA_CHECK(stage.settle(0));
    ISOLA_TRY(double processes, burst_of_processes(stage, count, threads));
    bare.add(processes);
    ISOLA_CHECK(stage.settle(0));
    ISOLA_TRY(auto burst, burst_of_sandboxes(stage, count, threads, true));
    cold.add(burst.all_ran);
    cold_gone.add(burst.all_gone);
    for (double value : burst.each.values()) cold_each.add(value);
    if (!pooled) continue;
    ISOLA_CHECK(stage.park(count));
    ISOLA_CHECK(stage.launcher().park(stage.digest(), 0));  // what is parked stays; nothing is made anew meanwhile
    ISOLA_TRY(auto from_pool, burst_of_sandboxes(stage, count, threads, false));
    parked.add(from_pool.all_ran);
  }
  auto ratio = [&](const Samples& s) { return fmt::format("{:.2f}× bare", paired_ratio(s, bare)); };
  report.timing(group, fmt::format("{} bare processes", count), bare);
  report.timing(group, fmt::format("{} cold creates, all ran", count), cold, ratio(cold));
  report.timing(group, fmt::format("{} cold creates, each: first output", count), cold_each);
  report.timing(group, fmt::format("{} ended at once, all gone", count), cold_gone);
  if (pooled) report.timing(group, fmt::format("{} parked creates, all ran", count), parked, ratio(parked));
  if (goal)
    report.goal(fmt::format("burst of {} cold creates, against {} bare processes", count, count),
                paired_ratio(cold, bare), 12);
  return {};
}

// Runs `once` in all threads for a while; how often per second it went through.
Result<double> rate(unsigned threads, std::chrono::milliseconds time,
                    const std::function<Result<void>(unsigned)>& once) {
  std::atomic<unsigned> count = 0;
  auto start = Clock::now(), end = start + time;
  ISOLA_CHECK(in_parallel(threads, [&](unsigned me) -> Result<void> {
    while (Clock::now() < end) {
      ISOLA_CHECK(once(me));
      ++count;
    }
    return {};
  }));
  return count / micros_since(start) * 1e6;
}

Result<void> rates(Stage& stage, unsigned threads) {
  Report& report = stage.report();
  const std::string group = fmt::format("Sustained rates ({} clients at once)", threads);
  const auto time = std::chrono::milliseconds(stage.pick(1000, 3000, 10000));
  std::vector<launcher::Client> clients;
  for (unsigned i = 0; i < threads; ++i) {
    ISOLA_TRY(auto client, stage.connect());
    clients.push_back(std::move(client));
  }
  Program bare{.argv = {stage.root() + kHello}};
  auto process = [&](unsigned) -> Result<void> {
    ISOLA_CHECK(run_program(bare, kHelloSays));
    return {};
  };
  auto sandbox = [&](bool cold) {
    return [&, cold](unsigned me) -> Result<void> {
      ISOLA_TRY(auto ran, create_and_run(clients[me], stage.digest(), cold));
      ran.guest.reset();
      ISOLA_CHECK(clients[me].kill(ran.reply.id));  // returns when nothing of it is left
      return {};
    };
  };
  ISOLA_TRY(double processes, rate(threads, time, process));
  ISOLA_CHECK(stage.settle(0));
  ISOLA_TRY(double cold, rate(threads, time, sandbox(true)));
  ISOLA_CHECK(stage.park(8));
  ISOLA_TRY(double pooled, rate(threads, time, sandbox(false)));
  ISOLA_CHECK(stage.park(0));
  report.value(group, "bare processes", processes, "/s");
  report.value(group, "create + run + kill, cold", cold, "/s");
  report.value(group, "create + run + kill, a pool of 8", pooled, "/s",
               "the pool is refilled at the same time, cold when it is empty");
  return {};
}

}  // namespace

Result<void> bench_throughput(Stage& stage) {
  stage.report().progress("bursts and rates");
  const unsigned threads = 2 * stage.cores();
  ISOLA_CHECK(bursts(stage, 100, threads, stage.pick(3, 5, 10), true));
  ISOLA_CHECK(bursts(stage, stage.pick(300U, 1000U, 1000U), threads, stage.pick(1, 1, 3), false));
  if (stage.mode() == Mode::quick)
    stage.report().note("reduced: the large burst has 300 sandboxes, 1,000 without --quick");
  return rates(stage, threads);
}

}  // namespace isola::bench
