#include "dialect/shared/door.h"

namespace isola::dialect {

namespace {

bool refuse(http::Exchange& ex, int status, const char* code, std::string message) {
  ex.fail(http::ErrorReply{status, code, std::move(message), {}});
  return false;
}

}  // namespace

bool Door::welcomes(http::Exchange& ex) const {
  // A page that got its own name to point here (DNS rebinding) sends that name; a page of another origin sends that.
  if (!http::host_allowed(guards_, ex.host()))
    return refuse(ex, 421, "wrong_host", "this server does not answer to that host name");
  if (!http::origin_allowed(guards_, ex.origin(), ex.host_header()))
    return refuse(ex, 403, "wrong_origin", "pages of other origins may not call this API");
  return true;
}

bool Door::lets_in(http::Exchange& ex, std::string_view key) const {
  if (!welcomes(ex)) return false;
  auto found = keys_->authenticate(key, sandbox::now_millis());
  if (!found && found.error().code == Code::denied) {
    ex.set_header("WWW-Authenticate", "Bearer");
    return refuse(ex, 401, "unauthenticated", unknown_.empty() ? found.error().message : unknown_);
  }
  if (!found) {
    ex.fail(found.error());
    return false;
  }
  const store::KeyRecord& caller = **found;
  ex.note("project", caller.project);
  ex.note("key", caller.id);
  ex.note("scope", std::string(to_string(caller.scope)));
  // Reading is for every key; whatever changes something needs one that may use.
  bool reads = ex.method() == "GET" || ex.method() == "HEAD";
  if (!reads && !store::allows(caller.scope, store::Scope::use)) {
    ex.fail(Error{Code::denied, "this API key may only read"});
    return false;
  }
  if (!service_->ready()) {
    ex.fail(Error{Code::unavailable, "the server is starting"}, 1);
    return false;
  }
  return true;
}

std::string_view bearer_of(const http::Exchange& ex) {
  auto text = ex.header("authorization");
  return text.starts_with("Bearer ") ? text.substr(7) : std::string_view();
}

std::string project_of(const http::Exchange& ex) { return std::string(ex.noted("project")); }

sandbox::Caller caller_of(const http::Exchange& ex) { return sandbox::Caller(std::string(ex.noted("key"))); }

store::Scope scope_of(const http::Exchange& ex) {
  return store::parse_scope(ex.noted("scope")).value_or(store::Scope::read);
}

}  // namespace isola::dialect
