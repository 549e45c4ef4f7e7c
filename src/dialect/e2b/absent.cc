// What E2B has and this server does not: every route answers, in E2B's shape, and says what is missing.
#include "base/log.h"
#include "dialect/e2b/api.h"

namespace isola::e2b {

namespace {

struct Line {
  const char* method;
  const char* pattern;
  const char* what;
};

constexpr const char* kBuild = "building templates by pushing an image: not available on this server";

constexpr Line kLines[] = {
    {"POST", "/templates", kBuild},
    {"POST", "/templates/{template}", kBuild},
    {"POST", "/templates/{template}/builds/{build}", kBuild},
    {"GET", "/templates/{template}/builds/{build}/logs", kBuild},
};

}  // namespace

void Api::add_absent(http::Router& router) {
  std::string last;
  http::RouteGroup* into = nullptr;
  for (const auto& line : kLines) {
    std::string pattern = line.pattern, prefix = pattern.substr(0, pattern.find('{'));
    if (prefix != last || !into) {
      into = &group(router, prefix.c_str());
      last = prefix;
    }
    into->add(line.method, line.pattern,
              handled([what = std::string(line.what)](http::Exchange&) -> Task<Result<void>> {
                co_return fail(Code::unsupported, what);
              }));
  }
}

}  // namespace isola::e2b
