// Sandboxes in the store: what goes in comes out, what may not be is refused, lists are stable.
#include <random>
#include <set>

#include "store/test_store.h"

namespace isola::store {
namespace {

SandboxRecord full_example() {
  SandboxRecord s = example();
  s.name = "build \"x\"";
  s.key = "conversation-1";
  s.task = "t1";
  s.actor = "alice";
  s.made_by = "kalice";
  s.template_name = "base";
  s.digest = std::string(64, 'a');
  s.boundary = BoundaryKind::microvm;
  s.engine = {"qemu", "7.2", true};
  s.birth = Birth::forked;
  s.state = State::running;
  s.created = 5;
  s.last_active = 7;
  s.limits = {.cpus = 0.3,
              .memory = 123,
              .pids = 4,
              .disk = 567,
              .open_files = 8,
              .io_bytes_per_second = 9,
              .wall_time = std::chrono::milliseconds(10)};
  s.lifetime = {.deadline = 11,
                .idle_limit = 12,
                .at_end = AtEnd::pause,
                .auto_resume = true,
                .timeout = 13,
                .delete_after = 14,
                .freeze_after = 15};
  s.image = "m1";
  s.asleep = 16;
  s.cpu_before = 17;
  s.budget = {.cpu_seconds = 1.5, .wall_seconds = 2.5, .commands = 3, .bytes_out = 4, .money = 0.05};
  s.metadata = {{"user", "üser"}, {"a\"b", "c'd"}};
  s.env = {{"PATH", "/bin"}, {"EMPTY", ""}};
  s.on_create = {"echo 'one'", "two"};
  s.on_resume = {"three"};
  s.probe = "true";
  s.traffic_token = "tok";
  s.secure = false;
  return s;
}

void expect_same(const SandboxRecord& a, const SandboxRecord& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.project, b.project);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.key, b.key);
  EXPECT_EQ(a.task, b.task);
  EXPECT_EQ(a.actor, b.actor);
  EXPECT_EQ(a.made_by, b.made_by);
  EXPECT_EQ(a.template_name, b.template_name);
  EXPECT_EQ(a.digest, b.digest);
  EXPECT_EQ(a.boundary, b.boundary);
  EXPECT_EQ(a.engine, b.engine);
  EXPECT_EQ(a.birth, b.birth);
  EXPECT_EQ(a.state, b.state);
  EXPECT_EQ(a.end_reason, b.end_reason);
  EXPECT_EQ(a.end_detail, b.end_detail);
  EXPECT_EQ(a.created, b.created);
  EXPECT_EQ(a.ended, b.ended);
  EXPECT_EQ(a.last_active, b.last_active);
  EXPECT_EQ(a.limits, b.limits);
  EXPECT_EQ(a.lifetime, b.lifetime);
  EXPECT_EQ(a.budget, b.budget);
  EXPECT_EQ(a.metadata, b.metadata);
  EXPECT_EQ(a.env, b.env);
  EXPECT_EQ(a.on_create, b.on_create);
  EXPECT_EQ(a.on_resume, b.on_resume);
  EXPECT_EQ(a.probe, b.probe);
  EXPECT_EQ(a.traffic_token, b.traffic_token);
  EXPECT_EQ(a.secure, b.secure);
  EXPECT_EQ(a.image, b.image);
  EXPECT_EQ(a.asleep, b.asleep);
  EXPECT_EQ(a.cpu_before, b.cpu_before);
}

using SandboxesTest = StoreTest;

TEST_F(SandboxesTest, RoundTripAndAgainAfterReopening) {
  auto wrote = full_example();
  ASSERT_TRUE(store_->insert_sandbox(wrote));
  expect_same(store_->find_sandbox(wrote.id).value(), wrote);
  reopen();
  expect_same(store_->find_sandbox(wrote.id).value(), wrote);
  EXPECT_EQ(store_->find_sandbox("inope").error().code, Code::not_found);
}

TEST_F(SandboxesTest, EveryWordOfEveryEnumComesBack) {
  for (auto state : {State::creating, State::running, State::frozen, State::paused, State::stopped, State::archived,
                     State::ending, State::ended}) {
    auto s = example();
    s.state = state;
    ASSERT_TRUE(store_->insert_sandbox(s));
    EXPECT_EQ(store_->find_sandbox(s.id)->state, state);
  }
  for (auto birth : {Birth::cold, Birth::pooled, Birth::resumed, Birth::forked}) {
    auto s = example();
    s.birth = birth;
    ASSERT_TRUE(store_->insert_sandbox(s));
    EXPECT_EQ(store_->find_sandbox(s.id)->birth, birth);
  }
}

