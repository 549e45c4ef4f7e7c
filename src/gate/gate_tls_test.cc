// TLS through the gate: whoever it is for must be the name that was connected to.
#include "gate/gate_fixture.h"

namespace isola::gate::testing {
namespace {

TEST_F(GateTest, TlsMustSayTheName) {
  Box box = world->box("allow a.example");
  auto good = tls_hello("a.example");
  EXPECT_EQ(box.run([&] { return talk("a.example", kTlsPort, good); }), good);
  auto event = world->next(Event::Kind::allowed);
  ASSERT_TRUE(event);
  EXPECT_TRUE(event->host_verified);
  EXPECT_EQ(box.run([&] { return talk("a.example", kTlsPort, good, 1); }), good) << "one byte at a time";
  auto huge = tls_hello("a.example", "\x00\x29\xc3\x50"s + std::string(50000, 'p'));
  EXPECT_EQ(box.run([&] { return talk("a.example", kTlsPort, huge, 777); }), huge);

  EXPECT_EQ(box.run([] { return talk("a.example", kTlsPort, tls_hello("b.example")); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "sni-differs a.example:443");
  EXPECT_EQ(box.run([] { return talk("a.example", kTlsPort, tls_hello("")); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "sni-missing a.example:443");
  EXPECT_EQ(box.run([] { return talk("a.example", kTlsPort, tls_hello("a.example", "\xfe\x0d\0\1x"s)); }),
            "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "ech a.example:443");
  EXPECT_EQ(box.run([] { return talk("a.example", 7, tls_hello("a.example\0.b"s), 3); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "bad-hello a.example:7");
  EXPECT_EQ(box.run([] { return talk("a.example", 7, tls_hello("a.example").substr(0, 30)); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "bad-hello a.example:7");

  Box open = world->box("default allow");
  auto other = tls_hello("b.example");
  EXPECT_EQ(open.run([&] { return talk("a.example", kTlsPort, other); }), other);
}

// A server may ask for another hello, and then it is that one which counts.
TEST_F(GateTest, ASecondHelloMustSayTheNameToo) {
  Box box = world->box("allow a.example");
  auto first = tls_hello("a.example");
  // Sends the first one, reads what the server says, sends the second one (or both at once), and reads to the end.
  auto twice = [&](const std::string& second, bool waits) {
    return box.run([&] {
      Fd fd = dial(resolve("a.example"), kRetryPort);
      std::string asked(retry_request().size(), 0), out = waits ? first : first + second;
      (void)!::send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL);
      if (waits) {
        if (::recv(fd.get(), asked.data(), asked.size(), MSG_WAITALL) != static_cast<ssize_t>(asked.size()) ||
            asked != retry_request())
          return "no request for another"s;
        (void)!::send(fd.get(), second.data(), second.size(), MSG_NOSIGNAL);
      }
      ::shutdown(fd.get(), SHUT_WR);
      return read_to_end(fd);
    });
  };
  EXPECT_EQ(twice(first + "anything", true), first + "anything") << "and nothing is looked at behind it";
  EXPECT_EQ(twice(tls_hello("b.example"), true), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "sni-differs a.example:8443");
  EXPECT_EQ(twice(tls_hello("c.example"), false), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "sni-differs a.example:8443");
  EXPECT_EQ(twice(tls_hello("a.example", "\xfe\x0d\0\1x"s), true), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "ech a.example:8443");
  EXPECT_EQ(twice("GET / HTTP/1.1", true), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "bad-hello a.example:8443");
  // By a literal address the second one counts as much as the first.
  Box open = world->box("deny b.example\ndefault allow");
  EXPECT_EQ(open.run([&] {
    Fd fd = dial("203.0.113.10", kRetryPort);
    std::string out = first + tls_hello("b.example");
    (void)!::send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL);
    return read_to_end(fd);
  }),
            "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "sni-differs 203.0.113.10:8443");
}

// What is let through by a literal address must not ask for a name that is denied.
TEST_F(GateTest, ADeniedNameIsNotAskedForAtALiteralAddress) {
  Box box = world->box("deny b.example\ndefault allow");
  auto good = tls_hello("a.example"), bad = tls_hello("b.example");
  EXPECT_EQ(box.run([&] { return talk_to("203.0.113.10", kTlsPort, good); }), good);
  EXPECT_EQ(box.run([&] { return talk_to("203.0.113.10", kTlsPort, bad, 1); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "policy b.example at 203.0.113.10:443");
}

// And a policy that denies the name later ends it as well.
TEST_F(GateTest, CuttingKnowsTheNameThatWasAskedForAtALiteralAddress) {
  Box box = world->box("deny b.example\ndefault allow");
  auto hello = tls_hello("c.example");
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  std::string how;
  std::thread inside([&] {
    how = box.run([&] {
      Fd fd = dial("203.0.113.10", kTlsPort);
      (void)!::send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
      std::string back(hello.size(), 0);
      if (::recv(fd.get(), back.data(), back.size(), MSG_WAITALL) != static_cast<ssize_t>(back.size())) return "?"s;
      (void)!::write(told[1], "x", 1);
      return read_to_end(fd);
    });
  });
  char c = 0;
  ASSERT_EQ(::read(told[0], &c, 1), 1);
  EXPECT_EQ(world->set_policy(box, "deny b.example\ndeny d.example\ndefault allow", true), "");
  EXPECT_EQ(world->set_policy(box, "deny c.example\ndefault allow", true), "");
  inside.join();
  EXPECT_EQ(how, "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "policy-changed 203.0.113.10:443");
  ::close(told[0]), ::close(told[1]);
}

}  // namespace
}  // namespace isola::gate::testing
