// A TCP connection, plain or under TLS, for programs that wait: the command line and tests.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/fd.h"
#include "http/url.h"

namespace isola::http {

struct ClientOptions {
  std::chrono::milliseconds connect_time{10'000};
  std::chrono::milliseconds io_time{60'000};  // without a byte; 0: for ever
  std::string ca_file;                        // PEM; empty: the machine's
  std::string more_authorities = {};          // PEM: to be believed beside those
  bool verify = true;                         // false: whoever answers is believed. For tests of one's own server only
  // Asked of each address that the name has, before it is dialled; empty: all of them.
  std::function<bool(const sockaddr*)> may_dial = {};
};

class BlockingStream {
 public:
  static Result<std::unique_ptr<BlockingStream>> connect(const Url& url, const ClientOptions& options);
  ~BlockingStream();
  BlockingStream(const BlockingStream&) = delete;
  BlockingStream& operator=(const BlockingStream&) = delete;

  static constexpr std::chrono::milliseconds kForever{-1};
  // At least one byte, or 0 at the end. Code::timeout when nothing came in time (0 ms: only what is there already).
  Result<size_t> read(std::span<char> into, std::chrono::milliseconds time);
  Result<void> write(std::string_view bytes, std::chrono::milliseconds time);
  void shutdown_write();
  int fd() const { return fd_.get(); }

 private:
  struct Tls;
  BlockingStream(Fd fd, std::unique_ptr<Tls> tls);
  Result<void> wait(short events, std::chrono::milliseconds time);
  Fd fd_;
  std::unique_ptr<Tls> tls_;
};

}  // namespace isola::http
