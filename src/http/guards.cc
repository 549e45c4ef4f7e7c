#include "http/guards.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "http/exchange.h"
#include "http/text.h"

namespace isola::http {

namespace {

bool is_address(std::string_view host) {
  std::string text(host);
  in6_addr number;
  return ::inet_pton(AF_INET, text.c_str(), &number) == 1 || ::inet_pton(AF_INET6, text.c_str(), &number) == 1;
}

}  // namespace

bool host_allowed(const Guards& guards, std::string_view host) {
  // An address in Host was typed as one: no name was resolved, so none can have been turned against us.
  if (host.empty() || equal_nocase(host, "localhost") || is_address(host)) return true;
  for (std::string_view name : guards.hosts) {
    if (equal_nocase(name, host)) return true;
    if (name.starts_with("*.") && host.size() >= name.size() && host[0] != '.' &&
        equal_nocase(host.substr(host.size() - (name.size() - 1)), name.substr(1))) {
      return true;
    }
  }
  return false;
}

bool origin_allowed(const Guards& guards, std::string_view origin, std::string_view host_header) {
  if (origin.empty()) return true;
  for (std::string_view listed : guards.origins) {
    if (equal_nocase(listed, origin)) return true;
  }
  size_t scheme = origin.find("://");
  return scheme != origin.npos && !host_header.empty() && equal_nocase(origin.substr(scheme + 3), host_header);
}

Filter browser_guard(Guards guards) {
  return [guards = std::move(guards)](Exchange& ex) -> Task<bool> {
    if (!host_allowed(guards, ex.host())) {
      ex.fail(ErrorReply{421, "wrong_host", "this server does not answer to that host name", {}});
      co_return false;
    }
    if (!origin_allowed(guards, ex.origin(), ex.host_header())) {
      ex.fail(ErrorReply{403, "wrong_origin", "pages of that origin may not call this server", {}});
      co_return false;
    }
    co_return true;
  };
}

}  // namespace isola::http
