#include "http/router.h"

#include <gtest/gtest.h>

#include "http/exchange.h"
#include "http/testing.h"
#include "http/url.h"

namespace isola::http {
namespace {

Handler named(std::string name) {
  return [name](Exchange& ex) -> Task<void> {
    std::string text = name;
    if (ex.route()) {
      for (const std::string& key : ex.route()->names) text += " " + key + "=" + std::string(ex.param(key));
    }
    ex.reply(200, text, "text/plain");
    co_return;
  };
}

TEST(Router, PrefersLiteralsThenParametersThenTails) {
  Router r;
  auto& mine = r.add("GET", "/v1/sandboxes/mine", named("mine"));
  auto& one = r.add("GET", "/v1/sandboxes/{id}", named("one"));
  auto& files = r.add("GET", "/v1/sandboxes/{id}/files/{path...}", named("files"));
  auto& any = r.add("GET", "/{rest...}", named("any"));
  EXPECT_EQ(r.match("GET", "/v1/sandboxes/mine").route, &mine);
  EXPECT_EQ(r.match("GET", "/v1/sandboxes/m").route, &one);
  EXPECT_EQ(r.match("GET", "/v1/sandboxes/mine/files/x").route, &files);  // back up from the literal
  EXPECT_EQ(r.match("GET", "/v1/sandboxes/").route, &any);                // a parameter is never empty
  EXPECT_EQ(r.match("GET", "/").route, &any);
  EXPECT_EQ(r.match("GET", "x").route, nullptr);
  auto match = r.match("GET", "/v1/sandboxes/a%2Fb/files/c%20d/../e");
  EXPECT_EQ(match.route, &files);
  EXPECT_EQ(match.values, (std::vector<std::string>{"a/b", "c d/../e"}));
  EXPECT_TRUE(r.match("GET", "/v1/sandboxes/%zz").malformed);
  EXPECT_TRUE(r.match("GET", "/v1/sandboxes/a%00b").malformed);
  EXPECT_EQ(r.routes().size(), 4u);
}

TEST(Router, KnowsOtherMethods) {
  Router r;
  r.add("GET", "/a/{x}", named("get"));
  r.add("PUT", "/a/{y}", named("put"));
  EXPECT_EQ(r.match("POST", "/a/b").allow, "GET, HEAD, PUT");
  EXPECT_NE(r.match("HEAD", "/a/b").route, nullptr);
  EXPECT_EQ(r.match("POST", "/b").allow, "");
}

TEST(Router, LongPathsEndEarly) {
  Router r;
  r.add("GET", "/a/a/a/a/{x}/a/{y...}", named("x"));
  std::string path;
  for (int i = 0; i < 10'000; i++) path += "/a";
  EXPECT_NE(r.match("GET", path).route, nullptr);
}

TEST(RouterDeathTest, MistakesEndTheProgram) {
  Router r;
  r.add("GET", "/a", named("a"));
  EXPECT_DEATH(r.add("GET", "/a", named("a")), "already");
  EXPECT_DEATH(r.add("GET", "a", named("a")), "starts with");
  EXPECT_DEATH(r.add("GET", "/{x}/{x}", named("a")), "one name");
  EXPECT_DEATH(r.add("GET", "/{x...}/b", named("a")), "follows");
}

TEST(Routes, FiltersErrorsAndHosts) {
  TestServer server([](Router& r) {
    auto& api = r.group("/v1");
    api.filter([](Exchange& ex) -> Task<bool> {
      bool fine = ex.header("X-Key") == "k";
      if (!fine) ex.fail(Error{Code::denied, "no"});
      ex.note("project", "p1");
      co_return fine;
    });
    api.add("GET", "/v1/x/{id}", [](Exchange& ex) -> Task<void> {
      ex.reply(
          200,
          std::string(ex.noted("project")) + std::string(ex.param("id")) + std::string(ex.query("q").value_or("none")),
          "text/plain");
      co_return;
    });
    api.add("GET", "/v1/open", named("open")).filtered = false;
    auto& other = r.group("/other");
    other.dress([](Exchange& ex, const ErrorReply& e) { ex.reply(e.status, "oh: " + e.code, "text/plain"); });
    other.add("GET", "/other/full", [](Exchange& ex) -> Task<void> {
      ex.fail(Error{Code::exhausted, "too many"}, 7);
      co_return;
    });
    r.by_host([](Exchange& ex) -> std::optional<Handler> {
      if (ex.host() == "8080-sandbox.example" || ex.header("X-Port") == "8080") return named("preview");
      return {};
    });
  });
  RawClient client(server.port());
  EXPECT_EQ(client.get("/v1/x/1").status, 403);
  EXPECT_EQ(client.get("/v1/x/1%202?q=a%20b", "X-Key: k\r\n").body, "p11 2a b");
  EXPECT_EQ(client.get("/v1/x/1?q", "X-Key: k\r\n").body, "p11");
  EXPECT_EQ(client.get("/v1/open").body, "open");
  EXPECT_EQ(client.get("/v1/x/%zz", "X-Key: k\r\n").status, 400);

  RawReply missing = client.get("/v1/nowhere", "X-Request-Id: r1\r\n");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(
      missing.body,
      "{\"error\":{\"code\":\"not_found\",\"message\":\"there is nothing at this path\",\"request_id\":\"r1\"}}\n");
  EXPECT_EQ(client.get("/other/nowhere").body, "oh: not_found");
  RawReply full = client.get("/other/full");
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.header("Retry-After"), "7");

  client.send("DELETE /v1/x/1 HTTP/1.1\r\nHost: x\r\n\r\n");
  RawReply method = client.reply();
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.header("Allow"), "GET, HEAD");

