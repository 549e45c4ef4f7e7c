// Requests and answers that somebody wants to be read in two ways, and values that want to come back.
#include "gate/tls_world.h"

namespace isola::gate::testing {
namespace {

constexpr char kHost[] = "Host: a.example:9443\r\n";

class SmugglingTest : public InterceptTest {
 protected:
  std::string status_of(const Box& box, const std::string& text) { return status(ask(box, text)).substr(9, 3); }
};

TEST_F(SmugglingTest, HeadsThatCouldBeReadInTwoWaysGoNowhere) {
  serve_key();
  Box box = inside(kAllow, {bearer()});
  const std::string smuggled = "GET /smuggled HTTP/1.1\r\nHost: a.example:9443\r\n\r\n", line = "POST / HTTP/1.1\r\n";
  const std::pair<std::string, const char*> heads[] = {
      {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "400"},
      {"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "400"},
      {"Content-Length: 5\r\nContent-Length: 6\r\n", "400"},
      {"Content-Length: 5\r\nContent-Length: 5\r\n", "400"},
      {"Content-Length: 5, 5\r\n", "400"},
      {"Content-Length: +5\r\n", "400"},
      {"Content-Length: 0x5\r\n", "400"},
      {"Content-Length: -1\r\n", "400"},
      {"Content-Length: 99999999999999999999\r\n", "400"},
      {"Content-Length : 5\r\n", "400"},
      {"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "400"},
      {"Transfer-Encoding: xchunked\r\n", "501"},
      {"Transfer-Encoding: chunked, gzip\r\n", "501"},
      {"Transfer-Encoding\t: chunked\r\n", "400"},
      {"Transfer-Encoding:\x0b chunked\r\n", "400"},
      {"X: y\r\n Transfer-Encoding: chunked\r\n", "400"},
      {"X: y\rTransfer-Encoding: chunked\r\n", "400"},
      {"X: y\nTransfer-Encoding: chunked\r\n", "400"},
      {"X: y\0z\r\n"s, "400"},
      {"X y\r\n", "400"},
      {": y\r\n", "400"},
      {"Host: a.example:9443\r\n", "400"},  // a second one
      {"Expect: something\r\n", "400"},
  };
  for (const auto& [fields, expected] : heads)
    EXPECT_EQ(status_of(box, line + kHost + fields + "\r\n" + smuggled), expected) << fields;
  for (const auto& request : {"GET  / HTTP/1.1\r\n"s + kHost + "\r\n", "GET / HTTP/1.1 \r\n"s + kHost + "\r\n",
                              "GET / x HTTP/1.1\r\n"s + kHost + "\r\n", "GET /\x80 HTTP/1.1\r\n"s + kHost + "\r\n",
                              "GET / HTTP/1.1\n"s + kHost + "\r\n", "GET / HTTP/1.1\r\n\r\n"s, "GET /\r\n\r\n"s,
                              "GET / HTTP/1.1\r\n"s + kHost + "\n\n"})
    EXPECT_EQ(status_of(box, request), "400") << request;
  EXPECT_EQ(status_of(box, "GET / HTTP/2.0\r\n"s + kHost + "\r\n"), "501");
  EXPECT_TRUE(seen().empty()) << seen()[0];
}

TEST_F(SmugglingTest, BadChunksEndTheConnection) {
  serve_key();
  Box box = inside(kAllow, {bearer()});
  for (const auto& body :
       {"5 \r\nabcde\r\n0\r\n\r\n"s, "0x5\r\nabcde\r\n0\r\n\r\n"s, "5\nabcde\r\n0\r\n\r\n"s,
        "5\r\nabcdef\r\n0\r\n\r\n"s, "5\r\nabcde\n0\r\n\r\n"s, "-5\r\nabcde\r\n0\r\n\r\n"s, "\r\nabcde\r\n0\r\n\r\n"s,
        "fffffffffffffffff\r\nabcde\r\n0\r\n\r\n"s, "5;a\rb\r\nabcde\r\n0\r\n\r\n"s}) {
    auto answer = ask(box, "POST / HTTP/1.1\r\n"s + kHost + "Transfer-Encoding: chunked\r\n\r\n" + body +
                               "GET /smuggled HTTP/1.1\r\n" + kHost + "\r\n");
    EXPECT_EQ(answer.find("200"), std::string::npos) << body << answer;
  }
  EXPECT_TRUE(seen().empty());
  // Good ones, with extensions and trailers that go nowhere.
  EXPECT_EQ(status_of(box, "POST / HTTP/1.1\r\n"s + kHost + "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" +
                               "5;x=y\r\nabcde\r\n0\r\nX-Trailer: 1\r\n\r\n"),
            "200");
  ASSERT_EQ(seen().size(), 1u);
  EXPECT_NE(seen()[0].find("\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"), std::string::npos) << seen()[0];
}

TEST_F(SmugglingTest, RequestsForAnotherHost) {
  serve_key();
  Box box = inside(kAllow, {bearer()});
  auto with = [&](const std::string& line, const std::string& host) {
    return status_of(box, line + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
  };
  for (const char* host : {"b.example", "b.example:9443", "a.example:443", "a.example.b.example", "a.example@b.example",
                           "", "a.example:", "a.example:9443:1", "203.0.113.10", "a.example b.example"})
    EXPECT_EQ(with("GET /", host), "421") << host;
  EXPECT_EQ(world->next_denial(), "authority-differs a.example:9443");
  EXPECT_EQ(with("GET https://b.example:9443/", "a.example:9443"), "400");
  EXPECT_EQ(with("GET https://b.example:9443/", "b.example:9443"), "421");
  EXPECT_EQ(with("GET http://a.example:9443/", "a.example:9443"), "400") << "another scheme";
  EXPECT_EQ(with("GET //b.example/", "a.example:9443"), "400");
  EXPECT_EQ(with("CONNECT b.example:443", "a.example:9443"), "403");
  EXPECT_TRUE(seen().empty());
  EXPECT_EQ(with("GET https://a.example:9443/x?y", "a.example:9443"), "200");
  EXPECT_EQ(with("GET /", "A.Example.:9443"), "200");
  EXPECT_EQ(seen()[0].substr(0, seen()[0].find("\r\n")), "GET /x?y HTTP/1.1");
}

TEST_F(SmugglingTest, HeadsAreBounded) {
  serve_key();
  Box box = inside(kAllow, {bearer()});
  EXPECT_EQ(status_of(box, get("/", "X: " + std::string(70'000, 'x') + "\r\n")), "431");
  std::string many;
  for (int i = 0; i < 250; ++i) many += "X: y\r\n";
  EXPECT_EQ(status_of(box, get("/", many)), "431");
  EXPECT_EQ(status_of(box, get("/" + std::string(60'000, 'x'))), "200");
  EXPECT_EQ(seen().size(), 1u);
}

TEST_F(SmugglingTest, FieldsBetweenNeighboursArePassedToNobody) {
  serve_requests([](const std::string&) { return reply("ok", "Connection: X-Hop\r\nX-Hop: 1\r\nAlt-Svc: h3\r\n"); });
  Box box = inside(kAllow, {bearer()});
  auto answer = ask(box, "GET / HTTP/1.1\r\n"s + kHost +
                             "Connection: close, Authorization, X-Mine, Host\r\nX-Mine: 1\r\nProxy-Authorization: x\r\n"
                             "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nTE: trailers\r\n\r\n");
  EXPECT_EQ(status(answer), "HTTP/1.1 200 OK");
  EXPECT_EQ(answer.find("X-Hop"), std::string::npos);
  EXPECT_EQ(answer.find("h3"), std::string::npos);
  ASSERT_EQ(seen().size(), 1u);
  for (const char* word : {"X-Mine", "Proxy-", "Upgrade", "HTTP2", "TE:"})
    EXPECT_EQ(seen()[0].find(word), std::string::npos) << word;
  EXPECT_NE(seen()[0].find(kValue), std::string::npos) << "naming it does not take it away";
}

TEST_F(SmugglingTest, AnswersThatCouldBeReadInTwoWaysGoNowhere) {
  auto say = std::make_shared<std::string>();  // the server is there a little longer than this
  serve_requests([this, say](const std::string&) {
    std::lock_guard lock(mutex);
    return *say;
  });
  Box box = inside(kAllow, {bearer()});
  auto answered = [&](const std::string& text) {
    {
      std::lock_guard lock(mutex);
      *say = text;
    }
    auto all = ask(box, get("/"));
    return all.empty() ? "none"s : all.substr(9, 3);
  };
  for (const auto& bad : {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nhi"s,
                          "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi!"s,
                          "HTTP/1.1 200 OK\r\nX: y\r\n folded\r\nContent-Length: 2\r\n\r\nhi"s,
                          "HTTP/1.1 200 OK\r\nX: y\rSet-Cookie: z\r\nContent-Length: 2\r\n\r\nhi"s,
                          "HTTP/1.1 200 OK\r\nX: y\nSet-Cookie: z\r\nContent-Length: 2\r\n\r\nhi"s,
                          "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"s,
                          "ICY 200 OK\r\n\r\n"s, "HTTP/1.1 20x OK\r\nContent-Length: 2\r\n\r\nhi"s,
                          "HTTP/1.1 200 OK\r\nX: " + std::string(70'000, 'x') + "\r\n\r\n"})
    EXPECT_EQ(answered(bad), "502") << bad.substr(0, 100);
  EXPECT_EQ(world->next_denial(), "bad-answer a.example:9443");
  EXPECT_EQ(answered("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + reply("hi")), "103");
  EXPECT_EQ(answered(reply("hi")), "200");
}

// What a server says beyond its answer would be the answer to the next request.
TEST_F(SmugglingTest, AnAnswerBeforeItsQuestion) {
  serve("a.example", kSecurePort, [](Talk& talk) {
    talk.request();
    talk.say(reply("first") + "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\npoisoned");
    talk.rest();
  });
  Box box = inside(kAllow, {bearer()});
  auto one = "GET / HTTP/1.1\r\n"s + kHost + "\r\n";
  auto all = ask(box, one + one);
  EXPECT_EQ(all.find("poisoned"), std::string::npos) << all;
}

TEST_F(SmugglingTest, AnAnswerThatIsCutOffDoesNotLookWhole) {
  serve("a.example", kSecurePort, [](Talk& talk) {
    talk.request();
    talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n");
  });
  Box box = inside(kAllow, {bearer()});
  auto all = ask(box, get("/"));
  EXPECT_EQ(all.find("\r\n0\r\n"), std::string::npos) << all;
}

TEST_F(SmugglingTest, WhatAServerReflectsIsBlottedOut) {
  const std::string encoded = vault::to_base64("me:"s + kValue), stars(sizeof kValue - 1, '*');
  serve("a.example", kSecurePort, [encoded](Talk& talk) {
    auto request = talk.request();
    auto line = request.substr(0, request.find("\r\n"));
    size_t at = request.find("Authorization: ");
    auto said = request.substr(at, request.find("\r\n", at) - at);
    if (line.find("/header") != std::string::npos) {
      talk.say(reply("x", "X-You-Said: " + said + "\r\n"));
    } else if (line.find("/chunks") != std::string::npos) {
      talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
      for (char c : said) talk.say("1\r\n"s + c + "\r\n");
      talk.say("0\r\n\r\n");
    } else if (line.find("/base64") != std::string::npos) {
      talk.say(reply("<" + encoded + ">"));
    } else if (line.find("/gzip") != std::string::npos) {
      talk.say(reply(said, "Content-Encoding: gzip\r\n"));
    } else if (line.find("/coding") != std::string::npos) {
      talk.say(reply("x", "Content-Encoding: "s + kValue + "\r\n"));
    } else if (line.find("/close") != std::string::npos) {
      talk.say("HTTP/1.1 200 OK\r\n\r\n" + said);
    } else {
      talk.say(reply(request));
    }
  });
  Box box = inside(kAllow, {bearer()});
  auto whole = ask(box, get("/echo", "Accept-Encoding: gzip\r\n"));
  EXPECT_EQ(whole.find(kValue), std::string::npos) << whole;
  EXPECT_NE(whole.find("Authorization: Bearer " + stars + "\r\n"), std::string::npos) << whole;
  EXPECT_NE(whole.find("Accept-Encoding: identity\r\n"), std::string::npos);
  auto event = world->next(Event::Kind::redacted);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->binding + " " + event->secret, "b1 token");
  for (const char* path : {"/header", "/chunks", "/close"}) {
    auto answer = ask(box, get(path));
    EXPECT_EQ(answer.find("Hunter2"), std::string::npos) << answer;
    EXPECT_NE(answer.find('*'), std::string::npos) << answer;
  }
  auto hidden = ask(box, get("/base64"));
  EXPECT_EQ(hidden.find(encoded.substr(6, 20)), std::string::npos) << hidden;
  EXPECT_EQ(status(ask(box, get("/gzip"))), "HTTP/1.1 502 Bad Gateway");
  while (auto denied = world->next(Event::Kind::denied))
    if (denied->reason == Reason::encoded) break;
  auto named = ask(box, get("/coding"));
  EXPECT_EQ(status(named), "HTTP/1.1 502 Bad Gateway");
  EXPECT_EQ(named.find("Hunter2"), std::string::npos) << named;
}

// What was bound and is not any more went out, and may come back; and where a binding says so, nothing follows it.
TEST_F(SmugglingTest, AnswersAreSearchedAsEverythingElseIs) {
  serve("a.example", kSecurePort, [](Talk& talk) {
    auto request = talk.request();
    const bool in_head = request.find("GET /head") == 0;
    if (request.find("GET /gzip") == 0) return (void)talk.say(reply("packed", "Content-Encoding: gzip\r\n"));
    talk.say(reply(in_head ? "nothing" : "before "s + kValue + " after", in_head ? "X-Said: "s + kValue + "\r\n" : ""));
  });
  auto other = bearer();
  other.methods = {"POST"};  // so that these requests have no credential at all
  Box box = inside("allow a.example:9443 methods GET,POST\n", {other});
  auto redacted = ask(box, get("/body"));
  EXPECT_EQ(redacted.find(kValue), std::string::npos) << redacted;
  EXPECT_NE(redacted.find(" after"), std::string::npos) << redacted;
  EXPECT_EQ(status(ask(box, get("/gzip"))), "HTTP/1.1 502 Bad Gateway") << "also without a credential";

  ASSERT_EQ(world->set_policy(box, "allow a.example:9443 methods GET\n"), "");
  auto former = ask(box, get("/body"));
  EXPECT_EQ(former.find(kValue), std::string::npos) << former;

  auto blocks = bearer();
  blocks.id = "b2";
  blocks.blocks = true;
  ASSERT_EQ(world->set_policy(box, kAllow, false, encoded({blocks})), "");
  auto blocked = ask(box, get("/body"));
  EXPECT_EQ(blocked.find(" after"), std::string::npos) << blocked;
  EXPECT_EQ(blocked.find(kValue), std::string::npos) << blocked;
  EXPECT_EQ(status(ask(box, get("/head"))), "HTTP/1.1 502 Bad Gateway");
}

// … nor is it forgotten by the gate that comes after a kill.
TEST_F(SmugglingTest, WhatWasRevokedIsSearchedForByTheNextGateToo) {
  serve("a.example", kSecurePort, [](Talk& talk) {
    talk.request();
    talk.say(reply("before "s + kValue + " after"));
  });
  Box box = inside(kAllow, {});
  world->stop_gate();
  world->start_gate({.authorities = trusted->path()});
  ASSERT_EQ(world->give_key(key->secret_key().view()), "");
  ASSERT_EQ(world->add(box, kAllow, "", "", "", encoded({bearer()})), "");
  auto answer = ask(box, get("/"));
  EXPECT_EQ(answer.find(kValue), std::string::npos) << answer;
  EXPECT_NE(answer.find(" after"), std::string::npos) << answer;
}

// … also where nothing but the binding was a reason to look into the connection.
TEST_F(SmugglingTest, WhatWasBoundOnceIsSearchedForAtItsNameWithoutAnyRule) {
  serve("a.example", kSecurePort, [](Talk& talk) {
    talk.request();
    talk.say(reply("before "s + kValue + " after"));
  });
  Box box = inside(kAllow, {bearer()});
  auto redacted = ask(box, get("/"));
  EXPECT_EQ(redacted.find(kValue), std::string::npos) << redacted;
  ASSERT_EQ(world->set_policy(box, kAllow), "");
  auto former = ask(box, get("/"));
  EXPECT_EQ(former.find(kValue), std::string::npos) << former;
  EXPECT_NE(former.find(" after"), std::string::npos) << former;
  // The same value for somebody else: who had it before still has.
  auto other = bearer("b.example");
  other.id = "b2";
  ASSERT_EQ(world->set_policy(box, kAllow, false, encoded({other})), "");
  EXPECT_EQ(ask(box, get("/")).find(kValue), std::string::npos);
}

TEST_F(SmugglingTest, AConnectionFromBeforeTheBindingDoesNotOutliveIt) {
  std::atomic<int> asked = 0;
  serve("a.example", kSecurePort, [&](Talk& talk) {
    while (!talk.request().empty()) {
      ++asked;
      if (!talk.say(reply("before "s + kValue + " after"))) return;
    }
  });
  Box box = inside(kAllow);
  std::string said;
  std::thread client([&] {
    // Keep-alive, through to the server itself: its own certificate.
    said = box.run(
        [&] { return secure_talk("a.example", kSecurePort, trusted->path(), "GET / HTTP/1.1\r\n"s + kHost + "\r\n"); });
  });
  while (asked == 0) std::this_thread::yield();
  ASSERT_EQ(world->set_policy(box, kAllow, false, encoded({bearer()})), "");
  client.join();  // cut: else it would wait for what the server says next, which is nothing
  EXPECT_EQ(world->next_denial(), "policy-changed a.example:9443");
  EXPECT_EQ(ask(box, get("/")).find(kValue), std::string::npos);
}

TEST_F(SmugglingTest, AValueThatIsBoundWhileAnAnswerComesIsFoundInTheRestOfIt) {
  std::atomic<bool> asked = false, bound = false;
  serve("a.example", kSecurePort, [&](Talk& talk) {
    talk.request();
    asked = true;
    talk.say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin ");
    while (!bound) std::this_thread::yield();
    std::string rest = "then "s + kValue + " after ";
    talk.say(rest + std::string(94 - rest.size(), '.'));
  });
  Box box = inside("allow a.example:9443 methods GET\n");
  std::thread binder([&] {
    while (!asked) std::this_thread::yield();
    auto other = bearer("b.example");
    EXPECT_EQ(world->set_policy(box, "allow a.example:9443 methods GET\n", false, encoded({other})), "");
    bound = true;
  });
  auto answer = ask(box, get("/"));
  binder.join();
  EXPECT_EQ(answer.find(kValue), std::string::npos) << answer;
  EXPECT_NE(answer.find(" after "), std::string::npos) << answer;
}

// What a program inside knows of a value does not get into the records by being asked for.
TEST_F(SmugglingTest, RecordsKeepNoValue) {
  serve_key();
  Box box = inside(kAllow, {bearer()});
  const std::string value = kValue, long_path = "/" + std::string(190, 'p') + value;
  ask(box, value.substr(0, 8) + value + " / HTTP/1.1\r\n" + kHost + "Connection: close\r\n\r\n");
  ask(box, value + " / HTTP/1.1\r\n" + kHost + "Connection: close\r\n\r\n");
  ask(box, "GET " + long_path + " HTTP/1.1\r\n" + kHost + "Connection: close\r\n\r\n");
  ask(box, "GET / HTTP/1.1\r\nHost: " + value + ".example\r\nConnection: close\r\n\r\n");
  box.run([&] { return resolve(value + ".example"); });
  box.run([&] { return secure_talk("a.example", kSecurePort, authority->path(), "x", value + ".example"); });
  EXPECT_EQ(ask(box, get("/last")).substr(0, 12), "HTTP/1.1 200");
  // Names were made lower case on their way.
  auto small = [](std::string text) {
    for (char& c : text) c = static_cast<char>(::tolower(c));
    return text;
  };
  size_t events = 0;
  for (const auto& event : world->events_until([](const Event& one) { return one.path == "/last"; })) {
    ++events;
    for (const auto& text : {event.name, event.address, event.rule, event.method, event.path})
      EXPECT_EQ(small(text).find(small(value.substr(0, 10))), std::string::npos) << text;
  }
  EXPECT_GT(events, 6u);
}

TEST_F(SmugglingTest, Websockets) {
  serve("a.example", kSecurePort, [](Talk& talk) {
    auto request = talk.request();
    size_t at = request.find("Bearer ");
    auto said = at == std::string::npos ? "nothing"s : request.substr(at, request.find("\r\n", at) - at);
    talk.say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
    while (talk.seen().find("ping") == std::string::npos)
      if (!talk.more()) return;
    talk.say("pong " + said + " end");
  });
  Box box = inside("allow a.example:9443 methods GET paths /socket\n", {bearer()});
  auto upgrade = [&](const std::string& path) {
    return ask(
        box, "GET " + path + " HTTP/1.1\r\n" + kHost +
                 "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"
                 "\r\nping");
  };
  auto answer = upgrade("/socket");
  EXPECT_EQ(status(answer), "HTTP/1.1 101 Switching Protocols");
  EXPECT_NE(answer.find("pong Bearer " + std::string(sizeof kValue - 1, '*') + " end"), std::string::npos) << answer;
  EXPECT_EQ(status(upgrade("/other")), "HTTP/1.1 403 Forbidden");
}

TEST_F(SmugglingTest, ContinueIsAsked) {
  serve("a.example", kSecurePort, [](Talk& talk) {
    auto request = talk.request();  // its head; the body comes when it is asked for
    talk.say("HTTP/1.1 100 Continue\r\n\r\n");
    talk.say(reply("got " + std::to_string(request.size() > 0)));
  });
  Box box = inside("allow a.example:9443 paths /yes\n");
  auto put = [&](const std::string& path) {
    return ask(box, "PUT " + path + " HTTP/1.1\r\n" + kHost +
                        "Expect: 100-continue\r\nConnection: close\r\nContent-Length: 5\r\n\r\nabcde");
  };
  EXPECT_EQ(status(put("/yes")), "HTTP/1.1 100 Continue");
  EXPECT_NE(put("/yes").find("got 1"), std::string::npos);
  // A body that was announced and refused is not taken for the next request.
  auto no = ask(box, "PUT /no HTTP/1.1\r\n"s + kHost + "Expect: 100-continue\r\nContent-Length: 60\r\n\r\n" +
                         "GET /yes HTTP/1.1\r\n" + kHost + "\r\n");
  EXPECT_EQ(status(no), "HTTP/1.1 403 Forbidden");
  EXPECT_EQ(no.find("HTTP/1.1 ", 9), std::string::npos) << no;
}

TEST_F(SmugglingTest, ARedirectTakesNothingAlong) {
  serve_requests([](const std::string&) {
    return "HTTP/1.1 302 Found\r\nLocation: https://b.example:9443/there\r\nContent-Length: 0\r\n\r\n"s;
  });
  std::string there;
  servers.push_back(std::make_unique<SecureServer>(world->outside_netns(), "203.0.113.11", kSecurePort,
                                                   upstream_authority->leaf("b.example").value(), [&](Talk& talk) {
                                                     auto request = talk.request();
                                                     std::lock_guard lock(mutex);
                                                     there = request;
                                                     talk.say(reply("arrived"));
                                                   }));
  Box box = inside("allow a.example:9443\nallow b.example:9443 methods GET\n", {bearer()});
  auto out = box.run([&] {
    return shell("curl -sS -L --max-time 20 --cacert " + authority->path() +
                 " --resolve a.example:9443:" + resolve("a.example") +
                 " --resolve b.example:9443:" + resolve("b.example") + " https://a.example:9443/");
  });
  EXPECT_EQ(out, "arrived");
  std::lock_guard lock(mutex);
  EXPECT_NE(requests[0].find(kValue), std::string::npos);
  EXPECT_EQ(there.find("Authorization"), std::string::npos) << there;
}

TEST_F(SmugglingTest, RealClients) {
  serve_key();
  Box box = inside(kAllow, {bearer()});
  const auto ca = authority->path();
  EXPECT_EQ(box.run([&] {
    return shell("curl -sS --max-time 20 --cacert " + ca + " --resolve a.example:9443:" + resolve("a.example") +
                 " -H 'Authorization: Bearer mine' https://a.example:9443/ https://a.example:9443/again");
  }),
            "welcomewelcome");
  EXPECT_EQ(box.run([&] {
    return shell("curl -sS --max-time 20 --cacert " + ca + " --resolve a.example:9443:" + resolve("a.example") +
                 " -T /etc/os-release https://a.example:9443/up");
  }),
            "welcome");
  EXPECT_EQ(box.run([&] {
    return shell(
        "printf 'GET / HTTP/1.1\\r\\nHost: a.example:9443\\r\\nConnection: close\\r\\n\\r\\n' | openssl s_client "
        "-quiet -verify_return_error -servername a.example -verify_hostname a.example -CAfile " +
        ca + " -connect " + resolve("a.example") + ":9443 2>/dev/null | tail -n 1");
  }),
            "welcome");
  EXPECT_EQ(box.run([&] {
    return shell(
        "python3 - <<'END'\nimport http.client, socket, ssl\n"
        "context = ssl.create_default_context(cafile='" +
        ca + "')\ncontext.verify_flags |= ssl.VERIFY_X509_STRICT\nraw = socket.create_connection(('" +
        resolve("a.example") +
        "', 9443), 20)\nc = http.client.HTTPSConnection('a.example', 9443)\n"
        "c.sock = context.wrap_socket(raw, server_hostname='a.example')\n"
        "for i in range(3):\n  c.request('POST', '/x', body=b'y' * 100000)\n  "
        "print(c.getresponse().read().decode())\nEND");
  }),
            "welcome\nwelcome\nwelcome\n");
}

// More than any buffer, both ways at once.
TEST_F(SmugglingTest, MuchPassesWhole) {
  serve("a.example", kSecurePort, [](Talk& talk) {
    auto request = talk.request();
    size_t body = request.size() - request.find("\r\n\r\n") - 4;
    talk.say("HTTP/1.1 200 OK\r\nContent-Length: 30000000\r\n\r\n");
    for (size_t left = 30'000'000; left > 0; left -= std::min<size_t>(left, 100'000))
      if (!talk.say(std::string(std::min<size_t>(left, 100'000), body == 5'000'000 ? 'g' : 'b'))) return;
  });
  Box box = inside(kAllow, {bearer()});
  auto answer = box.run([&] {
    auto all = secure_talk("a.example", kSecurePort, authority->path(),
                           "POST / HTTP/1.1\r\n"s + kHost + "Connection: close\r\nContent-Length: 5000000\r\n\r\n" +
                               std::string(5'000'000, 'u'));
    size_t body = all.find("\r\n\r\n") + 4;
    return std::to_string(all.size() - body) + " " +
           std::to_string(std::count(all.begin() + static_cast<ssize_t>(body), all.end(), 'g'));
  });
  EXPECT_EQ(answer, "30000000 30000000");
}

}  // namespace
}  // namespace isola::gate::testing
