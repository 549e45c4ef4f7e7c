#include "dialect/e2b/api.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "dialect/native/api.h"
#include "dialect/native/views.h"

namespace isola::e2b {

Api::Api(std::shared_ptr<sandbox::Service> service, std::shared_ptr<store::KeyRing> keys, Options options)
    : service_(std::move(service)), keys_(std::move(keys)), options_(std::move(options)) {
  guards_.hosts = options_.hosts;
  if (!options_.domain.empty()) {
    guards_.hosts.push_back(options_.domain);
    guards_.hosts.push_back("api." + options_.domain);
  }
  envd_ = std::make_shared<Envd>(service_, options_.secret);
}

void Api::add_to(http::Router& router) {
  add_traffic(router);
  add_sandboxes(router);
  add_templates(router);
  add_observation(router);
  add_absent(router);
}

http::RouteGroup& Api::group(http::Router& router, const char* prefix) {
  auto& group = router.group(prefix);
  group.dress(dress);
  group.filter([this](http::Exchange& ex) { return guard(ex); });
  return group;
}

void dress(http::Exchange& ex, const http::ErrorReply& reply) {
  if (reply.retry_after_s) ex.set_header("Retry-After", std::to_string(*reply.retry_after_s));
  ex.reply(reply.status, native::dump({{"code", reply.status}, {"message", reply.message}}));
}

Task<bool> Api::guard(http::Exchange& ex) {
  auto refuse = [&](int status, const char* message) { dress(ex, http::ErrorReply{status, "", message, {}}); };
  if (!http::host_allowed(guards_, ex.host())) {
    refuse(421, "this server does not answer to that host name");
    co_return false;
  }
  if (!http::origin_allowed(guards_, ex.origin(), ex.host_header())) {
    refuse(403, "pages of other origins may not call this API");
    co_return false;
  }
  std::string_view key = ex.header("x-api-key");
  if (auto bearer = ex.header("authorization"); key.empty() && bearer.starts_with("Bearer ")) key = bearer.substr(7);
  auto found = keys_->authenticate(key, sandbox::now_millis());
  if (!found) {
    if (found.error().code == Code::denied)
      refuse(401, "Invalid API key: this server does not know it");
    else
      ex.fail(found.error());
    co_return false;
  }
  const store::KeyRecord* caller = found->get();
  ex.note("project", caller->project);
  ex.note("key", caller->id);
  ex.note("scope", std::string(to_string(caller->scope)));
  bool reads = ex.method() == "GET" || ex.method() == "HEAD";
  if (!reads && !store::allows(caller->scope, store::Scope::use)) {
    refuse(403, "this API key may only read");
    co_return false;
  }
  if (!service_->ready()) {
    refuse(503, "the server is starting");
    co_return false;
  }
  co_return true;
}

http::Handler handled(Step step) {
  return [step = std::move(step)](http::Exchange& ex) -> Task<void> {
    auto done = co_await step(ex);
    if (!done && !ex.replied()) ex.fail(done.error());
  };
}

std::string plain_id(std::string_view id) { return std::string(id.substr(0, id.find('-'))); }

Result<sandbox::BoxPtr> box_of(sandbox::Service& service, const http::Exchange& ex) {
  std::string id = plain_id(ex.param("id"));
  auto box = service.find(native::project_of(ex), id);
  if (box) {
    State state = (*box)->state();
    if (state != State::ending && state != State::ended) return box;
  } else if (box.error().code != Code::not_found) {
    return box;
  }
  return fail(Code::not_found, "Sandbox " + log::quoted(id) + " doesn't exist or you don't have access to it");
}

}  // namespace isola::e2b
