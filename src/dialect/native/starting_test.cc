#include "dialect/shared/starting.h"

#include "dialect/native/api.h"

namespace isola::native {
namespace {

TEST(Starting, PortsSayComeAgain) {
  dialect::StartingServer starting;
  Options options{.hosts = {}, .domain = "isola.test", .url_secret = "secret", .port = {}};
  Api api(starting.service(), nullptr, starting.keys(), options);
  const std::string id = starting.kSandbox;
  starting.expect_come_again(
      [&](http::Router& router) { api.add_to(router); },
      {
          {"by name", "/", "Host: 8000-" + id + ".isola.test\r\n"},
          {"by headers", "/", "Host: localhost\r\nX-Isola-Sandbox: " + id + "\r\nX-Isola-Port: 8000\r\n"},
      });
}

}  // namespace
}  // namespace isola::native