TEST_F(SandboxesTest, NarrowUpdates) {
  auto s = example();
  ASSERT_TRUE(store_->insert_sandbox(s));
  ASSERT_TRUE(store_->set_state(s.id, State::running));
  ASSERT_TRUE(
      store_->set_lifetime(s.id, {.deadline = 99, .idle_limit = 3, .at_end = AtEnd::stop, .auto_resume = true}));
  ASSERT_TRUE(store_->set_metadata(s.id, {{"k", "v"}}));
  ASSERT_TRUE(store_->touch({{s.id, 70}, {"iunknown", 70}}));
  ASSERT_TRUE(store_->touch({{s.id, 60}}));  // never backwards
  auto now = store_->find_sandbox(s.id).value();
  EXPECT_EQ(now.state, State::running);
  EXPECT_EQ(now.lifetime, (Lifetime{.deadline = 99, .idle_limit = 3, .at_end = AtEnd::stop, .auto_resume = true}));
  EXPECT_EQ(now.metadata, (Labels{{"k", "v"}}));
  EXPECT_EQ(now.last_active, 70);
  ASSERT_TRUE(store_->set_state(s.id, State::frozen));
  EXPECT_EQ(store_->find_sandbox(s.id)->state, State::frozen);
}

TEST_F(SandboxesTest, WhyItIsToEndIsKept) {
  auto s = example();
  ASSERT_TRUE(store_->insert_sandbox(s));
  ASSERT_TRUE(store_->set_state(s.id, State::frozen, {.detail = "its budget is spent"}));
  reopen();
  EXPECT_EQ(store_->find_sandbox(s.id)->end_detail, "its budget is spent");
  ASSERT_TRUE(store_->set_state(s.id, State::running));
  EXPECT_EQ(store_->find_sandbox(s.id)->end_detail, "");
  ASSERT_TRUE(store_->set_state(s.id, State::ending, {EndReason::deadline, "its time was up"}));
  reopen();
  auto now = store_->find_sandbox(s.id).value();
  EXPECT_EQ(now.end_reason, EndReason::deadline);
  EXPECT_EQ(now.end_detail, "its time was up");
}

TEST_F(SandboxesTest, BudgetsAndOneShots) {
  auto s = example();
  s.one_shot = true;
  s.budget = {.cpu_seconds = 1.5, .at_limit = AtLimit::freeze};
  ASSERT_TRUE(store_->insert_sandbox(s));
  EXPECT_TRUE(store_->find_sandbox(s.id)->one_shot);
  EXPECT_EQ(store_->find_sandbox(s.id)->budget, s.budget);
  Budget more{.cpu_seconds = 3, .wall_seconds = 4, .commands = 5, .bytes_out = 6, .money = 7};
  ASSERT_TRUE(store_->set_budget(s.id, more));
  EXPECT_EQ(store_->find_sandbox(s.id)->budget, more);
}

TEST_F(SandboxesTest, TheFirstEndStands) {
  auto s = example();
  s.name = "n";
  ASSERT_TRUE(store_->insert_sandbox(s));
  ASSERT_TRUE(store_->set_end(s.id, EndReason::oom, "too much memory", 80));
  ASSERT_TRUE(store_->set_end(s.id, EndReason::killed, "later", 90));
  auto now = store_->find_sandbox(s.id).value();
  EXPECT_EQ(now.state, State::ended);
  EXPECT_EQ(now.end_reason, EndReason::oom);
  EXPECT_EQ(now.end_detail, "too much memory");
  EXPECT_EQ(now.ended, 80);
  EXPECT_EQ(store_->set_end("inope", EndReason::killed, "", 1).error().code, Code::not_found);
}

