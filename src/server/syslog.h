// The ledger, told to a syslog daemon or collector as it grows (RFC 5424): each entry one message, its JSON as text.
//
//   syslog = "unix:/dev/log", "udp:log.example.org:514" or "tcp:log.example.org:601"
//
// In order, and each at least once: how far it got is kept in a file, and a collector that is away is tried again until
// it is back (over UDP nobody can tell). Nobody who writes to the ledger waits for it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "ledger/event.h"

namespace isola::server {

struct SyslogTarget {
  enum class Way : uint8_t { local, udp, tcp };
  Way way = Way::local;
  std::string host;  // or the path of the socket
  std::string port;
};
Result<SyslogTarget> parse_syslog(std::string_view text);

// <PRI>1 TIME HOST isola PID KIND - JSON. Facility 13 (log audit); what was denied, found or failed is a warning.
std::string to_syslog(const ledger::Event& event, std::string_view host, int pid);

class SyslogExporter {
 public:
  // Entries after a number, in order; at most so many.
  using Read = std::function<Result<std::vector<ledger::Event>>(uint64_t after, size_t most)>;

  SyslogExporter(SyslogTarget target, std::string position_file);
  ~SyslogExporter();
  SyslogExporter(const SyslogExporter&) = delete;
  SyslogExporter& operator=(const SyslogExporter&) = delete;

  // Where there is no position yet, only what comes after `newest` is told.
  void start(Read read, uint64_t newest);
  void written(uint64_t newest);  // any thread; returns at once
  void stop();                    // `read` is not called any more; what was not told is told the next time
  uint64_t position() const;

 private:
  void run();
  Result<void> send_some();
  Result<void> connect();
  Result<void> send(const std::string& message);

  const SyslogTarget target_;
  const std::string position_file_;
  std::string host_;
  Read read_;
  Fd socket_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  uint64_t newest_ = 0, position_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace isola::server
