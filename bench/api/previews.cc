// A web server inside, reached through the server and the guest, beside the same program outside on loopback.
#include <fmt/format.h>
#include <unistd.h>

#include "base/file.h"
#include "bench/api/world.h"

namespace isola::bench {

namespace {

constexpr uint64_t kBig = 256 << 20;

// One thread, keep-alive: /small says two bytes, /big sends 256 MiB. As little Python as the smallest template has.
constexpr const char* kProgram = R"py(
import select, socket, sys
big = bytes(1 << 20)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(64)
peers = {}
while True:
    for one in select.select([listener, *peers], [], [])[0]:
        if one is listener:
            peer, _ = listener.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peers[peer] = b""
            continue
        try:
            piece = one.recv(65536)
        except OSError:
            piece = b""
        if not piece:
            peers.pop(one)
            one.close()
            continue
        peers[one] += piece
        if b"\r\n\r\n" not in peers[one]:
            continue
        path = peers[one].split(b" ")[1]
        peers[one] = b""
        try:
            if path == b"/big":
                one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (256 << 20))
                for _ in range(256):
                    one.sendall(big)
            else:
                one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except OSError:
            peers.pop(one)
            one.close()
)py";

Result<double> get(http::Client& client, const std::string& target, uint64_t size) {
  uint64_t seen = 0;
  auto start = Clock::now();
  ISOLA_TRY(auto reply, client.send({.target = target, .sink = [&](std::string_view piece) -> Result<void> {
                                       seen += piece.size();
                                       return {};
                                     }}));
  double took = micros_since(start);
  if (reply.status != 200 || seen != size)
    return fail(Code::internal, fmt::format("{}: {} after {} bytes: {}", target, reply.status, seen, reply.body));
  return took;
}

Result<void> wait_for(http::Client& client, const std::string& target) {
  for (int i = 0; i < 2000; ++i) {
    if (get(client, target, 2)) return {};
    ::usleep(10'000);
  }
  return fail(Code::timeout, "the web server does not answer");
}

}  // namespace

Result<void> bench_previews(const World& world, Report& report, Mode mode) {
  std::string script = world.folder() + "/web.py";
  ISOLA_CHECK(replace_file(script, kProgram));
  ISOLA_TRY(Child outside, Child::start({"python3", script, "18991"}, world.folder() + "/web.out"));
  http::Client direct(*http::parse_url("http://127.0.0.1:18991"));
  ISOLA_CHECK(wait_for(direct, "/small"));

  auto client = world.client();
  ISOLA_TRY(std::string id, world.create(client));
  std::string box = "/v1/sandboxes/" + id;
  ISOLA_CHECK(client.send({.method = "PUT", .target = box + "/files?path=/srv/web.py", .body = kProgram}));
  ISOLA_CHECK(client.send({.method = "POST",
                           .target = box + "/commands",
                           .body = R"({"argv":["python3","/srv/web.py","8000"],"background":true})"}));
  std::string port = box + "/ports/8000";
  ISOLA_CHECK(wait_for(client, port + "/small"));

  Samples plain, through, plain_big, through_big;
  for (int i = -10; i < times(mode, 200, 1000, 4000); ++i) {
    ISOLA_TRY(double a, get(direct, "/small", 2));
    ISOLA_TRY(double b, get(client, port + "/small", 2));
    if (i >= 0) plain.add(a), through.add(b);
  }
  for (int i = 0; i < times(mode, 2, 5, 9); ++i) {
    ISOLA_TRY(double a, get(direct, "/big", kBig));
    ISOLA_TRY(double b, get(client, port + "/big", kBig));
    plain_big.add(static_cast<double>(kBig) / a), through_big.add(static_cast<double>(kBig) / b);
  }
  const std::string group = "API: a port inside, through the server and the guest";
  report.timing(group, "GET of two bytes, directly on loopback", plain, "one kept connection");
  report.timing(group, "GET of two bytes, through", through, "one kept connection; each request dials inside");
  report.value(group, "added latency, p50", through.p50() - plain.p50(), "µs");
  report.value(group, "256 MiB, directly on loopback", plain_big.p50(), "MB/s");
  report.value(group, "256 MiB, through", through_big.p50(), "MB/s",
               fmt::format("{:.2f} of direct", paired_ratio(through_big, plain_big)));
  return world.remove(client, id);
}

}  // namespace isola::bench
