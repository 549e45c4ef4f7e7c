// The HTTP server: listens, speaks HTTP/1.1 with strangers, gives each request to the router.
//
//   Workers workers;
//   workers.start();
//   Server server(workers, {.listen = {"127.0.0.1:8080"}}, std::move(router));
//   ISOLA_CHECK(server.start());
//   …
//   server.stop(10s);     // no new connections; running exchanges may finish; then the rest is cut
//
// The server must be stopped before the Workers are.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "http/access_log.h"
#include "http/router.h"
#include "http/workers.h"

namespace isola::http {

struct TlsFiles {
  std::string certificate;  // PEM, with the chain
  std::string key;          // PEM
};

struct ServerLimits {
  size_t header_bytes = 64 << 10;  // more: 431
  uint64_t body_bytes = 16 << 20;  // more: 413; routes and exchanges can say otherwise
  std::chrono::milliseconds header_time{
      10'000};  // from the first byte of a head (and for the TLS handshake) to its last: 408
  // Between requests: longer than clients keep a connection for. Before the first one, and where many of the
  // connections are taken, it is the shorter of the two.
  std::chrono::milliseconds idle_time{330'000}, short_idle_time{75'000};
  std::chrono::milliseconds body_time{60'000};   // without a byte of a body that a handler waits for: 408
  std::chrono::milliseconds drain_time{5'000};   // for what is left of a body that nobody wanted: closed
  std::chrono::milliseconds write_time{60'000};  // without a byte taken by a slow reader: cut
  size_t connections = 0;                        // 0: what RLIMIT_NOFILE leaves after a reserve; more: 503
};

struct ServerOptions {
  std::vector<std::string> listen = {"127.0.0.1:0"};
  std::optional<TlsFiles> tls;
  ServerLimits limits;
  AccessSink access_log;  // called on the workers
};

// Whether a server could listen there: for whoever has much to start before it does. Waits a moment for one that was
// killed and has not let go of it yet.
Result<void> may_listen(const std::vector<std::string>& addresses);

class Server {
 public:
  Server(Workers& workers, ServerOptions options, Router router);
  ~Server();  // stops at once if nobody did
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Result<void> start();
  // The addresses that it really listens on (port 0 became a number), in the order of the options.
  std::vector<std::string> addresses() const;
  uint16_t port() const;                       // of the first
  Result<void> reload_tls();                   // new connections get the certificate that the files hold now
  void stop(std::chrono::milliseconds grace);  // from any thread but a worker
  // Cuts, from any thread and soon, every connection whose exchange under way `which` says yes to; called on the
  // workers. For callers that lost their right to what they are reading.
  void cut_if(std::function<bool(const Exchange&)> which);
  size_t connections() const;
  const Router& router() const;

  struct Core;

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace isola::http
