// Checks that stand before routes, for a server that browsers can reach.
//
//   Guards guards{.hosts = {"api.example.org"}};
//   api.filter(browser_guard(guards));
//
// A web page that somebody visits can make their browser talk to 127.0.0.1 by a name of its own (DNS rebinding), or
// send requests across sites. Both show: in Host, and in Origin.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http/router.h"

namespace isola::http {

struct Guards {
  std::vector<std::string>
      hosts;  // names that the server answers to, besides addresses and localhost; *.x for all below x
  std::vector<std::string> origins;  // of other sites whose pages may call, such as https://app.example.org
};

bool host_allowed(const Guards& guards, std::string_view host);
// No Origin (no browser) is fine; "null" is not; the same host is; else it must be listed.
bool origin_allowed(const Guards& guards, std::string_view origin, std::string_view host_header);

// 421 for a host that is not ours, 403 for an origin that is not welcome.
Filter browser_guard(Guards guards);

}  // namespace isola::http
