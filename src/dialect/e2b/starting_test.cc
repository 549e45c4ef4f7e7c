#include "dialect/shared/starting.h"

#include "dialect/e2b/api.h"

namespace isola::e2b {
namespace {

TEST(Starting, TheDataPlanesSayComeAgain) {
  dialect::StartingServer starting;
  Options options{.hosts = {}, .domain = "isola.test", .port = {}, .secret = "secret"};
  Api api(starting.service(), nullptr, nullptr, starting.keys(), options);
  const std::string id = starting.kSandbox;
  starting.expect_come_again(
      [&](http::Router& router) { api.add_to(router); },
      {
          {"envd by name", "/health", "Host: 49983-" + id + ".isola.test\r\n"},
          {"envd by headers", "/health", "Host: localhost\r\nE2b-Sandbox-Id: " + id + "\r\n"},
          {"a port by name", "/", "Host: 8000-" + id + ".isola.test\r\n"},
          {"a port by headers", "/", "Host: localhost\r\nE2b-Sandbox-Id: " + id + "\r\nE2b-Sandbox-Port: 8000\r\n"},
          {"a signed file", "/files?path=a&signature=v1_" + std::string(43, 'a'), "Host: localhost\r\n"},
      });
}

}  // namespace
}  // namespace isola::e2b
