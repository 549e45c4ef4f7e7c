// For tests of this room and of those above it: a server on a free port of the loopback, and a client that sends
// exactly the bytes it is told to.
//
//   TestServer server([](Router& r) { r.add("GET", "/", hello); });
//   RawClient client(server.port());
//   client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
//   RawReply reply = client.reply();          // status, head, body
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <charconv>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "http/gzip.h"
#include "http/message.h"
#include "http/server.h"

namespace isola::http {

class TestServer {
 public:
  explicit TestServer(const std::function<void(Router&)>& routes, ServerOptions options = {}, unsigned workers = 2)
      : workers_(workers) {
    Router router;
    routes(router);
    server_ = std::make_unique<Server>(workers_, std::move(options), std::move(router));
    auto started = server_->start();
    if (!started) throw std::runtime_error(started.error().text());
    workers_.start();
  }
  ~TestServer() { server_.reset(); }
  uint16_t port() const { return server_->port(); }
  std::string url(std::string_view path = "") const {
    return "http://127.0.0.1:" + std::to_string(port()) + std::string(path);
  }
  Server& server() { return *server_; }
  Workers& workers() { return workers_; }

 private:
  Workers workers_;
  std::unique_ptr<Server> server_;
};

// What a gzip holds; words that say so where it is none, or not all of one.
inline std::string unpacked(std::string_view packed) {
  Inflater inflater;
  std::string out;
  for (;;) {
    auto piece = inflater.feed(packed);
    if (!piece) return "not gzip";
    out += piece->data;
    packed.remove_prefix(piece->used);
    if (piece->used == 0 && piece->data.empty()) break;
  }
  return inflater.end() ? out : "not whole";
}

struct RawReply {
  int status = 0;  // 0: the connection ended before a whole head
  std::string head, body;
  bool whole = false;  // the body ended as its head said
  std::vector<Field> fields;
  std::string_view header(std::string_view name) const { return find_field(fields, name); }
};

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer) ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) < 0) throw std::runtime_error("connect");
  }
  int fd() const { return fd_.get(); }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // The next bytes; empty at the end, or on a reset (see was_reset), or after ten seconds of nothing.
  std::string some() {
    pollfd p{fd_.get(), POLLIN, 0};
    if (::poll(&p, 1, 10'000) <= 0) return {};
    std::string bytes(64 << 10, '\0');
    ssize_t n = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
    reset_ = n < 0 && errno == ECONNRESET;
    bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return bytes;
  }
  bool was_reset() const { return reset_; }
  bool at_end() { return rest_.empty() && some().empty(); }
  void shutdown_write() { ::shutdown(fd_.get(), SHUT_WR); }
  void close() { fd_.reset(); }
  std::string& rest() { return rest_; }  // read, and not part of a reply yet

  RawReply reply(bool to_head = false) {
    RawReply out;
    for (;;) {
      HeadScanner scan;
      while (scan.feed(rest_) != HeadScanner::State::complete) {
        std::string more = some();
        if (more.empty()) return out;
        rest_ += more;
      }
      parser_.reset();
      if (to_head) parser_.no_body();
      auto parsed = parser_.head(std::string_view(rest_).substr(0, scan.size()));
      rest_.erase(0, scan.size());
      if (!parsed) throw std::runtime_error("the reply is malformed: " + parsed.error().message);
      if (parser_.status != 100) break;
      continues_++;
    }
    out.status = parser_.status;
    out.head = parser_.text();
    out.fields = parser_.fields;
    while (!parser_.done()) {
      auto piece = parser_.body(rest_);
      if (!piece) throw std::runtime_error("the reply is malformed: " + piece.error().message);
      out.body += piece->data;
      rest_.erase(0, piece->used);
      if (piece->used > 0) continue;
      std::string more = some();
      if (more.empty()) {
        out.whole = parser_.end_of_input().has_value();
        return out;
      }
      rest_ += more;
    }
    out.whole = true;
    return out;
  }
  RawReply get(std::string_view path, std::string_view headers = {}) {
    send("GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers) + "\r\n");
    return reply();
  }
  int continues() const { return continues_; }

 private:
  Fd fd_;
  std::string rest_;
  ResponseParser parser_;
  bool reset_ = false;
  int continues_ = 0;
};

}  // namespace isola::http
