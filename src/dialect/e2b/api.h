// The E2B dialect: what the unmodified E2B SDKs and CLI say, translated onto the sandbox service.
//
// Two planes. The control plane makes and ends sandboxes (/sandboxes, /v2/sandboxes, /templates …, X-API-Key). The data
// plane is what clients believe to be a server inside each sandbox, on port 49983 (envd.h); here the host answers it.
// A request is for a sandbox when its host is <port>-<id>.<domain>, or when its headers say so (E2b-Sandbox-Id); so one
// plain-HTTP origin serves both planes: E2B_API_URL and E2B_SANDBOX_URL are the same.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "builder/builder.h"
#include "dialect/e2b/envd.h"
#include "dialect/e2b/metrics.h"
#include "dialect/e2b/names.h"
#include "dialect/e2b/network.h"
#include "dialect/e2b/tokens.h"
#include "dialect/shared/door.h"
#include "http/exchange.h"
#include "http/router.h"
#include "sandbox/service.h"
#include "store/key_ring.h"
#include "webhook/courier.h"

namespace isola::e2b {

struct Options {
  std::vector<std::string> hosts;  // names under which the API may be called, beside addresses and localhost
  std::string domain;              // sandboxes are <port>-<id>.<domain>, the API is api.<domain>; empty: headers only
  std::shared_ptr<std::atomic<uint16_t>> port;  // what clients have to add to the domain; known once the server listens
  std::string secret;                           // access tokens are made from it
  std::shared_ptr<const Tokens> tokens = {};    // those; the Api makes them
  bool context_token = false;                   // the interpreter's routes of contexts demand one, too
  std::map<std::string, std::string> images = {};  // that builds name, and the templates that stand for them
  // The id of a project's template, by its name; the Api sets it.
  std::function<std::string(const std::string& project, const std::string& name)> template_id = {};
};

struct Subject;

class Api {
 public:
  Api(std::shared_ptr<sandbox::Service> service, std::shared_ptr<builder::Builder> builder,
      std::shared_ptr<webhook::Courier> courier, std::shared_ptr<store::KeyRing> keys, Options options);
  // After the other dialects: it looks at hosts first, and leaves them what is not its own.
  void add_to(http::Router& router);

 private:
  // One file each.
  void add_sandboxes(http::Router& router);
  void add_images(http::Router& router);  // pause, resume, fork, snapshots
  void add_templates(http::Router& router);
  void add_builds(http::Router& router);
  void add_volumes(http::Router& router);
  void add_observation(http::Router& router);  // metrics, logs, lifecycle events
  void add_webhooks(http::Router& router);
  void add_secrets(http::Router& router);
  void add_absent(http::Router& router);
  void add_traffic(http::Router& router);

  http::RouteGroup& group(http::Router& router, const char* prefix);
  std::function<Subject(const std::string& sandbox)> subjects() const;  // of lifecycle events

  std::shared_ptr<sandbox::Service> service_;
  std::shared_ptr<builder::Builder> builder_;
  std::shared_ptr<webhook::Courier> courier_;
  std::shared_ptr<store::KeyRing> keys_;
  Options options_;
  dialect::Door door_;
  std::shared_ptr<Metrics> metrics_;
  std::shared_ptr<Envd> envd_;
};

// ---- what the routes share ----

// {"code": 404, "message": …}: clients look at the code inside.
void dress(http::Exchange& ex, const http::ErrorReply& reply);

using Step = std::function<Task<Result<void>>(http::Exchange&)>;
http::Handler handled(Step step);

// The sandbox of the path's {id}, of the caller's project, while it can be used. Old clients write <id>-<client>.
Result<sandbox::BoxPtr> box_of(sandbox::Service& service, const http::Exchange& ex);
std::string plain_id(std::string_view id);

}  // namespace isola::e2b
