#include "dialect/native/api.h"

#include <arpa/inet.h>

#include <algorithm>

namespace isola::native {

namespace {

constexpr size_t kSmallBody = 1 << 20;

bool is_address(std::string_view host) {
  std::string text(host);
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  unsigned char bytes[16];
  return ::inet_pton(AF_INET, text.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, text.c_str(), bytes) == 1;
}

// host[:port] of a URL such as an Origin.
std::string_view authority(std::string_view url) {
  auto at = url.find("://");
  if (at == std::string_view::npos) return {};
  url.remove_prefix(at + 3);
  return url.substr(0, url.find('/'));
}

}  // namespace

Api::Api(std::shared_ptr<sandbox::Service> service, std::shared_ptr<store::KeyRing> keys, Options options)
    : service_(std::move(service)), keys_(std::move(keys)), options_(std::move(options)) {}

void Api::add_to(http::Router& router) {
  auto& group = router.group("/v1");
  group.filter([this](http::Exchange& ex) { return guard(ex); });
  add_sandboxes(group);
  add_commands(group);
  add_terminals(group);
  add_files(group);
  add_ports(router, group);
  add_events(group);
  add_tenants(group);
  add_system(router, group);
}

Task<bool> Api::guard(http::Exchange& ex) {
  // A page that got its own name to point here (DNS rebinding) sends that name; a page of another origin sends that.
  auto host = ex.host();
  bool known = is_address(host) || host == "localhost" ||
               std::find(options_.hosts.begin(), options_.hosts.end(), host) != options_.hosts.end() ||
               (!options_.domain.empty() && host == options_.domain);
  if (!known) {
    ex.fail(http::ErrorReply{421, "wrong_host", "this server does not answer to that host name", {}});
    co_return false;
  }
  if (auto origin = ex.origin(); !origin.empty() && authority(origin) != ex.host_header()) {
    ex.fail(http::ErrorReply{403, "wrong_origin", "pages of other origins may not call this API", {}});
    co_return false;
  }
  std::string_view key = ex.header("x-api-key");
  if (auto bearer = ex.header("authorization"); bearer.starts_with("Bearer ")) key = bearer.substr(7);
  auto found = keys_->authenticate(key, sandbox::now_millis());
  if (!found) {
    if (found.error().code == Code::denied) {
      ex.set_header("WWW-Authenticate", "Bearer");
      ex.fail(http::ErrorReply{401, "unauthenticated", found.error().message, {}});
    } else {
      ex.fail(found.error());
    }
    co_return false;
  }
  const store::KeyRecord* caller = found->get();
  ex.note("project", caller->project);
  ex.note("key", caller->id);
  ex.note("scope", std::string(to_string(caller->scope)));
  // Reading is for every key; whatever changes something needs one that may use.
  bool reads = ex.method() == "GET" || ex.method() == "HEAD";
  if (!reads && !store::allows(caller->scope, store::Scope::use)) {
    ex.fail(Error{Code::denied, "this API key may only read"});
    co_return false;
  }
  if (!service_->ready()) {
    ex.fail(Error{Code::unavailable, "the server is starting"}, 1);
    co_return false;
  }
  co_return true;
}

std::string project_of(const http::Exchange& ex) { return std::string(ex.noted("project")); }

store::Scope scope_of(const http::Exchange& ex) {
  return store::parse_scope(ex.noted("scope")).value_or(store::Scope::read);
}

Result<sandbox::BoxPtr> box_of(sandbox::Service& service, const http::Exchange& ex) {
  return service.find(project_of(ex), std::string(ex.param("id")));
}

Task<Result<std::string>> small_body(http::Exchange& ex) { return ex.read_all(kSmallBody); }

http::Handler handled(Step step) { return handled(store::Scope::read, std::move(step)); }

http::Handler handled(store::Scope needed, Step step) {
  return [needed, step = std::move(step)](http::Exchange& ex) -> Task<void> {
    if (!store::allows(scope_of(ex), needed)) {
      ex.fail(Error{Code::denied, "this API key's scope does not reach that far"});
      co_return;
    }
    auto done = co_await step(ex);
    if (!done && !ex.replied()) {
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
      std::optional<int> retry;
      if (done.error().code == Code::exhausted || done.error().code == Code::unavailable) retry = 1;
      ex.fail(done.error(), retry);
    }
  };
}

}  // namespace isola::native
