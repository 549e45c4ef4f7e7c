// Who may enter a sandbox's port from outside without an API key: whoever has its token, or a URL that we signed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "http/exchange.h"
#include "sandbox/box.h"

namespace isola::native {

// What a signed URL grants: one port of one sandbox, one path (or everything below it, when it ends in *), for a while.
struct Grant {
  std::string sandbox;
  uint16_t port = 0;
  std::string path;
  int64_t expires = 0;  // seconds since 1970
};

// In a query: isola_path=…&isola_expires=…&isola_signature=…
Result<std::string> sign(const std::string& secret, const Grant& grant);

// Whether this request may, and the cookie that its answer is to set (Set-Cookie; or empty): a page that was opened by
// a token or a signature in its address asks for its scripts and pictures without them. A cookie lets in only what a
// page of this very host asks for, and navigations: pages of other sandboxes are of the same site. `named`: it came to
// the port's own name.
Result<std::string> may_enter(http::Exchange& ex, const sandbox::Box& box, uint16_t port, const std::string& secret,
                              bool named);

// Whether a granted path is this one, or leads to it, whatever the service makes of dots and escapes.
bool covers(const std::string& granted, std::string_view path);

// The target without our own query parameters: they are not the service's business.
std::string without_grant(std::string_view target);

}  // namespace isola::native
