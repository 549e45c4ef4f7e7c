// isola-gate-bench: the gate beside a direct connection and nginx as a stream proxy, in one run.
//
// Direct and nginx are dialled in the namespace where the gate lives, the gate from inside a sandbox; the servers are
// behind the same cable for all three. Prints rates and ratios; the better of three rounds each, taken in turn.
#include <algorithm>
#include <cstdio>

#include "base/file.h"
#include "gate/test_world.h"

using namespace isola;
using namespace isola::gate;
using namespace isola::gate::testing;

namespace {

constexpr size_t kBytes = 1ull << 30;
constexpr int kConnections = 250;  // a round: sandboxes may begin about a thousand at once

double seconds_of(const std::function<void()>& body) {
  auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// "throughput in MB/s, connections a second, median of connect and one byte there and back in µs"
std::string measure(const std::string& address, uint16_t source_port, uint16_t echo_port) {
  double stream = seconds_of([&] {
    Fd fd = dial(address, source_port);
    size_t left = kBytes;
    if (::send(fd.get(), &left, sizeof left, MSG_NOSIGNAL) != sizeof left) std::abort();
    static char buffer[1 << 20];
    for (ssize_t n; left > 0 && (n = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) left -= static_cast<size_t>(n);
    if (left > 0) std::abort();
  });
  std::vector<double> each;
  double all = seconds_of([&] {
    for (int i = 0; i < kConnections; ++i)
      each.push_back(seconds_of([&] {
        Fd fd = dial(address, echo_port);
        char c = 'x';
        if (::send(fd.get(), &c, 1, MSG_NOSIGNAL) != 1 || ::recv(fd.get(), &c, 1, 0) != 1) std::abort();
      }));
  });
  std::sort(each.begin(), each.end());
  return std::to_string(static_cast<double>(kBytes) / stream / 1e6) + " " + std::to_string(kConnections / all) + " " +
         std::to_string(each[each.size() / 2] * 1e6);
}

struct Numbers {
  double stream = 0, rate = 0, latency = 1e9;
  void take(const std::string& text) {
    double a = 0, b = 0, c = 0;
    if (std::sscanf(text.c_str(), "%lf %lf %lf", &a, &b, &c) != 3) std::abort();
    stream = std::max(stream, a), rate = std::max(rate, b), latency = std::min(latency, c);
  }
};

}  // namespace

int main() {
  World world;
  world.outside->set("a.example", {"203.0.113.10"});
  char folder[] = "/tmp/isola-gate-bench-XXXXXX";
  if (!::mkdtemp(folder)) return 1;
  std::string config = std::string(folder) + "/nginx.conf";
  (void)replace_file(config,
                     "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off; worker_processes 1; "
                     "error_log stderr crit; pid "s +
                         folder +
                         "/pid;\nevents { worker_connections 4096; }\nstream {\n"
                         "  server { listen 127.0.0.1:19000; proxy_pass 203.0.113.10:9000; }\n"
                         "  server { listen 127.0.0.1:19007; proxy_pass 203.0.113.10:7; }\n}\n");
  pid_t nginx = world.spawn_plainly({"nginx", "-c", config});
  for (int i = 0; i < 500 && world.run_plainly([] { return dial("127.0.0.1", 19007) ? "y"s : "n"s; }) != "y"; ++i)
    ::poll(nullptr, 0, 10);

  Numbers direct, proxy, through;
  for (int round = 0; round < 3; ++round) {
    direct.take(world.run_plainly([] { return measure("203.0.113.10", kSourcePort, kEchoPort); }));
    proxy.take(world.run_plainly([] { return measure("127.0.0.1", 19000, 19007); }));
    Box box = world.box("allow a.example\nlimit connections-per-second 100000");
    through.take(box.run([] { return measure(resolve("a.example"), kSourcePort, kEchoPort); }));
    world.remove(box);
    while (world.pending_events()) world.drop_event();
  }
  ::kill(nginx, SIGTERM);
  ::waitpid(nginx, nullptr, 0);
  ::unlink(config.c_str()), ::rmdir(folder);
  auto line = [](const char* name, const Numbers& n) {
    std::printf("%-8s %8.0f MB/s  %8.0f connections/s  %8.0f us\n", name, n.stream, n.rate, n.latency);
  };
  line("direct", direct), line("nginx", proxy), line("gate", through);
  std::printf("gate / nginx: throughput %.2f, connections %.2f; added latency p50 %.3f ms\n",
              through.stream / proxy.stream, through.rate / proxy.rate, (through.latency - direct.latency) / 1000);
}
