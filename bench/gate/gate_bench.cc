// isola-gate-bench [--quick|--full|--rate|--inside] [--json FILE] [--table FILE]
//
// The gate beside a direct connection and nginx as a stream proxy, in one run: direct and nginx are dialled in the
// namespace where the gate lives, the gate from inside a sandbox; the servers are behind the same cable for all three.
// Beside them the servers dialled where they are, over loopback.
// Contenders take turns; of the rounds the median counts. Then what a thousand sandboxes cost that do nothing.
// Then requests through connections that are looked into, beside nginx as a reverse proxy (inside_bench.cc; --inside:
// nothing else). Then the scanner and the ledger (vault_bench.cc).
// --rate: many rounds of connections, hardly a stream and no idle sandboxes: for whoever has a profiler at the gate.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "base/file.h"
#include "bench/gate/inside_bench.h"
#include "bench/gate/vault_bench.h"
#include "bench/report.h"
#include "gate/test_world.h"

namespace isola::bench {
namespace {

using namespace std::string_literals;
namespace world = gate::testing;
using gate::kEchoPort, gate::kSourcePort;

constexpr uint16_t kProxySource = 19000, kProxyEcho = 19007;
constexpr int kConnections = 250;  // a round: sandboxes may begin about a thousand at once

struct Options {
  std::string mode = "normal", json, table;
  int rounds = 5;
  size_t bytes = 1ull << 30;
  int idle = 1000;
  int requests = 20'000;  // of a round, through connections that are looked into
  bool inside_only = false;
};

// One contender's rounds. A round comes out of a child as text: MB/s, connections/s, then microseconds each.
struct Numbers {
  Samples stream, rate, latency;
  bool take(const std::string& text) {
    std::istringstream in(text);
    double a = 0, b = 0, one = 0;
    if (!(in >> a >> b)) return false;
    stream.add(a), rate.add(b);
    while (in >> one) latency.add(one);
    return true;
  }
};

std::string measure(const std::string& address, uint16_t source_port, uint16_t echo_port, size_t bytes) {
  auto start = Clock::now();
  {
    Fd fd = world::dial(address, source_port);
    size_t left = bytes;
    if (::send(fd.get(), &left, sizeof left, MSG_NOSIGNAL) != sizeof left) return "";
    static char buffer[1 << 20];
    for (ssize_t n; left > 0 && (n = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) left -= static_cast<size_t>(n);
    if (left > 0) return "";
  }
  double stream = static_cast<double>(bytes) / micros_since(start);
  std::string each;
  start = Clock::now();
  for (int i = 0; i < kConnections; ++i) {
    auto begin = Clock::now();
    Fd fd = world::dial(address, echo_port);
    char c = 'x';
    if (::send(fd.get(), &c, 1, MSG_NOSIGNAL) != 1 || ::recv(fd.get(), &c, 1, 0) != 1) return "";
    each += fmt::format(" {:.1f}", micros_since(begin));
  }
  return fmt::format("{:.1f} {:.1f}{}", stream, kConnections / (micros_since(start) / 1e6), each);
}

// nginx in the namespace where the gate lives, in front of the same servers; gone with its folder at the end.
class Nginx {
 public:
  explicit Nginx(world::World& all) {
    if (!::mkdtemp(folder_)) return;
    std::string config = folder_ + "/nginx.conf"s;
    (void)replace_file(
        config, fmt::format("load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off; worker_processes 1; "
                            "error_log stderr crit; pid {}/pid;\nevents {{ worker_connections 4096; }}\nstream {{\n"
                            "  server {{ listen 127.0.0.1:{}; proxy_pass 203.0.113.10:{}; }}\n"
                            "  server {{ listen 127.0.0.1:{}; proxy_pass 203.0.113.10:{}; }}\n}}\n",
                            folder_, kProxySource, kSourcePort, kProxyEcho, kEchoPort));
    pid_ = all.spawn_plainly({"nginx", "-c", config});
    for (int i = 0; i < 500 && !ready_; ++i) {
      ready_ = all.run_plainly([] { return world::dial("127.0.0.1", kProxyEcho) ? "y"s : "n"s; }) == "y";
      if (!ready_) ::poll(nullptr, 0, 10);
    }
  }
  ~Nginx() {
    if (pid_ > 0) ::kill(pid_, SIGTERM), ::waitpid(pid_, nullptr, 0);
    ::unlink((folder_ + "/nginx.conf"s).c_str()), ::rmdir(folder_);
  }
  bool ready() const { return ready_; }

 private:
  char folder_[32] = "/tmp/isola-gate-bench-XXXXXX";
  pid_t pid_ = -1;
  bool ready_ = false;
};

Result<void> bench_forwarding(world::World& all, const Options& options, Report& report) {
  Nginx nginx(all);
  if (!nginx.ready()) return fail(Code::unavailable, "nginx with its stream module did not start");
  Numbers loopback, direct, proxy, through;
  for (int round = 0; round < options.rounds; ++round) {
    auto box = all.box("allow a.example\nlimit connections-per-second 100000");
    bool good =
        loopback.take(world::in_child([&] {
          if (::setns(all.outside_netns().get(), CLONE_NEWNET) < 0) ::_exit(1);
          return measure("203.0.113.10", kSourcePort, kEchoPort, options.bytes);
        })) &&
        direct.take(all.run_plainly([&] { return measure("203.0.113.10", kSourcePort, kEchoPort, options.bytes); })) &&
        proxy.take(all.run_plainly([&] { return measure("127.0.0.1", kProxySource, kProxyEcho, options.bytes); })) &&
        through.take(
            box.run([&] { return measure(world::resolve("a.example"), kSourcePort, kEchoPort, options.bytes); }));
    if (!good) return fail(Code::internal, "a connection broke");
    all.remove(box);
    while (all.pending_events()) all.drop_event();
  }
  struct Contender {
    const char* name;
    const Numbers& numbers;
  } contenders[] = {{"direct, loopback", loopback},
                    {"direct, by the cable", direct},
                    {"nginx, stream proxy", proxy},
                    {"the gate", through}};
  const std::string streams = fmt::format("One stream of {} MiB", options.bytes >> 20);
  for (const auto& [name, n] : contenders) report.value(streams, name, n.stream.p50(), "MB/s");
  const std::string rates = "Connections one after the other: connect, one byte there and back, close";
  for (const auto& [name, n] : contenders) report.value(rates, name, n.rate.p50(), "a second");
  const std::string latencies = "Connect and one byte there and back";
  for (const auto& [name, n] : contenders) report.timing(latencies, name, n.latency);
  report.goal("nginx / gate, throughput (the gate ≥ 0.8× nginx)", paired_ratio(proxy.stream, through.stream), 1.25,
              fmt::format("the gate has {:.2f}×", paired_ratio(through.stream, proxy.stream)));
  report.goal("nginx / gate, connections a second (the gate ≥ 0.8× nginx)", paired_ratio(proxy.rate, through.rate),
              1.25, fmt::format("the gate has {:.2f}×", paired_ratio(through.rate, proxy.rate)));
  report.goal("added latency p50, ms, over loopback", (through.latency.p50() - loopback.latency.p50()) / 1000, 0.3,
              fmt::format("nginx adds {:.2f}", (proxy.latency.p50() - loopback.latency.p50()) / 1000));
  return {};
}

// Bytes of memory that are this process's own.
double memory_of(pid_t pid) {
  auto text = read_file(fmt::format("/proc/{}/smaps_rollup", pid)).value_or("");
  double kib = 0;
  for (const char* part : {"Private_Clean:", "Private_Dirty:"})
    if (size_t at = text.find(part); at != std::string::npos) kib += std::atof(text.c_str() + at + std::strlen(part));
  return kib * 1024;
}
double cpu_micros_of(pid_t pid) {
  auto text = read_file(fmt::format("/proc/{}/schedstat", pid)).value_or("0");
  return std::atof(text.c_str()) / 1000;
}

Result<void> bench_idle(world::World& all, const Options& options, Report& report) {
  if (options.idle == 0) return {};
  std::vector<world::Box> boxes;
  boxes.reserve(static_cast<size_t>(options.idle) + 1);
  boxes.push_back(all.box("allow a.example"));
  double before = memory_of(all.gate());
  if (before == 0) return fail(Code::unavailable, "the kernel does not tell the memory of the gate");
  for (int i = 0; i < options.idle; ++i) boxes.push_back(all.box("allow a.example"));
  double idle = (memory_of(all.gate()) - before) / options.idle / 1024;
  // All of them asked something once, and are idle again.
  for (const auto& box : boxes)
    if (box.run([] { return world::talk("a.example", kEchoPort, "x"); }) != "x")
      return fail(Code::internal, "one of many sandboxes does not get out");
  while (all.pending_events()) all.drop_event();
  double used = (memory_of(all.gate()) - before) / options.idle / 1024;
  double cpu = cpu_micros_of(all.gate());
  ::poll(nullptr, 0, 5000);
  cpu = (cpu_micros_of(all.gate()) - cpu) / 5e6 * 100;
  const std::string group = fmt::format("{} sandboxes with a policy, each in a namespace of its own", options.idle);
  report.value(group, "memory of the gate per sandbox that never spoke", idle, "KiB");
  report.value(group, "memory of the gate per sandbox that spoke once", used, "KiB");
  report.value(group, "processor time of the gate while nobody speaks", cpu, "%", "of one core, over 5 s");
  report.goal(fmt::format("memory of the gate per sandbox, {} idle, KiB", options.idle), std::max(idle, used), 50);
  return {};
}

Result<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--quick")
      options.mode = "quick", options.rounds = 3, options.bytes = 256 << 20, options.idle = 200,
      options.requests = 5000;
    else if (word == "--full")
      options.mode = "full", options.rounds = 9;
    else if (word == "--rate")
      options.mode = "rate", options.rounds = 10, options.bytes = 1 << 20, options.idle = 0, options.requests = 0;
    else if (word == "--inside")
      options.mode = "inside", options.rounds = 3, options.inside_only = true;
    else if (word == "--json" && i + 1 < argc)
      options.json = argv[++i];
    else if (word == "--table" && i + 1 < argc)
      options.table = argv[++i];
    else
      return fail(Code::invalid,
                  "unexpected '" + word + "' (known: --quick --full --rate --inside --json FILE --table FILE)");
  }
  return options;
}

Result<void> run(int argc, char** argv) {
  ISOLA_TRY(Options options, parse(argc, argv));
  if (::geteuid() != 0) return fail(Code::denied, "must run as root");
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  Report report;
  world::World all;
  all.outside->set("a.example", {"203.0.113.10"});
  bool whole = true;
  auto inside = [](world::World&, const Options& is, Report& to) -> Result<void> {
    return is.requests == 0 ? Result<void>() : bench_inside(is.rounds, is.requests, to);
  };
  auto scanner = [](world::World&, const Options& is, Report& to) -> Result<void> {
    return is.requests == 0 ? Result<void>() : bench_scanner(is.rounds, is.bytes / 4, to);
  };
  auto ledger = [](world::World&, const Options& is, Report& to) -> Result<void> {
    return is.requests == 0 ? Result<void>() : bench_ledger(is.rounds, is.requests, to);
  };
  using Part = Result<void> (*)(world::World&, const Options&, Report&);
  for (Part part : {Part(bench_forwarding), Part(bench_idle), Part(inside), Part(scanner), Part(ledger)}) {
    if (options.inside_only && part != Part(inside)) continue;
    if (auto done = part(all, options, report); !done) {
      report.note("FAILED: " + done.error().message);
      whole = false;
    }
  }
  std::string table = report.table();
  std::fputs(table.c_str(), stdout);
  if (!options.table.empty()) ISOLA_CHECK(replace_file(options.table, table));
  if (!options.json.empty()) ISOLA_CHECK(report.write_json(options.json, options.mode));
  if (!whole) return fail(Code::internal, "some measurements failed: see the notes");
  return {};
}

}  // namespace
}  // namespace isola::bench

int main(int argc, char** argv) {
  auto done = isola::bench::run(argc, argv);
  if (!done) std::fprintf(stderr, "isola-gate-bench: %s\n", done.error().text().c_str());
  return done ? 0 : 1;
}
