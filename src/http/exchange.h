// One request and its reply, as a handler sees them. It lives on the worker of its connection; a handler is a coroutine
// there and must not block.
//
//   Task<void> rename(Exchange& ex) {
//     auto body = co_await ex.read_all(64 << 10);
//     if (!body) co_return ex.fail(body.error());
//     ex.reply(200, make_json(*body));                         // sent when the handler returns
//   }
//   Task<void> count(Exchange& ex) {                           // a stream: each write reaches the client at once
//     ex.begin(200, "text/plain");
//     for (int i = 0; i < 10; i++) {
//       std::string line = fmt::format("{}\n", i);             // g++ 12: no temporaries inside a co_await
//       if (auto sent = co_await ex.write(line); !sent) co_return;   // the client is gone or does not read
//     }
//   }
//
// A handler that returns without a reply gives a 500; one that leaves a begun reply unfinished ends it properly; one
// that must not pretend to have finished calls abort().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/task.h"
#include "http/message.h"
#include "http/url.h"

namespace isola::http {

class Connection;
class WebSocket;
struct WebSocketOptions;
struct ErrorReply;
struct Route;

// The bytes of a connection after its head, both ways: what a proxy of upgraded connections needs. One read and one
// write may be under way at the same time.
class RawStream {
 public:
  virtual ~RawStream() = default;
  // The next bytes, empty at the end; valid until the next call.
  virtual Task<Result<std::string_view>> read_some() = 0;
  virtual Task<Result<void>> write(std::string_view bytes) = 0;
  virtual Task<Result<void>> shutdown_write() = 0;  // half close: we have no more to say
  virtual void close() = 0;
};

class Exchange {
 public:
  explicit Exchange(Connection& connection);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // ---- the request. Views live as long as the Exchange.
  std::string_view method() const;
  std::string_view path() const;                        // as sent, without the query
  std::string_view target() const;                      // path and query as sent, without a scheme and a host
  std::string_view query_text() const;                  // as sent, without the ?
  std::string_view param(std::string_view name) const;  // of the route's pattern, decoded; empty if there is none
  const Pairs& queries() const;                         // decoded; malformed ones were refused before
  std::optional<std::string_view> query(std::string_view name) const;  // the first of that name
  std::string_view header(std::string_view name) const;                // the first of that name, or empty
  std::span<const Field> headers() const;                              // all, in order, as sent
  std::string_view host() const;                                       // lower case, without the port
  std::string_view host_header() const;                                // as sent
  std::string_view origin() const;
  std::string_view peer() const;         // 127.0.0.1 or ::1
  std::string_view request_id() const;   // may be the client's own word
  bool waits_to_send() const;            // its body: until it is read, or answered
  uint64_t number() const;               // ours: no other exchange of this process has it; never 0
  bool secure() const;                   // it came over TLS
  bool wants_upgrade() const;            // Connection: upgrade is there
  Result<void> check_websocket() const;  // whether upgrade() to one could succeed
  const Route* route() const;            // the route that matched, if one did

  // Words that filters leave for handlers (project, key id …). Few, so a list.
  void note(std::string name, std::string value);
  std::string_view noted(std::string_view name) const;

  // ---- its body. The next piece, decoded from gzip or deflate if it came so, empty at the end; valid until the next
  // call or gone(). Errors: too large (fail() makes a 413 of it), malformed (400), too slow (408), gone.
  Task<Result<std::string_view>> read_some();
  Task<Result<std::string>> read_all(size_t max);
  std::optional<uint64_t> body_length() const;  // where the client said it and nothing is encoded
  bool has_body() const;
  void keep_encoding();             // before the first piece: a proxy wants the body as it came
  void body_limit(uint64_t bytes);  // instead of the route's; kNoLimit for streams
  // Without a byte of it, instead of the server's: for slow streams.
  void body_time(std::chrono::milliseconds time);

  // ---- a whole reply: kept until the handler returns or send() is called; a second one replaces the first. Large
  // compressible ones are compressed for those who ask for it. One for which the caller has too many unread becomes a
  // 429.
  void reply(int status, std::string body = {}, std::string_view type = "application/json");
  void set_header(std::string_view name, std::string_view value);        // for reply() and begin(), before them
  void fail(const Error& error, std::optional<int> retry_after_s = {});  // in the error shape of the route's group
  void fail(const ErrorReply& reply);
  Task<Result<void>> send();  // now, for handlers that have more to do afterwards
  bool replied() const;       // reply, begin, fail or a take-over happened
  int status() const;         // of that reply, 0 if there is none yet

  // ---- a streamed reply. The head goes out with the first write (an empty one sends the head alone). write() returns
  // when the kernel took everything: that is the back-pressure. Without a length it is chunked.
  void begin(int status, std::string_view type, std::optional<uint64_t> length = {});
  // The same with a head that is passed on from elsewhere: hop-by-hop fields are left out, framing and request id
  // added.
  void begin_raw(int status, std::string_view reason, std::span<const Field> headers, std::optional<uint64_t> length);
  Task<Result<void>> write(std::string_view bytes);
  // Without a byte taken by the client, instead of the server's: for readers that may pause. A reset is noticed all the
  // same.
  void write_time(std::chrono::milliseconds time);
  Task<Result<void>> finish();
  // Cuts the connection with a reset, so that nobody takes what was sent for the whole.
  void abort();
  // Completes when the client has hung up. For waits: co_await (ex.gone() || events.next()).
  Task<void> gone();
  // The same for long waits before the reply: one that has only ended its side (`nc -N`) has not left. It is asked now
  // and then by a `100 Continue`, which every client passes over. Of TLS and HTTP/1.0, and once the reply has begun, it
  // is gone().
  Task<void> left();
  // Completes when nothing can reach the client any more: its connection was reset, or failed. One that has only ended
  // its side (`nc -N`) waits for the answer. Who hung up looks the same until something is sent: for short waits alone.
  Task<void> cut_off();

  // ---- leaving HTTP. After either, this exchange has no reply of its own.
  Task<Result<std::unique_ptr<WebSocket>>> upgrade(const WebSocketOptions& options);
  Result<std::unique_ptr<RawStream>> take_over();
  std::string_view raw_head() const;  // the request's head as it came, with its blank line

  static constexpr uint64_t kNoLimit = UINT64_MAX;

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace isola::http