TEST_F(SandboxesTest, AnEndedOneDoesNotChange) {
  auto s = example();
  ASSERT_TRUE(store_->insert_sandbox(s));
  ASSERT_TRUE(store_->set_end(s.id, EndReason::deadline, "", 80));
  for (auto result : {store_->set_state(s.id, State::running), store_->set_lifetime(s.id, {}),
                      store_->set_metadata(s.id, {{"a", "b"}})}) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::invalid);
    EXPECT_NE(result.error().message.find("has ended (deadline)"), std::string::npos) << result.error().message;
  }
  EXPECT_EQ(store_->set_state("inope", State::running).error().code, Code::not_found);
  EXPECT_EQ(store_->set_metadata("inope", {}).error().code, Code::not_found);
  EXPECT_EQ(store_->set_state(s.id, State::ended).error().code, Code::invalid);
  EXPECT_TRUE(store_->touch({{s.id, 1000}}));
  EXPECT_EQ(store_->find_sandbox(s.id)->last_active, 0);
}

TEST_F(SandboxesTest, NamesAndKeysAreUniqueAmongTheLiving) {
  ASSERT_TRUE(store_->insert_project({.id = "p2", .name = "two"}));
  auto first = example();
  first.name = "web";
  first.key = "conv";
  ASSERT_TRUE(store_->insert_sandbox(first));
  auto second = example();
  second.name = "web";
  auto refused = store_->insert_sandbox(second);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::exists);
  EXPECT_EQ(refused.error().message, "the name \"web\" is taken by sandbox " + first.id);
  second.name = "";
  second.key = "conv";
  refused = store_->insert_sandbox(second);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "the key \"conv\" is taken by sandbox " + first.id);
  EXPECT_EQ(store_->find_sandbox(second.id).error().code, Code::not_found);  // nothing half-made

  auto elsewhere = example("p2");
  elsewhere.name = "web";
  elsewhere.key = "conv";
  EXPECT_TRUE(store_->insert_sandbox(elsewhere));
  ASSERT_TRUE(store_->set_state(first.id, State::paused));
  EXPECT_FALSE(store_->insert_sandbox(second));  // paused is not ended
  ASSERT_TRUE(store_->set_end(first.id, EndReason::killed, "", 5));
  second.name = "web";
  EXPECT_TRUE(store_->insert_sandbox(second));
  EXPECT_EQ(store_->insert_sandbox(second).error().code, Code::exists);  // the id itself
  // Without name and key any number may live.
  EXPECT_TRUE(store_->insert_sandbox(example()));
  EXPECT_TRUE(store_->insert_sandbox(example()));
}

TEST_F(SandboxesTest, LimitsOfTheProject) {
  auto with = [&](double cpus, uint64_t memory, uint64_t disk) {
    auto s = example("small");
    s.limits.cpus = cpus;
    s.limits.memory = memory;
    s.limits.disk = disk;
    return s;
  };
  auto expect_over = [&](const SandboxRecord& s, const std::string& sentence) {
    auto refused = store_->insert_sandbox(s);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::exhausted);
    EXPECT_EQ(refused.error().message, "project small would exceed its limit of " + sentence);
    EXPECT_EQ(store_->find_sandbox(s.id).error().code, Code::not_found);
  };
  ASSERT_TRUE(store_->insert_project({.id = "small", .name = "small"}));
  auto limit = [&](ProjectLimits limits) { ASSERT_TRUE(store_->change_project("small", {.limits = limits})); };
  auto first = with(1.5, 100, 1000);
  ASSERT_TRUE(store_->insert_sandbox(first));
  limit({.live_sandboxes = 1});
  expect_over(with(0, 0, 0), "1 live sandboxes (1 in use, 1 asked for)");
  limit({.cpus = 2});
  expect_over(with(0.6, 0, 0), "2 CPUs (1.5 in use, 0.6 asked for)");
  limit({.memory = 150});
  expect_over(with(0, 51, 0), "150 bytes of memory (100 in use, 51 asked for)");
  limit({.disk = 1500});
  expect_over(with(0, 0, 501), "1500 bytes of disk (1000 in use, 501 asked for)");
  limit({.live_sandboxes = 2, .cpus = 2, .memory = 150, .disk = 1500});
  auto second = with(0.5, 50, 500);  // exactly what is left
  ASSERT_TRUE(store_->insert_sandbox(second));
  EXPECT_EQ(store_->project_use("small").value(), (ProjectUse{2, 2, 150, 1500}));

  // A paused one gives back everything but its disk, and has to fit again when it returns.
  ASSERT_TRUE(store_->set_state(second.id, State::paused));
  EXPECT_EQ(store_->project_use("small").value(), (ProjectUse{1, 1.5, 100, 1500}));
  auto third = with(0.5, 50, 0);
  ASSERT_TRUE(store_->insert_sandbox(third));
  EXPECT_EQ(store_->set_state(second.id, State::running).error().code, Code::exhausted);
  EXPECT_EQ(store_->find_sandbox(second.id)->state, State::paused);
  ASSERT_TRUE(store_->set_end(third.id, EndReason::killed, "", 1));
  ASSERT_TRUE(store_->set_state(second.id, State::running));
  ASSERT_TRUE(store_->set_state(second.id, State::frozen));
  EXPECT_EQ(store_->project_use("small").value(), (ProjectUse{2, 2, 150, 1500}));
}

