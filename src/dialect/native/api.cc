#include "dialect/native/api.h"

#include "base/log.h"
#include "dialect/native/code.h"
#include "sandbox/quiet_run.h"

namespace isola::native {

namespace {

constexpr size_t kSmallBody = 1 << 20;

http::Guards guards_of(const Options& options) {
  http::Guards guards{.hosts = options.hosts};
  if (!options.domain.empty()) guards.hosts.push_back(options.domain);
  return guards;
}

}  // namespace

Api::Api(std::shared_ptr<sandbox::Service> service, std::shared_ptr<builder::Builder> builder,
         std::shared_ptr<store::KeyRing> keys, Options options)
    : service_(std::move(service)),
      builder_(std::move(builder)),
      keys_(std::move(keys)),
      options_(std::move(options)),
      door_(service_, keys_, guards_of(options_)) {}

void Api::add_to(http::Router& router) {
  auto& group = router.group("/v1");
  group.filter([this](http::Exchange& ex) -> ::isola::Task<bool> {
    auto key = dialect::bearer_of(ex);
    co_return door_.lets_in(ex, key.empty() ? ex.header("x-api-key") : key);
  });
  add_sandboxes(group);
  add_images(group);
  add_templates(group);
  add_volumes(group);
  add_secrets(group);
  add_discovery(router);
  add_commands(group);
  add_code(group, service_);
  add_terminals(group);
  add_files(group);
  add_ports(router, group);
  add_events(group);
  add_tenants(group);
  add_system(router, group);
}

Result<sandbox::BoxPtr> box_of(sandbox::Service& service, const http::Exchange& ex) {
  return service.find(project_of(ex), std::string(ex.param("id")));
}

Task<Result<std::string>> small_body(http::Exchange& ex) { return ex.read_all(kSmallBody); }

Task<Result<Fields>> read_fields(http::Exchange& ex) {
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  co_return Fields::parse(body);
}

Task<Result<sandbox::Created>> create_for(sandbox::Service& service, http::Exchange& ex,
                                          sandbox::CreateRequest request) {
  // Whoever says where a secret is used, like whoever binds one.
  request.may_mount_buckets = store::allows(scope_of(ex), store::Scope::admin);
  auto created = co_await service.create(std::move(request));
  if (!created && created.error().code == Code::exhausted)
    ex.note(kRetryAfter, std::to_string(service.seconds_until_create(project_of(ex))));
  co_return created;
}

http::Handler handled(Step step) { return handled(store::Scope::read, std::move(step)); }

http::Handler handled(store::Scope needed, Step step) {
  return [needed, step = std::move(step)](http::Exchange& ex) -> Task<void> {
    if (!store::allows(scope_of(ex), needed)) {
      ex.fail(Error{Code::denied, "this API key's scope does not reach that far"});
      co_return;
    }
    auto done = co_await step(ex);
    if (!done && !ex.replied()) {
      if (sandbox::repeats_inside(done.error().message)) mark_untrusted(ex);  // of a hook, a probe, git
      // The sandbox's own disk: waiting does not help.
      if (done.error().sys_errno == ENOSPC || done.error().sys_errno == EDQUOT) {
        ex.fail(http::ErrorReply{507, "disk_full", done.error().message, {}});
        co_return;
      }
      // Another call has to come first.
      if (done.error().code == Code::unavailable && done.error().sys_errno == EBUSY) {
        ex.fail(http::ErrorReply{409, "conflict", done.error().message, {}});
        co_return;
      }
      // The caller gets one sentence; whoever looks into it finds the cause under the same id.
      if (done.error().code == Code::internal || done.error().code == Code::corrupt)
        log::write(log::Level::error, "api", log::quoted(done.error().text()), {{"request_id", ex.request_id()}});
      std::optional<int> retry;
      if (done.error().code == Code::exhausted || done.error().code == Code::unavailable)
        retry = std::max(1, std::atoi(std::string(ex.noted(kRetryAfter)).c_str()));
      ex.fail(done.error(), retry);
    }
  };
}

}  // namespace isola::native
