// A connection to a service inside: its channel as it is, or with TLS in it. What TLS hides from the link's own search
// is searched here, as it leaves.
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

// One coroutine reads and one writes, on one thread.
class Line {
 public:
  explicit Line(sandbox::ChannelPtr channel) : channel_(std::move(channel)) {}
  // Any failure is the service's: it does not speak TLS, or nothing at all.
  static Task<Result<LinePtr>> secure(sandbox::ChannelPtr channel, sandbox::BoxPtr box, std::string host);

  // As the channel's own.
  Task<std::optional<std::string>> read();
  Task<std::optional<std::string>> read_for(std::chrono::milliseconds time);
  Task<std::optional<std::string>> read_frame_for(std::chrono::milliseconds time);
  Task<Result<std::string>> end() { return channel_->end(); }
  std::optional<Error> kept_back() const;
  Task<Result<void>> write(std::string_view bytes);
  Task<void> close_write();
  void cancel() { channel_->cancel(); }

 private:
  Task<std::optional<std::string>> read_secure(std::chrono::milliseconds time);
  Task<Result<void>> flush();

  sandbox::ChannelPtr channel_;
  std::optional<TlsClient> tls_;
  std::optional<sandbox::Sieve> sieve_;
  std::string out_;  // on its way, by whoever is at it
  bool flushing_ = false, over_ = false;
  std::optional<Error> kept_back_;
};

}  // namespace isola::dialect
