#include "cli/port_forward.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/table.h"
#include "http/message.h"
#include "http/text.h"

namespace isola::cli {

namespace {

using http::BlockingStream;
using namespace std::chrono_literals;

constexpr int kMaxConnections = 256;
constexpr size_t kMaxHead = 64 << 10;

void answer(int fd, int status, const std::string& why) {
  std::string body = "isola: " + why + "\n";
  (void)write_all(fd, fmt::format("HTTP/1.1 {} Error\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n"
                                  "Connection: close\r\n\r\n{}",
                                  status, body.size(), body));
}

// The first head, and what came behind it.
Result<std::string> read_head(int fd, std::string& rest) {
  http::HeadScanner scan;
  std::string bytes;
  for (;;) {
    char buffer[16 << 10];
    ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(Code::unavailable, "the caller left");
    bytes.append(buffer, static_cast<size_t>(n));
    auto state = scan.feed(bytes);
    if (state == http::HeadScanner::State::bad || bytes.size() > kMaxHead)
      return fail(Code::invalid, "only HTTP passes here; other protocols do not yet");
    if (state == http::HeadScanner::State::more) continue;
    rest = bytes.substr(scan.size());
    bytes.resize(scan.size());
    return bytes;
  }
}

// Bytes both ways, until both have ended or one broke.
void pump(int local, BlockingStream& server) {
  std::vector<char> buffer(64 << 10);
  bool up = true;
  for (;;) {
    // First what TLS may hold already.
    auto n = server.read(buffer, 0ms);
    if (n) {
      if (*n == 0) break;
      if (!write_all(local, std::string_view(buffer.data(), *n))) break;
      continue;
    }
    if (n.error().code != Code::timeout) break;
    pollfd ready[] = {{server.fd(), POLLIN, 0}, {up ? local : -1, POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0 && errno != EINTR) break;
    if (!ready[1].revents) continue;
    ssize_t got = ::recv(local, buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    if (got == 0) {
      up = false;
      continue;  // the answer may still be under way
    }
    if (!server.write(std::string_view(buffer.data(), static_cast<size_t>(got)), BlockingStream::kForever)) break;
  }
  ::shutdown(local, SHUT_RDWR);
}

void serve(Fd local, const Forward& forward) {
  std::string rest;
  auto head = read_head(local.get(), rest);
  if (!head) {
    if (head.error().code == Code::invalid) answer(local.get(), 400, head.error().message);
    return;
  }
  auto server = BlockingStream::connect(forward.server, {});
  if (!server) return answer(local.get(), 502, server.error().message);
  std::string bytes = forwarded_head(*head, forward) + rest;
  if (!(*server)->write(bytes, 60s)) return answer(local.get(), 502, "the server hung up");
  pump(local.get(), **server);
}

Result<std::pair<Fd, uint16_t>> listen_on(uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return sys_error("cannot open a socket");
  int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) < 0 || ::listen(fd.get(), 64) < 0)
    return sys_error(fmt::format("cannot listen on 127.0.0.1:{}", port));
  socklen_t size = sizeof address;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return std::pair(std::move(fd), ntohs(address.sin_port));
}

}  // namespace

std::string forwarded_head(std::string_view head, const Forward& forward) {
  std::string out;
  bool upgrade = false, first = true;
  for (std::string_view rest = head; !rest.empty();) {
    auto end = rest.find("\r\n");
    auto line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 2);
    if (line.empty()) break;
    auto name = line.substr(0, line.find(':'));
    bool connection = !first && http::equal_nocase(name, "connection");
    bool ours = !first && name.size() > 8 && http::equal_nocase(name.substr(0, 8), "x-isola-");
    upgrade = upgrade || (!first && http::equal_nocase(name, "upgrade"));
    first = false;
    if (!connection && !ours) out.append(line).append("\r\n");
  }
  out += upgrade ? "Connection: Upgrade\r\n" : "Connection: close\r\n";
  out += fmt::format("X-Isola-Sandbox: {}\r\nX-Isola-Port: {}\r\n", forward.sandbox, forward.port);
  if (!forward.token.empty()) out += fmt::format("X-Isola-Token: {}\r\n", forward.token);
  return out + "\r\n";
}

Result<void> forward_port(const Forward& forward, uint16_t local) {
  ISOLA_TRY(auto listening, listen_on(local));
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  Fd signals(::signalfd(-1, &set, SFD_CLOEXEC));
  if (!signals) return sys_error("cannot watch for signals");
  std::string url = fmt::format("http://127.0.0.1:{}", listening.second);
  if (forward.json)
    print_json({{"url", url}, {"sandbox", forward.sandbox}, {"port", forward.port}});
  else
    print(fmt::format("{} is port {} of {}; Ctrl-C ends it\n", url, forward.port, forward.sandbox));
  auto shared = std::make_shared<const Forward>(forward);
  auto open = std::make_shared<std::atomic<int>>(0);
  for (;;) {
    pollfd ready[] = {{listening.first.get(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0 && errno != EINTR) return sys_error("cannot wait for connections");
    if (ready[1].revents) return {};
    if (!ready[0].revents) continue;
    Fd local_end(::accept4(listening.first.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!local_end) continue;
    if (*open >= kMaxConnections) {
      answer(local_end.get(), 503, "too many connections at once");
      continue;
    }
    ++*open;
    // The connections end with the process.
    std::thread([shared, open, fd = local_end.release()] {
      serve(Fd(fd), *shared);
      --*open;
    }).detach();
  }
}

}  // namespace isola::cli
