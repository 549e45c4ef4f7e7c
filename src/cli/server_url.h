// Where the server of a data directory answers: DIR/server.url holds its URL, and the server holds a record lock on
// DIR/server.lock for as long as it lives. So a URL that a killed server left behind is never believed: by then its
// port, and with it whatever the command line would say there, may be somebody else's. The lock is for the owner of the
// directory alone; others read the URL, and have no key that they could say there by mistake.
//
//   auto url = find_server_url("/var/lib/isola");       // nothing: no server runs there
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/error.h"
#include "base/fd.h"

namespace isola::cli {

std::optional<std::string> find_server_url(const std::string& data_dir);
// Its process.
std::optional<pid_t> find_server(const std::string& data_dir);

// The server's side. claim() belongs into the process that will serve (a fork does not inherit the lock).
class ServerUrl {
 public:
  // Code::exists: another server runs on that directory.
  static Result<ServerUrl> claim(const std::string& data_dir);
  ~ServerUrl();
  ServerUrl(ServerUrl&&) noexcept = default;
  ServerUrl& operator=(ServerUrl&&) noexcept = default;

  Result<void> publish(const std::string& url);  // works without privileges, too

 private:
  ServerUrl(Fd file, Fd lock) : file_(std::move(file)), lock_(std::move(lock)) {}
  Fd file_, lock_;
};

}  // namespace isola::cli
