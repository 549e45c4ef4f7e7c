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
class Metrics;
class Tokens;
class Watchers;

class Envd {
 public:
  Envd(std::shared_ptr<sandbox::Service> service, std::shared_ptr<const Tokens> tokens,
       std::shared_ptr<Metrics> metrics);
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
  std::shared_ptr<Metrics> metrics_;
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
// What a call says that could not bring it back: 429 or 503 with the reason where the next one may, else as gone().
void not_woken(sandbox::Service& service, http::Exchange& ex, const sandbox::BoxPtr& box, const Error& error);
bool may_come_back(sandbox::Service& service, const sandbox::BoxPtr& box, const Error& error);
// Ended or paused under a call that failed: then the failure is not the call's own doing.
Task<bool> left_under(sandbox::BoxPtr box);
// What a call says whose sandbox went away under it: a reset where an answer has begun, since an orderly end would be
// taken for the call's own; else what everybody is told of one that is not there.
void cut_off(http::Exchange& ex, const sandbox::BoxPtr& box);
// Paused, and of those that the next call resumes: with its memory alone, since of files only whoever connects knows
// that nothing runs any more.
bool may_wake(sandbox::Service& service, const sandbox::BoxPtr& box);
// Resumes one of those, for as long as it had, and five minutes at least: a call finds it there, whatever was said when
// it was made. Others stay as they are.
Task<Result<void>> wake(sandbox::Service& service, sandbox::BoxPtr box);

}  // namespace isola::e2b