TEST_F(SandboxesTest, UseIsTheSumOverTheLivingWhateverHappened) {
  std::mt19937 random(7);
  std::vector<SandboxRecord> all;
  std::map<std::string, State> states;
  for (int i = 0; i < 400; ++i) {
    switch (random() % 4) {
      case 0: {
        auto s = example();
        s.limits.cpus = static_cast<double>(random() % 40) / 10;
        s.limits.memory = random() % 1000;
        s.limits.disk = random() % 1000;
        ASSERT_TRUE(store_->insert_sandbox(s));
        states[s.id] = s.state;
        all.push_back(s);
        break;
      }
      case 1:
        if (all.empty()) break;
        if (auto& s = all[random() % all.size()]; states[s.id] != State::ended) {
          auto to = std::array{State::running, State::frozen,   State::paused,
                               State::stopped, State::archived, State::ending}[random() % 6];
          const bool may = states[s.id] != State::ending || to == State::ending;  // what is ending only ends
          ASSERT_EQ(store_->set_state(s.id, to).has_value(), may);
          if (may) states[s.id] = to;
        }
        break;
      case 2:
        if (all.empty()) break;
        if (auto& s = all[random() % all.size()]; states[s.id] != State::ended) {
          ASSERT_TRUE(store_->set_end(s.id, EndReason::killed, "", i));
          states[s.id] = State::ended;
        }
        break;
      case 3: ASSERT_TRUE(store_->forget_ended_before(i / 2, 3)); break;
    }
  }
  ProjectUse sum;
  int64_t millicpus = 0;
  for (const auto& s : all) {
    if (states[s.id] != State::ended) sum.disk += s.limits.disk;
    if (!is_live(states[s.id])) continue;
    ++sum.live_sandboxes;
    millicpus += std::llround(s.limits.cpus * 1000);
    sum.memory += s.limits.memory;
  }
  sum.cpus = static_cast<double>(millicpus) / 1000;
  EXPECT_EQ(store_->project_use("default").value(), sum);
  EXPECT_GT(sum.live_sandboxes, 0u);
}

TEST_F(SandboxesTest, RefusedInput) {
  auto s = example("nobody");
  EXPECT_EQ(store_->insert_sandbox(s).error().code, Code::not_found);
  s = example();
  s.limits.memory = ~uint64_t{0};
  EXPECT_EQ(store_->insert_sandbox(s).error().code, Code::invalid);
  s = example();
  s.limits.cpus = std::nan("");
  EXPECT_EQ(store_->insert_sandbox(s).error().code, Code::invalid);
  s = example();
  s.metadata = {{"k", "\xff\xfe"}};
  auto refused = store_->insert_sandbox(s);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid);
  EXPECT_EQ(refused.error().message, "metadata must be UTF-8 text");
  EXPECT_TRUE(store_->living()->empty());
}

std::vector<std::string> ids_of(const std::vector<SandboxRecord>& list) {
  std::vector<std::string> ids;
  for (const auto& s : list) ids.push_back(s.id);
  return ids;
}

TEST_F(SandboxesTest, PagesAreStableAndNewestFirst) {
  std::set<std::string> made;
  for (int i = 0; i < 25; ++i) {
    auto s = example("default", 100 + i / 3);  // several at the same moment
    ASSERT_TRUE(store_->insert_sandbox(s));
    made.insert(s.id);
  }
  std::vector<SandboxRecord> seen;
  std::string cursor;
  int pages = 0;
  do {
    auto page = store_->list_sandboxes({.project = "default"}, cursor, 4);
    ASSERT_TRUE(page) << page.error().message;
    ASSERT_LE(page->sandboxes.size(), 4u);
    seen.insert(seen.end(), page->sandboxes.begin(), page->sandboxes.end());
    cursor = page->next;
    // What comes and goes meanwhile neither shifts nor repeats the rest.
    ASSERT_TRUE(store_->insert_sandbox(example("default", 1000 + ++pages)));
    ASSERT_TRUE(store_->set_end(page->sandboxes.front().id, EndReason::killed, "", 1));
    ASSERT_TRUE(store_->forget_ended_before(2, 100));
  } while (!cursor.empty());
  EXPECT_EQ(pages, 7);
  auto ids = ids_of(seen);
  EXPECT_EQ(std::set(ids.begin(), ids.end()), made);
  EXPECT_EQ(ids.size(), made.size());
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i - 1].created, seen[i].created);
}

