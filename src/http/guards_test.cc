#include "http/guards.h"

#include <gtest/gtest.h>

#include "http/exchange.h"
#include "http/testing.h"

namespace isola::http {
namespace {

TEST(Guards, RebindingShowsInTheHost) {
  Guards guards{.hosts = {"api.example", "*.sandboxes.example"}};
  for (std::string_view fine :
       {"", "localhost", "127.0.0.1", "10.1.2.3", "::1", "API.example", "80-x.sandboxes.example"}) {
    EXPECT_TRUE(host_allowed(guards, fine)) << fine;
  }
  for (std::string_view bad : {"evil.example", "sandboxes.example", ".sandboxes.example", "xsandboxes.example",
                               "127.0.0.1.evil.example", "localhost.evil.example", "0x7f000001", "127.1"}) {
    EXPECT_FALSE(host_allowed(guards, bad)) << bad;
  }
}

TEST(Guards, OriginsAreOursOrListed) {
  Guards guards{.origins = {"https://app.example"}};
  EXPECT_TRUE(origin_allowed(guards, "", "x"));
  EXPECT_TRUE(origin_allowed(guards, "http://127.0.0.1:8080", "127.0.0.1:8080"));
  EXPECT_TRUE(origin_allowed(guards, "https://app.example", "x"));
  EXPECT_FALSE(origin_allowed(guards, "http://127.0.0.1:9090", "127.0.0.1:8080"));
  EXPECT_FALSE(origin_allowed(guards, "http://evil.example", "127.0.0.1:8080"));
  EXPECT_FALSE(origin_allowed(guards, "null", "127.0.0.1:8080"));
  EXPECT_FALSE(origin_allowed(guards, "http://", ""));
}

TEST(Guards, StandBeforeRoutes) {
  TestServer server([](Router& r) {
    r.filter(browser_guard({}));
    r.add("GET", "/", [](Exchange& ex) -> Task<void> {
      ex.reply(200);
      co_return;
    });
  });
  RawClient client(server.port());
  EXPECT_EQ(client.get("/").status, 200);
  EXPECT_EQ(client.get("/", "Origin: http://evil.example\r\n").status, 403);
  client.send("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(client.reply().status, 421);
}

}  // namespace
}  // namespace isola::http
