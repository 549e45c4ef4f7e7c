// create → first output: a bare process, a sandbox from nothing, a parked one, a command in a living one, and the same
// with other runtimes. All of them round-robin, so that whatever disturbs the machine disturbs all alike.
#include <fmt/format.h>

#include "bench/peers.h"
#include "bench/stage.h"

namespace isola::bench {

namespace {

const char* const kGroup = "Create → first output";

struct Contender {
  std::string name;
  std::function<Result<Timing>()> run;
  Samples first, exit;
};

// Where the launcher's part of the creates went.
struct Breakdown {
  Samples steps[static_cast<size_t>(Step::count_)];
  Samples total;
  void add(const Latency& latency) {
    for (size_t i = 0; i < static_cast<size_t>(Step::count_); ++i)
      steps[i].add(std::chrono::duration<double, std::micro>(latency.of(static_cast<Step>(i))).count());
    total.add(std::chrono::duration<double, std::micro>(latency.total()).count());
  }
  void print(Report& report, const std::string& group) const {
    for (size_t i = 0; i < static_cast<size_t>(Step::count_); ++i)
      if (steps[i].p50() > 0) report.timing(group, std::string(to_string(static_cast<Step>(i))), steps[i]);
    report.timing(group, "launcher in all", total);
  }
};

}  // namespace

Result<void> bench_create(Stage& stage) {
  Report& report = stage.report();
  report.progress("create → first output");
  ISOLA_TRY(auto peers, make_peers(stage));
  Breakdown cold_steps, parked_steps;
  Program bare{.argv = {stage.root() + kHello}};

  auto create = [&](bool cold, Breakdown& steps) -> Result<Timing> {
    ISOLA_TRY(auto ran, create_and_run(stage.launcher(), stage.digest(), cold));
    steps.add(ran.reply.latency);
    if (ran.reply.birth != (cold ? Birth::cold : Birth::pooled))
      return fail(Code::internal, "no parked jail was claimed");
    ran.guest.reset();
    ISOLA_CHECK(stage.launcher().kill(ran.reply.id));
    return ran.timing;
  };
  ISOLA_TRY(auto living, create_and_run(stage.launcher(), stage.digest(), true));

  std::vector<Contender> all;
  all.push_back({"bare vfork+exec+reap", [&] { return run_program(bare, kHelloSays); }, {}, {}});
  all.push_back({"isola, cold", [&] { return create(true, cold_steps); }, {}, {}});
  all.push_back({"isola, parked", [&] { return create(false, parked_steps); }, {}, {}});
  all.push_back(
      {"isola, exec in a living sandbox", [&] { return run_in(*living.guest, {kHello}, kHelloSays); }, {}, {}});
  for (auto& peer : peers)
    all.push_back({peer.name, [&peer] { return run_program(peer.program, kHelloSays); }, {}, {}});

  ISOLA_CHECK(stage.park(1));
  const int rounds = stage.pick(30, 100, 300), warm_up = 3;
  for (int round = -warm_up; round < rounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      auto& one = all[(i + static_cast<size_t>(round + warm_up)) % all.size()];
      ISOLA_CHECK(stage.settle(1));
      ISOLA_TRY(auto timing, one.run());
      if (round < 0) continue;
      one.first.add(timing.first);
      one.exit.add(timing.exit);
    }
  }
  ISOLA_CHECK(stage.launcher().kill(living.reply.id));
  ISOLA_CHECK(stage.park(0));

  const auto& reference = all[0].exit;
  for (const auto& one : all)
    report.timing(kGroup, one.name + ": first output", one.first,
                  fmt::format("{:.2f}× bare", one.first.p50() / reference.p50()));
  for (const auto& one : all)
    report.timing(kGroup, one.name + ": exit known", one.exit,
                  fmt::format("{:.2f}× bare", one.exit.p50() / reference.p50()));
  cold_steps.print(report, "Where a cold create goes (inside the launcher)");
  parked_steps.print(report, "Where a parked create goes (inside the launcher)");

  report.goal("cold create → first output, against bare vfork+exec+reap", all[1].first.p50() / reference.p50(), 10);
  for (size_t i = 4; i < all.size(); ++i)
    if (all[i].name == "crun run")
      report.goal("cold create → first output, against crun run", all[1].first.p50() / all[i].first.p50(), 0.6);
  report.goal("parked create → first output, against bare", all[2].first.p50() / reference.p50(), 2.5);
  report.goal("exec in a living sandbox, against bare", all[3].exit.p50() / reference.p50(), 2);
  return {};
}

}  // namespace isola::bench
