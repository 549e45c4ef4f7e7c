// One POST to somebody outside, over HTTP or HTTPS: resolved, looked at, connected, sent, answered, within one time.
//
//   ISOLA_CO_TRY(int status, co_await post({.url = url, .headers = {{"X-Id", "7"}}, .body = "{}"}));
//
// Whoever gives us an address may be anybody's tenant: unless `inside` says so, nothing that is not the open internet
// is connected to, whatever its name resolves to. A redirect is an answer like any other; nobody is followed.
#pragma once

#include <chrono>
#include <string>

#include "base/task.h"
#include "http/url.h"

namespace isola::webhook {

struct Post {
  http::Url url;
  http::Pairs headers;
  std::string body;
  std::string type = "application/json";
  bool inside = false;  // private, loopback and link-local addresses may be reached, too; metadata never
  std::chrono::milliseconds time{10'000};
};

// The status of the answer. Its body is not read: nothing in it is for us.
Task<Result<int>> post(Post post);

}  // namespace isola::webhook
