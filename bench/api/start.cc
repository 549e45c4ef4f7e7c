// From `isola serve` on a new folder to the first 200 of /readyz, with the template in the machine's cache.
#include <unistd.h>

#include "bench/api/world.h"

namespace isola::bench {

namespace {

constexpr double kGoal = 2e6;  // µs

Result<double> until_ready(const std::string& isola) {
  auto begun = Clock::now();
  ISOLA_TRY(World world, World::start(isola));
  auto client = world.client();
  for (;;) {
    ISOLA_TRY(auto reply, client.send({.method = "GET", .target = "/readyz"}));
    if (reply.status == 200) return micros_since(begun);
    if (micros_since(begun) > 10 * kGoal) return fail(Code::timeout, "a server that does not get ready");
    ::usleep(1000);
  }
}

}  // namespace

Result<void> bench_start(const std::string& isola, Report& report, Mode mode) {
  report.progress("start to ready");
  Samples ready;
  for (int i = 0; i < times(mode, 3, 10, 30); ++i) {
    ISOLA_TRY(double took, until_ready(isola));
    ready.add(took);
  }
  report.timing("start", "`isola serve` to /readyz 200", ready, "on a new folder; the launcher starts with it");
  report.goal("readyz answers within 2 s of `isola serve` (p95 in units of 2 s)", ready.percentile(95) / kGoal, 1);
  return {};
}

}  // namespace isola::bench
