// One worker's requests, for whoever logs them: some at once and a little later. Writing a line takes as long as many
// an answer, and a caller on the same core would wait for it. kill -9 takes those of the last milliseconds.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace isola::http {

struct AccessEntry {
  std::string method, path, peer, request_id, host;
  int status = 0;                        // 0: the client left or was cut before there was one
  uint64_t bytes_in = 0, bytes_out = 0;  // of bodies, as they went over the wire
  std::chrono::system_clock::time_point ended;
  std::chrono::nanoseconds duration{};
};

using AccessSink = std::function<void(std::span<const AccessEntry>)>;

// Touched on its worker only.
class AccessLog {
 public:
  AccessLog(boost::asio::io_context& io, const AccessSink& sink) : sink_(sink), timer_(std::in_place, io) {}
  explicit operator bool() const { return static_cast<bool>(sink_); }
  void add(AccessEntry entry);
  void flush();
  void stop();  // from here on each is told at once

 private:
  static constexpr auto kLater = std::chrono::milliseconds(10);
  static constexpr size_t kMost = 256;

  const AccessSink& sink_;
  std::optional<boost::asio::steady_timer> timer_;  // none: stopped; it must not outlive its context
  std::vector<AccessEntry> waiting_;
};

}  // namespace isola::http
