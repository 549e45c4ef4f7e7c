#include "gate/resolver.h"

#include <gtest/gtest.h>

#include <map>

#include "gate/test_address.h"
#include "hostile/dialog.h"

namespace isola::gate {
namespace {

using namespace std::string_literals;

class FakeUpstream : public Upstream {
 public:
  void look_up(const std::string& name, std::function<void(Answer)> done) override {
    asked.push_back(name);
    if (hold) return held.push_back([this, name, done] { done(answers[name]); });
    done(answers.contains(name) ? answers[name] : Answer{.state = Answer::State::no_such_name});
  }
  std::map<std::string, Answer> answers;
  std::vector<std::string> asked;
  std::vector<std::function<void()>> held;
  bool hold = false;
};

class ResolverTest : public ::testing::Test {
 protected:
  void SetUp() override { upstream.answers["a.example"] = upstream.answers["b.example"] = found(); }
  static Answer found() { return {Answer::State::found, {at("192.0.2.80")}, std::chrono::seconds(60)}; }
  void policy(std::string_view text) { egress = std::make_shared<Egress>(parse_policy(text).value()); }
  Resolver make(DnsRates rates = {}, uint32_t start = 77, bool ipv6 = true) {
    return Resolver(
        {.upstream = upstream,
         .now = [this] { return now; },
         .egress = [this] { return egress; },
         .denied = [this](const std::string& name, const Verdict& v) { denials.emplace_back(name, v.reason); },
         .ipv6 = ipv6,
         .start = start,
         .pools = &pools,
         .rates = rates});
  }
  // What the reply says, as "code N" or an address.
  static std::string ask(Resolver& resolver, std::string_view name, uint16_t type = 1) {
    auto answered = std::make_shared<std::string>("no answer");  // the answer may come when nobody waits here any more
    resolver.answer(hostile::make_query(name, type),
                    [answered, type](const std::string& reply) { *answered = hostile::read_answer(reply, type); });
    return *answered;
  }

