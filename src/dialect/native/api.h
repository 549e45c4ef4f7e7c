// The native API: /v1. Routes in one file per subject; openapi.json beside this file is the contract.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "builder/builder.h"
#include "dialect/native/fields.h"
#include "dialect/shared/cell.h"
#include "dialect/shared/door.h"
#include "http/exchange.h"
#include "http/router.h"
#include "sandbox/service.h"
#include "store/key_ring.h"

namespace isola::native {

struct Options {
  std::vector<std::string> hosts;  // names under which the API may be called, beside addresses and localhost
  std::string domain;              // of previews: <port>-<id>.<domain>; empty: none
  std::string url_secret;          // signs preview URLs
  std::string scheme = "http";     // of the URLs that we hand out
  std::shared_ptr<std::atomic<uint16_t>> port;  // likewise; known once the server listens
  // A key was revoked: what it still reads must end. Not the exchange that revoked it.
  std::function<void(const std::string& key, uint64_t except_exchange)> end_streams = {};
};

class Api {
 public:
  Api(std::shared_ptr<sandbox::Service> service, std::shared_ptr<builder::Builder> builder,
      std::shared_ptr<store::KeyRing> keys, Options options);

  // Everything of this dialect.
  void add_to(http::Router& router);

 private:
  using Task = ::isola::Task<void>;
  // One file each.
  void add_sandboxes(http::RouteGroup& group);
  void add_images(http::RouteGroup& group);
  void add_templates(http::RouteGroup& group);
  void add_volumes(http::RouteGroup& group);
  void add_secrets(http::RouteGroup& group);
  void add_discovery(http::Router& router);
  void add_commands(http::RouteGroup& group);
  void add_terminals(http::RouteGroup& group);
  void add_files(http::RouteGroup& group);
  void add_ports(http::Router& router, http::RouteGroup& group);
  void add_events(http::RouteGroup& group);
  void add_tenants(http::RouteGroup& group);
  void add_system(http::Router& router, http::RouteGroup& group);

  std::shared_ptr<sandbox::Service> service_;
  std::shared_ptr<builder::Builder> builder_;
  std::shared_ptr<store::KeyRing> keys_;
  Options options_;
  dialect::Door door_;
};

// ---- what the routes share ----

using dialect::caller_of;
using dialect::kMaxListing;
using dialect::project_of;
using dialect::scope_of;
// A key that may only read does not wake what sleeps, nor thaw what is frozen.
inline bool may_look(const http::Exchange& ex, const sandbox::Box& box) {
  const bool rests = store::is_asleep(box.state()) || box.state() == State::frozen;
  return !rests || store::allows(scope_of(ex), store::Scope::use);
}
// An admin key of the project "default" is the operator's.
inline bool is_operator(const http::Exchange& ex) {
  return project_of(ex) == "default" && store::allows(scope_of(ex), store::Scope::admin);
}
// The living sandbox of the path's {id}, of the caller's project.
Result<sandbox::BoxPtr> box_of(sandbox::Service& service, const http::Exchange& ex);
Task<Result<std::string>> small_body(http::Exchange& ex);
Task<Result<Fields>> read_fields(http::Exchange& ex);  // of a body of JSON, which may be empty
using dialect::mark_untrusted;

// A create that is refused says when to come again.
Task<Result<sandbox::Created>> create_for(sandbox::Service& service, http::Exchange& ex,
                                          sandbox::CreateRequest request);
// Seconds, noted by a step that knows how long whoever is refused had better wait.
inline constexpr const char* kRetryAfter = "retry_after";

// A handler that returns its failure instead of dressing it itself.
using Step = std::function<Task<Result<void>>(http::Exchange&)>;
http::Handler handled(Step step);
http::Handler handled(store::Scope needed, Step step);

}  // namespace isola::native
