// The data plane: what clients believe to be a daemon inside each sandbox, on port 49983. Nothing of the kind runs
// there; the host answers, and our guest does the work.
//
//   POST /process.Process/Start …            calls and streams by the Connect protocol (connect.h)
//   POST /filesystem.Filesystem/Stat …
//   GET  /files?path=…   POST /files         whole files, also by signed URL
//   GET  /health /envs /metrics
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "dialect/e2b/call.h"
#include "dialect/e2b/throttle.h"
#include "http/router.h"
#include "sandbox/service.h"

namespace isola::e2b {

class Launches;
class Tokens;
class Watchers;

class Envd {
 public:
  Envd(std::shared_ptr<sandbox::Service> service, std::shared_ptr<const Tokens> tokens);
  ~Envd();

  // Answers a request that is for port 49983 of this sandbox.
  Task<void> serve(http::Exchange& ex, std::string sandbox);
  // Whose token signed this request for /files. denied: nobody's. exhausted: to find out takes work that grows with
  // the sandboxes, whoever asks, so only so much of it is done in a second.
  Result<std::string> signed_for(const http::Exchange& ex);

 private:
  // One file each.
  void add_process();
  void add_filesystem();
  void add_watchers();
  void add_files();
  void add_state();

  Task<bool> guard(http::Exchange& ex);
  // Routes of the Connect protocol.
  enum class Size { settings, input };  // what its message may hold
  void call(const char* path, Unary step, Size size = Size::settings);
  void stream(const char* path, Streaming step);
  void client_stream(const char* path, Listening step);

  std::shared_ptr<sandbox::Service> service_;
  std::shared_ptr<const Tokens> tokens_;
  Throttle search_{50'000};  // signatures tried
  std::shared_ptr<Launches> launches_;
  std::shared_ptr<Watchers> watchers_;
  http::Router router_;
  http::RouteGroup* rpc_;
};

// 503, while the server does not know its sandboxes yet: come again.
void starting(http::Exchange& ex, const std::string& sandbox);
// 502, as E2B's edge says that a sandbox is not there (any more).
void gone(http::Exchange& ex, const std::string& sandbox);
bool is_running(const sandbox::BoxPtr& box);
// Paused, and of those that the next call resumes.
bool may_wake(const sandbox::BoxPtr& box);

}  // namespace isola::e2b
