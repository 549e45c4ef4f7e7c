// A connection to a service inside: its channel as it is, or with TLS in it. What TLS hides from the link's own search
// is searched here, as it leaves.
//
//   ISOLA_CO_TRY(LinePtr line, co_await Line::secure(Line::wire(channel), box, "localhost"));
//   ISOLA_CO_CHECK(co_await line->write("GET / …"));
//   while (auto text = co_await line->read()) …
//   if (auto why = line->broken()) …                        // that was not all of it
//
// With TLS whoever reads has things to send, too, and never waits for them to be taken: else two ends that both wait
// for room would wait for ever. What is to be sent is put into an outbox, which somebody else empties; whoever writes
// waits for that, and one that grows all the same ends the line.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "dialect/shared/tls_client.h"
#include "sandbox/guest_link.h"
#include "sandbox/sieve.h"

namespace isola::dialect {

class Line;
using LinePtr = std::shared_ptr<Line>;

// What a line goes over: a channel, or what a test plays. As the channel's own.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual Task<std::optional<std::string>> read_for(std::chrono::milliseconds time) = 0;
  virtual Task<std::optional<std::string>> read_frame_for(std::chrono::milliseconds time) = 0;
  virtual Task<Result<void>> write(std::string_view bytes) = 0;
  virtual void close_write() = 0;
  virtual void cancel() = 0;
  virtual Task<Result<std::string>> end() = 0;
  virtual std::optional<Error> kept_back() const = 0;
};
using WirePtr = std::shared_ptr<Wire>;

// One coroutine reads and one writes, on one thread.
class Line {
 public:
  // With TLS.
  struct Limits {
    // Of its silence: until TLS is agreed on, until it takes what it is sent, until it goes once all was said.
    std::chrono::milliseconds shake = std::chrono::seconds(30), take = std::chrono::minutes(2),
                              linger = std::chrono::seconds(30);
    size_t unasked = 64 << 10;  // bytes to be sent that nobody waits for: alerts and the like
  };

  static WirePtr wire(sandbox::ChannelPtr channel);
  explicit Line(WirePtr wire) : wire_(std::move(wire)) {}
  // Any failure is the service's: it does not speak TLS, or nothing at all.
  static Task<Result<LinePtr>> secure(WirePtr wire, sandbox::BoxPtr box, std::string host) {
    return secure(std::move(wire), std::move(box), std::move(host), Limits());
  }
  static Task<Result<LinePtr>> secure(WirePtr wire, sandbox::BoxPtr box, std::string host, Limits limits);
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  // As the channel's own.
  Task<std::optional<std::string>> read();
  Task<std::optional<std::string>> read_for(std::chrono::milliseconds time);
  Task<std::optional<std::string>> read_frame_for(std::chrono::milliseconds time);
  // With TLS one that has said its last word is let go after a while, whether it goes or not: nobody reads any more.
  Task<Result<std::string>> end();
  // Why what was read is not all of it: it was kept back, or TLS failed.
  std::optional<Error> broken() const;
  Task<Result<void>> write(std::string_view bytes);
  Task<void> close_write();
  void cancel();

 private:
  struct Outbox;
  static Task<void> empty(std::shared_ptr<Outbox> outbox);
  Task<std::optional<std::string>> read_secure(std::chrono::milliseconds time);
  Task<Result<std::string>> sift(std::string_view text, bool last);
  Task<void> send();  // begins to, and does not wait
  Task<Result<void>> drained();
  void fail_with(Error why);

  WirePtr wire_;
  std::optional<TlsClient> tls_;
  std::optional<sandbox::Sieve> sieve_;
  std::shared_ptr<Outbox> outbox_;
  Limits limits_;
  bool over_ = false;  // nothing more is read
  std::optional<Error> broken_;
};

}  // namespace isola::dialect
