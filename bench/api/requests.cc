// Authenticated GETs of one sandbox, with request ids and a log line each, beside nginx that says a fixed 200 and logs
// it.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file.h"
#include "bench/api/world.h"

namespace isola::bench {

namespace {

struct Run {
  double rate = 0, per_core = 0;  // requests a second, and a second of CPU
};

Result<Run> load(const std::string& url, const std::string& key, pid_t server, int seconds) {
  double before = cpu_seconds(server);
  auto said = output_of(
      {"wrk", "-t1", "-c32", "-d" + std::to_string(seconds) + "s", "-H", "Authorization: Bearer " + key, url});
  if (!said) return std::unexpected(said.error());
  double used = cpu_seconds(server) - before;
  if (said->find("Non-2xx") != std::string::npos) return fail(Code::internal, "not every reply was a 200: " + *said);
  auto at = said->find("Requests/sec:");
  if (at == std::string::npos || used <= 0) return fail(Code::internal, "wrk said: " + *said);
  Run run{.rate = std::strtod(said->c_str() + at + 13, nullptr)};
  run.per_core = run.rate * seconds / used;
  return run;
}

}  // namespace

Result<void> bench_requests(const World& world, Report& report, Mode mode) {
  if (!have("wrk") || !have("nginx")) {
    report.note("wrk or nginx is not installed: requests a second were not measured");
    return {};
  }
  auto client = world.client();
  ISOLA_TRY(std::string id, world.create(client));
  std::string target = "/v1/sandboxes/" + id;
  ISOLA_TRY(auto shown, client.send({.target = target}));
  std::string config = world.folder() + "/nginx.conf", fixed = shown.body;
  for (size_t at = 0; (at = fixed.find_first_of("'\\$", at)) != std::string::npos; ++at) fixed[at] = '_';
  ISOLA_CHECK(replace_file(
      config, fmt::format("daemon off; worker_processes auto; pid {0}/nginx.pid; error_log {0}/nginx.err;\n"
                          "events {{ worker_connections 1024; }}\nhttp {{ access_log {0}/nginx.log; keepalive_requests "
                          "100000000;\n server {{ listen 127.0.0.1:{1} reuseport; location / {{ default_type "
                          "application/json; return 200 '{2}'; }} }} }}\n",
                          world.folder(), 18990, fixed)));
  ISOLA_TRY(Child nginx, Child::start({"nginx", "-c", config}, world.folder() + "/nginx.out"));
  std::string peer = "http://127.0.0.1:18990/v1/sandboxes/" + id;
  for (int i = 0; i < 1000; ++i) {
    http::Client look(*http::parse_url(peer));
    if (auto reply = look.send({.target = "/"}); reply && reply->status == 200) break;
    ::usleep(10'000);
  }
  int seconds = times(mode, 2, 5, 10), rounds = times(mode, 2, 3, 5);
  Samples ours, theirs, ours_core, theirs_core;
  for (int i = 0; i < rounds; ++i) {
    ISOLA_TRY(Run a, load(world.url() + target, world.key(), world.server(), seconds));
    ISOLA_TRY(Run b, load(peer, world.key(), nginx.pid(), seconds));
    ours.add(a.rate), theirs.add(b.rate), ours_core.add(a.per_core), theirs_core.add(b.per_core);
  }
  const std::string group = "API: GET of one sandbox, with key, request id and log line";
  report.value(group, "isola serve", ours.p50(), "requests/s",
               fmt::format("{:.0f} per second of CPU", ours_core.p50()));
  report.value(group, "nginx, the same bytes, access log on", theirs.p50(), "requests/s",
               fmt::format("{:.0f} per second of CPU", theirs_core.p50()));
  report.goal("CPU of a GET against nginx (1 / 0.4 of its rate per core)", paired_ratio(theirs_core, ours_core), 2.5);
  return world.remove(client, id);
}

}  // namespace isola::bench
