// isola-bench [--quick|--full] [--json FILE] [--table FILE] [--only GROUP,…]
//
// Two processes: the first holds nothing but the name of a scratch folder and clears it away however the second, which
// measures, ends.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "base/file.h"
#include "bench/stage.h"

namespace isola::bench {

namespace {

struct Options {
  Mode mode = Mode::normal;
  std::string json, table, only;
};

struct Group {
  const char* name;
  Result<void> (*measure)(Stage&);
  bool by_name = false;  // only when it is asked for
};
constexpr Group kGroups[] = {{"create", bench_create},
                             {"throughput", bench_throughput},
                             {"density", bench_density},
                             {"transfer", bench_transfer},
                             {"work", bench_work},
                             {"image", bench_image},
                             {"boundaries", bench_boundaries, true}};

const char* mode_name(Mode mode) { return mode == Mode::quick ? "quick" : mode == Mode::normal ? "normal" : "full"; }

Result<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    auto value = [&](std::string& into) -> Result<void> {
      if (++i == argc) return fail(Code::invalid, word + " wants a value");
      into = argv[i];
      return {};
    };
    if (word == "--quick")
      options.mode = Mode::quick;
    else if (word == "--full")
      options.mode = Mode::full;
    else if (word == "--json")
      ISOLA_CHECK(value(options.json));
    else if (word == "--table")
      ISOLA_CHECK(value(options.table));
    else if (word == "--only")
      ISOLA_CHECK(value(options.only));
    else
      return fail(Code::invalid,
                  "unexpected '" + word + "' (known: --quick --full --json FILE --table FILE --only GROUP,…)");
  }
  return options;
}

Result<void> measure(const Options& options, const std::string& scratch) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  ::signal(SIGPIPE, SIG_IGN);
  Report report;
  if (options.only == "boundaries") ISOLA_CHECK(make_outside());
  ISOLA_TRY(auto stage, Stage::make(scratch, options.mode, report));
  bool whole = true;
  for (const auto& group : kGroups) {
    if (options.only.empty() && group.by_name) continue;
    if (!options.only.empty() &&
        ("," + options.only + ",").find("," + std::string(group.name) + ",") == std::string::npos)
      continue;
    // One group that fails is said so and the others still count.
    if (auto done = group.measure(*stage); !done) {
      report.note(std::string("FAILED: ") + group.name + ": " + done.error().message);
      whole = false;
      (void)stage->launcher().park(stage->digest(), 0);
    }
  }
  std::string table = report.table();
  std::fputs(table.c_str(), stdout);
  if (!options.table.empty()) ISOLA_CHECK(replace_file(options.table, table));
  if (!options.json.empty()) ISOLA_CHECK(report.write_json(options.json, mode_name(options.mode)));
  if (!whole) return fail(Code::internal, "some measurements failed: see the notes");
  return {};
}

int child = -1;
void pass_on(int) {
  if (child > 0) ::kill(child, SIGKILL);  // whatever it was doing, the launcher's connection closes and we clear up
}

// The groups that other runtimes made, should one have been killed in the middle.
void remove_peer_groups() {
  std::string name = "/isola-bench-" + std::to_string(::getpid());
  for (const char* controller :
       {"", "/memory", "/cpu", "/cpu,cpuacct", "/cpuset", "/pids", "/devices", "/freezer", "/blkio", "/hugetlb",
        "/net_cls", "/net_cls,net_prio", "/perf_event", "/systemd", "/unified"})
    ::rmdir(("/sys/fs/cgroup" + std::string(controller) + name).c_str());
}

}  // namespace

int run(int argc, char** argv) {
  auto options = parse(argc, argv);
  if (!options) {
    std::fprintf(stderr, "isola-bench: %s\n", options.error().message.c_str());
    return 2;
  }
  if (::geteuid() != 0) {
    std::fputs("isola-bench: must run as root\n", stderr);
    return 2;
  }
  char scratch[] = "/var/tmp/isola-bench-XXXXXX";
  if (!::mkdtemp(scratch)) {
    std::perror("isola-bench: cannot make a scratch folder");
    return 1;
  }
  child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setpgid(0, 0);
    auto done = measure(*options, scratch);
    if (!done) std::fprintf(stderr, "isola-bench: %s\n", done.error().text().c_str());
    std::fflush(nullptr);
    ::_exit(done ? 0 : 1);
  }
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, pass_on);
  int status = 1;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  sweep(scratch);
  remove_peer_groups();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace isola::bench

int main(int argc, char** argv) { return isola::bench::run(argc, argv); }