  client.send("GET /v1/x/1 HTTP/1.1\r\nHost: 8080-SANDBOX.example.:99\r\n\r\n");
  EXPECT_EQ(client.reply().body, "preview");
  EXPECT_EQ(client.get("/", "X-Port: 8080\r\n").body, "preview");
  client.send("GET http://8080-sandbox.example/a HTTP/1.1\r\nHost: 8080-sandbox.example\r\n\r\n");
  EXPECT_EQ(client.reply().body, "preview");
}

TEST(ErrorReply, StringsAreJsonWhateverTheyHold) {
  std::string out;
  append_json_string(out, std::string("a\"\\\n\x01\x7f\xff\xc3\xa4\xed\xa0\x80", 12));
  EXPECT_EQ(out, "\"a\\\"\\\\\\n\\u0001\\u007f\xef\xbf\xbd\xc3\xa4\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

TEST(Url, CodesAndDecodes) {
  EXPECT_EQ(percent_encode("a/b c~\xff"), "a%2Fb%20c~%FF");
  EXPECT_EQ(percent_encode("a/b", true), "a/b");
  EXPECT_EQ(*percent_decode("a%2fb+c"), "a/b+c");
  EXPECT_EQ(*percent_decode("a+b", true), "a b");
  for (std::string_view bad : {"%", "%a", "%zz", "a%00"}) EXPECT_FALSE(percent_decode(bad)) << bad;
  EXPECT_EQ(*parse_query("q=a+b&x&&y=%2F=1"), (Pairs{{"q", "a b"}, {"x", ""}, {"y", "/=1"}}));
  EXPECT_FALSE(parse_query("a&b&c", 2));
  EXPECT_EQ(to_query({{"a b", "c&d"}, {"e", ""}}), "a%20b=c%26d&e=");
}

TEST(Url, Parses) {
  auto url = parse_url("https://h.example:8443/v1?x=1#frag");
  ASSERT_TRUE(url);
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->host, "h.example");
  EXPECT_EQ(url->port, 8443);
  EXPECT_EQ(url->target, "/v1?x=1");
  EXPECT_EQ(url->authority(), "h.example:8443");
  EXPECT_EQ(parse_url("http://[::1]")->authority(), "[::1]");
  EXPECT_EQ(parse_url("ws://h?x")->target, "/?x");
  for (std::string_view bad :
       {"h", "ftp://h", "http://", "http://h:x", "http://h:99999", "http://a@h", "http://h/a b", "http://[::1"}) {
    EXPECT_FALSE(parse_url(bad)) << bad;
  }
}

}  // namespace
}  // namespace isola::http