  FakeUpstream upstream;
  ResolverPools pools;
  Clock::time_point now = Clock::now();
  std::shared_ptr<const Egress> egress = std::make_shared<Egress>(Policy::all());
  std::vector<std::pair<std::string, Reason>> denials;
};

TEST_F(ResolverTest, PermittedNamesGetSyntheticAddresses) {
  auto resolver = make();
  EXPECT_EQ(ask(resolver, "a.example"), "198.18.0.77");
  EXPECT_EQ(ask(resolver, "A.example"), "198.18.0.77");
  EXPECT_EQ(ask(resolver, "b.example"), "198.18.0.78");
  EXPECT_EQ(ask(resolver, "a.example", 28), "fd69:736f:6c61:5359::4d");
  EXPECT_EQ(resolver.names().behind(at("198.18.0.77"))->name, "a.example");
  EXPECT_EQ(resolver.names().behind(at("fd69:736f:6c61:5359::4e"))->name, "b.example");
  EXPECT_EQ(resolver.names().behind(at("198.18.0.79")), nullptr);
  EXPECT_EQ(resolver.names().behind(at("192.0.2.80")), nullptr);
  EXPECT_EQ(upstream.asked, (std::vector<std::string>{"a.example", "b.example"})) << "and the answers are kept";
  auto four_only = make({}, 1, false);
  EXPECT_EQ(ask(four_only, "a.example", 28), "code 0");
}

TEST_F(ResolverTest, DeniedNamesNeverLeave) {
  policy("allow a.example\nallow 10.0.0.0/8");
  auto resolver = make();
  EXPECT_EQ(ask(resolver, "secret-data.evil.example"), "code 3");
  EXPECT_EQ(ask(resolver, "a.example.evil"), "code 3");
  EXPECT_EQ(ask(resolver, "evil.example", 16), "code 3");
  EXPECT_TRUE(upstream.asked.empty());
  ASSERT_EQ(denials.size(), 3U);
  EXPECT_EQ(denials[0].second, Reason::policy);
  EXPECT_EQ(ask(resolver, "a.example"), "198.18.0.77");
}

TEST_F(ResolverTest, OtherTypesDoNotExistAndAreNotAsked) {
  auto resolver = make();
  for (uint16_t type : {2, 5, 6, 15, 16, 33, 64, 65, 255, 252})
    EXPECT_EQ(ask(resolver, "a.example", type), "code 0") << type;
  EXPECT_TRUE(upstream.asked.empty());
  EXPECT_EQ(ask(resolver, "8.8.8.8.in-addr.arpa", 12), "code 3");
  EXPECT_TRUE(upstream.asked.empty());
}

TEST_F(ResolverTest, NegativeAnswersAreNegativeAndKept) {
  upstream.answers["none.example"] = {.state = Answer::State::no_address};
  upstream.answers["down.example"] = {.state = Answer::State::failed};
  auto resolver = make();
  EXPECT_EQ(ask(resolver, "missing.example"), "code 3");
  EXPECT_EQ(ask(resolver, "missing.example"), "code 3");
  EXPECT_EQ(ask(resolver, "none.example"), "code 0");
  EXPECT_EQ(ask(resolver, "down.example"), "code 2");
  EXPECT_EQ(upstream.asked.size(), 3U);
}

TEST_F(ResolverTest, AnswersAreAskedAgainWhenTheyAreOld) {
  auto resolver = make();
  ask(resolver, "a.example");
  now += std::chrono::seconds(59);
  ask(resolver, "a.example");
  EXPECT_EQ(upstream.asked.size(), 1U);
  now += std::chrono::seconds(2);
  EXPECT_EQ(ask(resolver, "a.example"), "198.18.0.77") << "the synthetic address stays";
  EXPECT_EQ(upstream.asked.size(), 2U);
}

TEST_F(ResolverTest, QuestionsForOneNameAreAskedOnce) {
  upstream.hold = true;
  auto resolver = make();
  EXPECT_EQ(ask(resolver, "a.example"), "no answer");
  EXPECT_EQ(ask(resolver, "a.example", 28), "no answer");
  EXPECT_EQ(upstream.asked.size(), 1U);
  int told = 0;
  resolver.addresses("a.example", [&](const Answer& answer) { told += answer.addresses.size() == 1; });
  upstream.held[0]();
  EXPECT_EQ(told, 1);
}

TEST_F(ResolverTest, RatesBoundWhatCanLeaveInNames) {
  auto resolver =
      make({.questions = 1, .questions_burst = 1000, .names = 1, .names_burst = 50, .below = 1, .below_burst = 10});
  ask(resolver, "a.example");  // known from now on: only questions are counted for it
  int answered = 0;
  for (int i = 0; i < 100; ++i) answered += ask(resolver, "x" + std::to_string(i) + ".tunnel.example") == "code 3";
  EXPECT_EQ(answered, 10);
  EXPECT_EQ(upstream.asked.size(), 11U);
  for (int i = 0; i < 100; ++i) ask(resolver, "www.site" + std::to_string(i) + ".org");
  EXPECT_EQ(upstream.asked.size(), 50U);
  EXPECT_EQ(denials.back().second, Reason::dns_rate);
  now += std::chrono::seconds(3);
  for (int i = 0; i < 100; ++i) ask(resolver, "y" + std::to_string(i) + ".tunnel.example");
  EXPECT_EQ(upstream.asked.size(), 53U);
  for (int i = 0; i < 2000; ++i) ask(resolver, "a.example");
  EXPECT_EQ(ask(resolver, "a.example"), "code 5");
}

TEST_F(ResolverTest, FewNewNamesBelowAWildcard) {
  policy("allow *.wild.example\nallow a.example");
  DnsRates rates{
      .below = 1000, .below_burst = 1000, .labels = 1, .labels_burst = 20, .letters = 8, .letters_burst = 400};
  auto resolver = make(rates);
  for (int i = 0; i < 100; ++i) ask(resolver, "x" + std::to_string(i) + ".wild.example");
  EXPECT_EQ(upstream.asked.size(), 20U);
  EXPECT_EQ(denials.back().second, Reason::dns_rate);
  EXPECT_EQ(ask(resolver, "a.example"), "198.18.0.97") << "another rule's";
  // One that was asked for before is none of the new ones, also when its answer is old.
  now += std::chrono::seconds(1);
  size_t before = upstream.asked.size();
  ask(resolver, "new.wild.example");
  EXPECT_EQ(upstream.asked.size(), before + 1);
  now += std::chrono::milliseconds(1);
  EXPECT_EQ(ask(resolver, "x1.wild.example"), "code 3");
  EXPECT_EQ(ask(resolver, "newer.wild.example"), "code 5");
}

TEST_F(ResolverTest, AndFewBytesInThem) {
  policy("allow *.wild.example");
  auto resolver =
      make({.below = 1000, .below_burst = 1000, .labels = 1, .labels_burst = 100, .letters = 1, .letters_burst = 400});
  for (int i = 0; i < 10; ++i) ask(resolver, std::string(60, 'x') + std::to_string(i) + ".wild.example");
  EXPECT_EQ(upstream.asked.size(), 400U / 61);
  EXPECT_EQ(ask(resolver, "www.wild.example"), "code 3") << "there is room for something short";
}

TEST_F(ResolverTest, LookUpsUnderWayHaveAShare) {
  upstream.hold = true;
  pools.lookups.size = 150, pools.lookups.reserve = 20;
  auto greedy = make({.below = 1e6, .below_burst = 1e6}), other = make();
  for (int i = 0; i < 400; ++i) ask(greedy, "n" + std::to_string(i) + ".a" + std::to_string(i) + ".example");
  EXPECT_EQ(upstream.asked.size(), 128U) << "its own most";
  EXPECT_EQ(denials.back().second, Reason::dns_rate);
  auto third = make({.below = 1e6, .below_burst = 1e6});
  for (int i = 0; i < 400; ++i) ask(third, "m" + std::to_string(i) + ".a" + std::to_string(i) + ".example");
  EXPECT_EQ(upstream.asked.size(), 136U) << "what is left of the pool, as long as that is little";
  size_t before = upstream.asked.size();
  EXPECT_EQ(ask(other, "a.example"), "no answer");
  EXPECT_EQ(upstream.asked.size(), before + 1) << "a neighbour is not kept from asking";
  for (auto& one : std::exchange(upstream.held, {})) one();
  EXPECT_EQ(pools.lookups.used, 0U);
}

TEST_F(ResolverTest, OddQuestionsAreRefused) {
  auto resolver = make();
  EXPECT_EQ(ask(resolver, "a\0.example"s), "code 3");
  EXPECT_EQ(ask(resolver, "\xff.example"), "code 3");
  EXPECT_EQ(ask(resolver, "127.0.0.1"), "code 3");
  EXPECT_EQ(denials.size(), 3U);
  EXPECT_EQ(denials[0].second, Reason::not_a_name);
  bool silent = false;
  resolver.answer("x", [&](std::string reply) { silent = reply.empty(); });
  EXPECT_TRUE(silent);
  EXPECT_TRUE(upstream.asked.empty());
}

TEST_F(ResolverTest, TheTableIsBoundedAndAddressesRest) {
  Names names(131000, pools.names);
  std::string first;
  for (size_t i = 0; i < Names::kMax + 10; ++i) {
    auto* entry = names.enter("n" + std::to_string(i) + ".example");
    ASSERT_TRUE(entry);
    if (i == 0) first = Names::four(*entry).text();
    EXPECT_NE(Names::four(*entry).v4() & 0xff, 0U);
    EXPECT_NE(Names::four(*entry).v4() & 0xff, 0xffU);
    EXPECT_TRUE(Names::is_synthetic(Names::four(*entry)) && Names::is_synthetic(Names::six(*entry)));
  }
  EXPECT_EQ(names.size(), Names::kMax);
  EXPECT_EQ(names.behind(at(first)), nullptr) << "forgotten, and not yet another's";
  // Where others have all the room, one still has a little: its own oldest goes for each new one.
  Pool pool{.size = 300, .reserve = 100};
  Names many(1, pool), few(1, pool);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(many.enter("n" + std::to_string(i) + ".example"));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(few.enter("n" + std::to_string(i) + ".example"));
  EXPECT_EQ(many.size(), 256U);
  EXPECT_EQ(few.size(), 44U);
  EXPECT_TRUE(few.find("n999.example"));
}

TEST_F(ResolverTest, RatesAreKeptOfSoManyParentsAndNoneIsForgotten) {
  auto resolver = make({.questions_burst = 1e6, .names_burst = 1e6, .below = 1, .below_burst = 1});
  for (int i = 0; i < 1024; ++i) ask(resolver, "x.parent" + std::to_string(i) + ".org");
  EXPECT_EQ(upstream.asked.size(), 1024U);
  EXPECT_EQ(ask(resolver, "x.another.org"), "code 5") << "no room to count it";
  EXPECT_EQ(ask(resolver, "y.parent0.org"), "code 5") << "had its one";
  now += std::chrono::seconds(2);
  EXPECT_EQ(ask(resolver, "x.another.org"), "code 3") << "those who may ask again need not be counted";
}

TEST_F(ResolverTest, AndOfSoManyWildcards) {
  std::string text;
  for (int i = 0; i <= 1024; ++i) text += "allow *.w" + std::to_string(i) + ".org\n";
  policy(text);
  auto resolver = make({.questions_burst = 1e6,
                        .names_burst = 1e6,
                        .below = 1e6,
                        .below_burst = 1e6,
                        .labels = 1,
                        .labels_burst = 1,
                        .letters = 1e6,
                        .letters_burst = 1e6});
  // Below each wildcard one name. The counts per parent are soon full again: they are not what refuses here.
  for (int i = 0; i < 1024; ++i) {
    if (i == 1000) now += std::chrono::microseconds(1);
    ask(resolver, "x.w" + std::to_string(i) + ".org");
  }
  EXPECT_EQ(upstream.asked.size(), 1024U);
  EXPECT_EQ(ask(resolver, "x.w1024.org"), "code 5") << "no room to count it";
  EXPECT_EQ(ask(resolver, "y.w0.org"), "code 5") << "had its one";
  now += std::chrono::seconds(2);
  EXPECT_EQ(ask(resolver, "x.w1024.org"), "code 3");
}

TEST_F(ResolverTest, FewWaitForOneNameAndForAll) {
  upstream.hold = true;
  auto resolver = make();
  int refused = 0, told = 0;
  auto wait_for = [&](const std::string& name, int times) {
    for (int i = 0; i < times; ++i)
      resolver.addresses(name, [&](const Answer& answer) { ++(answer.addresses.empty() ? refused : told); });
  };
  auto answer_all = [&] {
    for (auto& one : std::exchange(upstream.held, {})) one();
  };
  wait_for("a.example", 70);
  EXPECT_EQ(refused, 6) << "of one name, 64";
  answer_all();
  EXPECT_EQ(told, 64);
  refused = told = 0;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 17; ++i) {
      auto name = "n" + std::to_string(round) + "-" + std::to_string(i) + ".example";
      upstream.answers[name] = found();
      wait_for(name, 64);
    }
    EXPECT_EQ(refused, 64 * (round + 1)) << "of all names, 1024; and each round again";
    answer_all();
    EXPECT_EQ(told, 1024 * (round + 1));
  }
}

}  // namespace
}  // namespace isola::gate
