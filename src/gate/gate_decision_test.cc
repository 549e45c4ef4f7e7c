// What the gate lets through and what not: by name, address, port, family, and the policy of the moment.
#include "gate/gate_fixture.h"

namespace isola::gate::testing {
namespace {

TEST_F(GateTest, ByNameAndBackInBothFamilies) {
  Box box = world->box("allow *.example");
  EXPECT_EQ(box.run([] { return talk("a.example", kEchoPort, "hello"); }), "hello");
  EXPECT_EQ(box.run([] { return talk("six.example", kEchoPort, "hello six"); }), "hello six");
  EXPECT_EQ(box.run([] { return talk_to(resolve("both.example", 28), kEchoPort, "by six"); }), "by six");
  EXPECT_EQ(box.run([] { return talk("b.example", kGreetPort, ""); }), "hello from 203.0.113.11\n");
  EXPECT_EQ(box.run([] { return resolve("a.example", 1, true); }).substr(0, 5), "198.1");
  auto event = world->next(Event::Kind::closed);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->name, "a.example");
  EXPECT_EQ(event->address, "203.0.113.10");
  EXPECT_EQ(event->up, 5U);
  EXPECT_EQ(event->down, 5U);
}

TEST_F(GateTest, NothingWithoutAPolicyThatSaysSo) {
  Box box = world->box("");
  EXPECT_EQ(box.run([] { return resolve("a.example"); }), "code 3");
  EXPECT_EQ(world->next_denial(), "policy a.example:53");
  EXPECT_EQ(box.run([] { return talk_to("203.0.113.10", kEchoPort, "x"); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "policy 203.0.113.10:7");
  EXPECT_TRUE(world->outside->asked().empty());
  EXPECT_EQ(world->outside->connections(), 0U);
}

TEST_F(GateTest, RulesByNamePortAndNetwork) {
  Box box = world->box("allow a.example:7\nallow 203.0.113.11:7");
  EXPECT_EQ(box.run([] { return talk("a.example", kEchoPort, "x"); }), "x");
  EXPECT_EQ(box.run([] { return talk("a.example", kGreetPort, "x"); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "policy a.example:22");
  EXPECT_EQ(box.run([] { return talk_to("203.0.113.11", kEchoPort, "x"); }), "x");
  EXPECT_EQ(box.run([] { return talk_to("203.0.113.10", kEchoPort, "x"); }), "ECONNRESET")
      << "the address of a name that is allowed is not allowed by itself";
  EXPECT_EQ(world->next_denial(), "policy 203.0.113.10:7");
}

TEST_F(GateTest, AnothersSyntheticAddressMeansNothingHere) {
  Box one = world->box("allow a.example"), two = world->box("allow b.example");
  auto address = one.run([] { return resolve("a.example"); });
  EXPECT_EQ(one.run([&] { return talk_to(address, kEchoPort, "x"); }), "x");
  EXPECT_EQ(two.run([&] { return talk_to(address, kEchoPort, "x"); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "unknown-address " + address + ":7");
}

TEST_F(GateTest, InsidePlacesAreNotReachedByAnyName) {
  for (const char* place : {"10.5.0.1", "169.254.169.254", "100.64.0.9", "fd00:ec2::254", "127.0.0.1", "::1",
                            "64:ff9b::a05:1", "0.0.0.0", "192.0.2.1"}) {
    world->outside->set("rebind.example", {place});
    Box box = world->box("default allow");
    EXPECT_EQ(box.run([] { return talk("rebind.example", kEchoPort, "x"); }), "ECONNRESET") << place;
    auto denial = world->next_denial();
    EXPECT_TRUE(denial == "place rebind.example:7" || denial == "own-address rebind.example:7") << place << denial;
    EXPECT_EQ(world->outside->connections(), 0U) << place;
  }
  world->outside->set("inside.example", {"10.5.0.1"});
  Box named = world->box("allow inside.example local\nallow 169.254.169.254");
  EXPECT_EQ(named.run([] { return talk("inside.example", kEchoPort, "x"); }), "x");
  EXPECT_EQ(named.run([] { return talk_to("169.254.169.254", kEchoPort, "x"); }), "x");
}

TEST_F(GateTest, TheAddressThatCountsIsTheOneConnectedTo) {
  world->outside->set("rebind.example", {"203.0.113.10"});
  Box box = world->box("allow rebind.example");
  auto address = box.run([] { return resolve("rebind.example"); });
  world->outside->set("rebind.example", {"169.254.169.254"});
  // Whatever the gate's own answer is by then (kept or asked again), the connection never goes inside.
  EXPECT_EQ(box.run([&] { return talk_to(address, kGreetPort, ""); }), "hello from 203.0.113.10\n");
}

// A whole network that leads back to this machine, without being anybody's address.
TEST_F(GateTest, NetworksOfTheHostsOwn) {
  auto here = [&](const char* six) {
    EXPECT_EQ(world->run_plainly([&] {
      return std::system(
                 ("ip -6 route add local "s + six + " dev lo && ip route add local 198.51.100.128/25 dev lo").c_str())
                 ? "failed"s
                 : "done"s;
    }),
              "done");
  };
  here("2001:db8:77::/48");
  world->outside->set("any6.example", {"2001:db8:77::5"});
  world->outside->set("any4.example", {"198.51.100.200"});
  Box box = world->box("default allow");
  for (const char* name : {"any6.example", "any4.example"}) {
    EXPECT_EQ(box.run([&] { return talk(name, kEchoPort, "x"); }), "ECONNRESET");
    EXPECT_EQ(world->next_denial(), "own-address "s + name + ":7");
  }
  EXPECT_EQ(box.run([] { return talk("six.example", kEchoPort, "x"); }), "x");
}

TEST_F(GateTest, ANewPolicyHoldsForTheNextConnectionOrCutsAll) {
  Box box = world->box("allow a.example");
  auto address = box.run([] { return resolve("a.example"); });
  int to[2], from[2];
  ASSERT_EQ(::pipe(to), 0);
  ASSERT_EQ(::pipe(from), 0);
  std::thread inside([&] {
    box.run([&] {
      Fd fd = dial(address, kEchoPort);
      char c = 0;
      for (;;) {
        if (::read(to[0], &c, 1) != 1) return ""s;
        ssize_t n = ::send(fd.get(), &c, 1, MSG_NOSIGNAL);
        if (n == 1) n = ::recv(fd.get(), &c, 1, 0);
        if (n != 1) c = '!';
        if (::write(from[1], &c, 1) != 1 || c == '!') return ""s;
      }
    });
  });
  auto echo = [&](char c) {
    (void)!::write(to[1], &c, 1);
    (void)!::read(from[0], &c, 1);
    return c;
  };
  EXPECT_EQ(echo('1'), '1');
  EXPECT_EQ(world->set_policy(box, "allow b.example"), "");
  EXPECT_EQ(echo('2'), '2') << "what is there stays";
  EXPECT_EQ(box.run([&] { return talk_to(address, kEchoPort, "x"); }), "ECONNRESET");
  EXPECT_EQ(box.run([] { return talk("b.example", kEchoPort, "x"); }), "x");
  EXPECT_EQ(world->set_policy(box, "allow b.example:7", true), "");
  EXPECT_EQ(echo('3'), '!');
  EXPECT_NE(world->set_policy(box, "allow nonsense nonsense"), "");
  inside.join();
  for (int fd : {to[0], to[1], from[0], from[1]}) ::close(fd);
}

TEST_F(GateTest, AnAddressThatRefusesIsNotTheLast) {
  // Nobody listens at the end of the cable itself.
  world->outside->set("half.example", {"203.0.113.10", "2001:db8:1::2"});
  world->outside->set("none.example", {"2001:db8:1::2"});
  Box box = world->box("allow *.example");
  EXPECT_EQ(box.run([] { return talk("half.example", kEchoPort, "x"); }), "x");
  EXPECT_EQ(box.run([] { return talk("none.example", kEchoPort, "x"); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "unreachable none.example:7");
}

// A connection that stays open, to a server that echoes.
class Conversation {
 public:
  Conversation(const Box& box, const std::string& name, uint16_t port = kEchoPort) {
    if (::pipe(to_) < 0 || ::pipe(from_) < 0) std::abort();
    thread_ = std::thread([this, &box, name, port] {
      box.run([&] {
        Fd fd = dial(resolve(name), port);
        for (char c = 0; ::read(to_[0], &c, 1) == 1 && c != '.';) {
          if (::send(fd.get(), &c, 1, MSG_NOSIGNAL) != 1 || ::recv(fd.get(), &c, 1, 0) != 1) c = '!';
          if (::write(from_[1], &c, 1) != 1) break;
        }
        return ""s;
      });
    });
  }
  ~Conversation() {
    (void)!::write(to_[1], ".", 1);
    thread_.join();
    for (int fd : {to_[0], to_[1], from_[0], from_[1]}) ::close(fd);
  }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;
  // What comes back, or '!'.
  char say(char c) {
    (void)!::write(to_[1], &c, 1);
    (void)!::read(from_[0], &c, 1);
    return c;
  }

 private:
  int to_[2], from_[2];
  std::thread thread_;
};

TEST_F(GateTest, CuttingJudgesTheAddressToo) {
  world->outside->set("inside.example", {"10.5.0.1"});
  Box box = world->box("allow inside.example local");
  Conversation inside(box, "inside.example");
  EXPECT_EQ(inside.say('1'), '1');
  EXPECT_EQ(world->set_policy(box, "allow inside.example local\nallow a.example", true), "");
  EXPECT_EQ(inside.say('2'), '2') << "still allowed";
  EXPECT_EQ(world->set_policy(box, "allow inside.example", true), "");
  EXPECT_EQ(inside.say('3'), '!');
  EXPECT_EQ(world->next_denial(), "policy-changed inside.example:7");
}

TEST_F(GateTest, CuttingEndsWhatWasNotLookedAt) {
  Box box = world->box("default allow");
  Conversation open(box, "a.example");
  EXPECT_EQ(open.say('1'), '1');
  EXPECT_EQ(world->set_policy(box, "deny b.example\ndefault allow", true), "");
  EXPECT_EQ(open.say('2'), '!') << "nobody knows which name it asked for";
}

TEST_F(GateTest, CuttingEndsWhatLeadsToTheHostItself) {
  std::optional<Fd> listener;
  in_netns(world->gate_netns(), [&] {
    ASSERT_EQ(std::system("ip route add local 198.51.100.128/25 dev lo"), 0);
    listener.emplace(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    auto at = Address::parse("198.51.100.200").value().with_port(kEchoPort);
    ASSERT_EQ(::bind(listener->get(), at.get(), at.size), 0);
    ASSERT_EQ(::listen(listener->get(), 1), 0);
  });
  std::thread host([&] {
    Fd client(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
    for (char c = 0; ::recv(client.get(), &c, 1, 0) == 1;) (void)!::send(client.get(), &c, 1, MSG_NOSIGNAL);
  });
  world->outside->set("own.example", {"198.51.100.200"});
  Box box = world->box("allow own.example\nallow 198.51.100.200");
  {
    Conversation own(box, "own.example");
    EXPECT_EQ(own.say('1'), '1') << "named by its address";
    EXPECT_EQ(world->set_policy(box, "allow own.example", true), "");
    EXPECT_EQ(own.say('2'), '!');
  }
  ::shutdown(listener->get(), SHUT_RDWR);
  host.join();
}

}  // namespace
}  // namespace isola::gate::testing