TEST_F(SandboxesTest, TheLivingAndThePastMakeOneList) {
  std::vector<std::string> newest_first;
  for (int i = 0; i < 12; ++i) {
    auto s = example("default", 100 + i);
    ASSERT_TRUE(store_->insert_sandbox(s));
    if (i % 3 == 0) {
      ASSERT_TRUE(store_->set_end(s.id, EndReason::killed, "", 500));
    }
    newest_first.insert(newest_first.begin(), s.id);
  }
  std::vector<std::string> seen;
  std::string cursor;
  do {
    auto page = store_->list_sandboxes({.project = "default"}, cursor, 5);
    ASSERT_TRUE(page) << page.error().message;
    for (const auto& s : page->sandboxes) seen.push_back(s.id);
    cursor = page->next;
  } while (!cursor.empty());
  EXPECT_EQ(seen, newest_first);
  EXPECT_EQ(store_->list_sandboxes({.states = {State::ended}}, "", 100)->sandboxes.size(), 4u);
  EXPECT_EQ(store_->list_sandboxes({.states = {State::creating}}, "", 100)->sandboxes.size(), 8u);
  EXPECT_EQ(store_->list_sandboxes({.states = {State::creating, State::ended}}, "", 100)->sandboxes.size(), 12u);
}

// What one sandbox may carry, a thousand of them may not put into one answer.
TEST_F(SandboxesTest, APageIsNotHeavierThanItsShare) {
  constexpr size_t kMade = 100;
  for (size_t i = 0; i < kMade; ++i) {
    auto s = example("default", static_cast<Millis>(100 + i));
    s.metadata = {{"filler", std::string(60'000, 'm')}};
    s.env = {{"FILLER", std::string(120'000, 'e')}};
    s.on_create = s.on_resume = {std::string(60'000, 'h')};
    s.probe = std::string(60'000, 'p');
    ASSERT_TRUE(store_->insert_sandbox(s));
  }
  std::set<std::string> seen;
  std::string cursor;
  size_t pages = 0;
  do {
    auto page = store_->list_sandboxes({.project = "default"}, cursor, 1000);
    ASSERT_TRUE(page) << page.error().message;
    ASSERT_FALSE(page->sandboxes.empty());
    EXPECT_LE(page->sandboxes.size(), (size_t{4} << 20) / 60'000 + 1);
    for (const auto& s : page->sandboxes) {
      seen.insert(s.id);
      EXPECT_EQ(s.metadata.at("filler").size(), 60'000u);
      EXPECT_TRUE(s.env.empty() && s.on_create.empty() && s.on_resume.empty() && s.probe.empty());  // nobody shows it
    }
    cursor = page->next;
    ++pages;
  } while (!cursor.empty());
  EXPECT_EQ(seen.size(), kMade);
  EXPECT_EQ(pages, 2u);
}

TEST_F(SandboxesTest, AnExactPageHasNoNext) {
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(store_->insert_sandbox(example()));
  EXPECT_EQ(store_->list_sandboxes({.project = "default"}, "", 4)->next, "");
  EXPECT_NE(store_->list_sandboxes({.project = "default"}, "", 3)->next, "");
}

TEST_F(SandboxesTest, Filters) {
  ASSERT_TRUE(store_->insert_project({.id = "p2", .name = "two"}));
  auto add = [&](const std::string& project, State state, const std::string& name, Labels labels,
                 const std::string& task) {
    static Millis when = 0;
    auto s = example(project, ++when);
    s.state = state;
    s.name = name;
    s.metadata = std::move(labels);
    s.task = task;
    EXPECT_TRUE(store_->insert_sandbox(s));
    return s.id;
  };
  auto a = add("default", State::running, "web-1", {{"user", "u1"}, {"env", "prod"}}, "t1");
  auto b = add("default", State::paused, "web-2", {{"user", "u1"}}, "t2");
  auto c = add("default", State::ended, "db_%", {{"user", "12"}, {"a.b\"c$", "x"}}, "t1");
  auto d = add("p2", State::running, "web-1", {{"user", "u1"}}, "t1");
  using Ids = std::vector<std::string>;
  auto list = [&](SandboxFilter filter) {
    auto page = store_->list_sandboxes(filter, "", 100);
    EXPECT_TRUE(page) << page.error().message;
    return page ? ids_of(page->sandboxes) : Ids{};
  };
  EXPECT_EQ(list({}), (Ids{d, c, b, a}));
  EXPECT_EQ(list({.project = "default"}), (Ids{c, b, a}));
  EXPECT_EQ(list({.project = "nobody"}), Ids{});
  EXPECT_EQ(list({.project = "default", .states = {State::running, State::paused}}), (Ids{b, a}));
  EXPECT_EQ(list({.project = "default", .states = {State::ended, State::paused}}), (Ids{c, b}));
  EXPECT_EQ(list({.project = "default", .metadata = {{"user", "u1"}}}), (Ids{b, a}));
  EXPECT_EQ(list({.project = "default", .metadata = {{"user", "u1"}, {"env", "prod"}}}), Ids{a});
  EXPECT_EQ(list({.metadata = {{"user", "12"}}}), Ids{c});  // text, though it looks like a number
  EXPECT_EQ(list({.metadata = {{"a.b\"c$", "x"}}}), Ids{c});
  EXPECT_EQ(list({.metadata = {{"user", "u"}}}), Ids{});
  EXPECT_EQ(list({.project = "default", .name_prefix = "web-"}), (Ids{b, a}));
  EXPECT_EQ(list({.name_prefix = "db_%"}), Ids{c});
  EXPECT_EQ(list({.name_prefix = "%"}), Ids{});  // no pattern
  EXPECT_EQ(list({.project = "default", .task = "t1"}), (Ids{c, a}));
  EXPECT_EQ(
      list({.project = "default", .states = {State::running}, .metadata = {{"user", "u1"}}, .name_prefix = "web"}),
      Ids{a});
}

TEST_F(SandboxesTest, NamesOfMany) {
  auto named = example(), ended = example(), nameless = example();
  named.name = "web";
  ended.name = "db";
  for (const auto& s : {named, ended, nameless}) ASSERT_TRUE(store_->insert_sandbox(s));
  ASSERT_TRUE(store_->set_end(ended.id, EndReason::killed, "", 5));
  EXPECT_EQ(store_->names_of({named.id, ended.id, nameless.id, "nobody"}).value(),
            (Labels{{named.id, "web"}, {ended.id, "db"}}));
  EXPECT_TRUE(store_->names_of({})->empty());
}

TEST_F(SandboxesTest, CursorsThatAreNotOurs) {
  ASSERT_TRUE(store_->insert_sandbox(example()));
  for (const char* cursor : {"x", "12", "12.", ".i1", "12 .i", "zz.i1", "99999999999999999999.i"})
    EXPECT_EQ(store_->list_sandboxes({}, cursor, 10).error().code, Code::invalid) << cursor;
  EXPECT_EQ(store_->list_sandboxes({}, "", 0).error().code, Code::invalid);
}

TEST_F(SandboxesTest, LivingAndForgotten) {
  auto a = example(), b = example(), c = example();
  for (const auto& s : {a, b, c}) ASSERT_TRUE(store_->insert_sandbox(s));
  ASSERT_TRUE(store_->set_end(a.id, EndReason::killed, "", 10));
  ASSERT_TRUE(store_->set_end(b.id, EndReason::killed, "", 20));
  auto living = store_->living();
  ASSERT_TRUE(living);
  EXPECT_EQ(ids_of(*living), std::vector{c.id});
  EXPECT_EQ(store_->forget_ended_before(10, 100).value(), 0u);
  EXPECT_EQ(store_->forget_ended_before(1000, 1).value(), 1u);
  EXPECT_FALSE(store_->find_sandbox(a.id));  // the oldest first
  EXPECT_TRUE(store_->find_sandbox(b.id));
  EXPECT_EQ(store_->forget_ended_before(1000, 100).value(), 1u);
  EXPECT_TRUE(store_->find_sandbox(c.id));
}

TEST_F(SandboxesTest, WhatBecameOfANameIsKnown) {
  EXPECT_EQ(store_->find_ended("default", "walrus").error().code, Code::not_found);
  EXPECT_EQ(store_->find_ended("default", "").error().code, Code::not_found);
  std::vector<std::string> ids;
  for (Millis when : {100, 300}) {
    auto a = example();
    a.name = "walrus";
    ASSERT_TRUE(store_->insert_sandbox(a));
    EXPECT_EQ(store_->find_ended("default", "walrus").has_value(), !ids.empty()) << "while another lives";
    ASSERT_TRUE(store_->set_end(a.id, EndReason::oom, "too large", when));
    ids.push_back(a.id);
  }
  auto last = store_->find_ended("default", "walrus");
  ASSERT_TRUE(last);
  EXPECT_EQ(last->id, ids[1]);
  EXPECT_EQ(last->end_reason, EndReason::oom);
  EXPECT_FALSE(store_->find_ended("another", "walrus"));
  EXPECT_EQ(store_->forget_ended_before(1000, 100).value(), 2u);
  EXPECT_FALSE(store_->find_ended("default", "walrus"));
}

TEST_F(SandboxesTest, AChangeIsMadeWholeOrNotAtAll) {
  auto a = example();
  ASSERT_TRUE(store_->insert_sandbox(a));
  SandboxChange change{
      .lifetime = Lifetime{.deadline = 7}, .metadata = Labels{{"k", "v"}}, .network = "default deny\n"};
  change.budget = Budget{.money = 2};
  ASSERT_TRUE(store_->change_sandbox(a.id, change));
  auto is = store_->find_sandbox(a.id);
  ASSERT_TRUE(is);
  EXPECT_EQ(is->lifetime, *change.lifetime);
  EXPECT_EQ(is->metadata, *change.metadata);
  EXPECT_EQ(is->network, *change.network);
  EXPECT_EQ(is->budget, *change.budget);
  EXPECT_FALSE(store_->change_sandbox(a.id, {.lifetime = Lifetime{.deadline = 8}, .metadata = Labels{{"k", "\xff"}}}));
  EXPECT_EQ(store_->find_sandbox(a.id)->lifetime.deadline, 7);
}

TEST_F(SandboxesTest, WhatIsEndingOnlyEnds) {
  auto a = example();
  ASSERT_TRUE(store_->insert_sandbox(a));
  ASSERT_TRUE(store_->set_state(a.id, State::ending, {EndReason::idle, "nobody came"}));
  for (State to : {State::running, State::frozen, State::paused})
    EXPECT_EQ(store_->set_state(a.id, to).error().code, Code::invalid) << to_string(to);
  EXPECT_EQ(store_->find_sandbox(a.id)->end_reason, EndReason::idle);
  EXPECT_TRUE(store_->set_end(a.id, EndReason::idle, "nobody came", 10));
}

// Nobody finds anything, and a past that is long enough is not walked to its end. Pages go by an index all the same.
TEST_F(StoreTest, ASearchHasItsTime) {
  for (Millis i = 0; i < 2000; ++i) {
    auto s = example("default", i);
    s.state = State::ended;
    ASSERT_TRUE(store_->insert_sandbox(s));
  }
  using Clock = std::chrono::steady_clock;
  for (SandboxFilter filter : {SandboxFilter{.project = "default", .metadata = {{"no", "one"}}},
                               SandboxFilter{.project = "default", .name_prefix = "nobody"},
                               SandboxFilter{.project = "default", .task = "none"}}) {
    EXPECT_TRUE(filter.searches());
    filter.until = Clock::now() - std::chrono::seconds(1);
    auto late = store_->list_sandboxes(filter, "", 100);
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code, Code::timeout) << late.error().message;
    filter.until = Clock::now() + std::chrono::hours(1);
    auto found = store_->list_sandboxes(filter, "", 100);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_TRUE(found->sandboxes.empty());
  }
  SandboxFilter page{.project = "default", .states = {State::ended}};
  EXPECT_FALSE(page.searches());
  page.until = Clock::now() - std::chrono::seconds(1);
  auto newest = store_->list_sandboxes(page, "", 10);
  ASSERT_TRUE(newest) << "a page costs no more than its rows: " << newest.error().message;
  EXPECT_EQ(newest->sandboxes.size(), 10u);
}

}  // namespace
}  // namespace isola::store
