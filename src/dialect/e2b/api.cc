#include "dialect/e2b/api.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "dialect/shared/door.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

namespace {

http::Guards guards_of(const Options& options) {
  http::Guards guards{.hosts = options.hosts};
  if (!options.domain.empty()) {
    guards.hosts.push_back(options.domain);
    guards.hosts.push_back("api." + options.domain);
  }
  return guards;
}

}  // namespace

Api::Api(std::shared_ptr<sandbox::Service> service, std::shared_ptr<builder::Builder> builder,
         std::shared_ptr<webhook::Courier> courier, std::shared_ptr<store::KeyRing> keys, Options options)
    : service_(std::move(service)),
      builder_(std::move(builder)),
      courier_(std::move(courier)),
      keys_(keys),
      options_(std::move(options)),
      door_(service_, keys, guards_of(options_), "Invalid API key: this server does not know it") {
  options_.tokens =
      std::make_shared<Tokens>(options_.secret, [keys](const std::string& key) { return keys->revoked_at(key); });
  options_.template_id = [service = service_](const std::string& project, const std::string& name) {
    return template_id(*service, project, name);
  };
  metrics_ = std::make_shared<Metrics>(service_);
  envd_ = std::make_shared<Envd>(service_, options_.tokens, metrics_);
}

void Api::add_to(http::Router& router) {
  add_traffic(router);
  add_sandboxes(router);
  add_images(router);
  add_templates(router);
  add_builds(router);
  add_volumes(router);
  add_observation(router);
  add_webhooks(router);
  add_secrets(router);
  add_absent(router);
}

http::RouteGroup& Api::group(http::Router& router, const char* prefix) {
  auto& group = router.group(prefix);
  group.dress(dress);
  group.filter([this](http::Exchange& ex) -> Task<bool> {
    auto key = ex.header("x-api-key");
    co_return door_.lets_in(ex, key.empty() ? dialect::bearer_of(ex) : key);
  });
  return group;
}

void dress(http::Exchange& ex, const http::ErrorReply& reply) {
  ex.reply(reply.status, dialect::dump({{"code", reply.status}, {"message", reply.message}}));
}

http::Handler handled(Step step) {
  return [step = std::move(step)](http::Exchange& ex) -> Task<void> {
    auto done = co_await step(ex);
    if (done || ex.replied()) co_return;
    // Another call has to come first.
    if (done.error().code == Code::unavailable && done.error().sys_errno == EBUSY)
      co_return ex.fail(http::ErrorReply{409, "conflict", done.error().message, {}});
    // Clients that see when to come again do so by themselves.
    std::optional<int> retry;
    if (done.error().code == Code::exhausted || done.error().code == Code::unavailable) retry = 1;
    ex.fail(done.error(), retry);
  };
}

std::string plain_id(std::string_view id) { return std::string(id.substr(0, id.find('-'))); }

Result<sandbox::BoxPtr> box_of(sandbox::Service& service, const http::Exchange& ex) {
  std::string id = plain_id(ex.param("id"));
  auto box = service.find(dialect::project_of(ex), id);
  if (box) {
    State state = (*box)->state();
    if (state != State::ending && state != State::ended) return box;
  } else if (box.error().code != Code::not_found) {
    return box;
  }
  return fail(Code::not_found, "Sandbox " + log::quoted(id) + " doesn't exist or you don't have access to it");
}

}  // namespace isola::e2b
