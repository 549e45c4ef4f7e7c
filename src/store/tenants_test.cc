// Projects and API keys.
#include <set>
#include <thread>

#include "base/hash/sha256.h"
#include "store/keys.h"
#include "store/sqlite_schema.h"
#include "store/test_store.h"

namespace isola::store {
namespace {

using TenantsTest = StoreTest;

TEST_F(TenantsTest, AProjectOfWhichNobodyWasToldGoes) {
  ASSERT_TRUE(store_->insert_project({.id = "p9", .name = "nine"}));
  ASSERT_TRUE(store_->find_project("p9"));
  ASSERT_TRUE(store_->insert_webhook({.id = "w1", .project = "p9", .name = "n", .url = "https://example.org/"}));
  ASSERT_TRUE(store_->remove_project("p9"));
  EXPECT_TRUE(store_->list_webhooks("p9").value().empty()) << "nobody is told of a project that is gone";
  EXPECT_EQ(store_->find_project("p9").error().code, Code::not_found);
  EXPECT_EQ(store_->remove_project("p9").error().code, Code::not_found);
  ASSERT_TRUE(store_->insert_sandbox(example()));
  EXPECT_EQ(store_->remove_project("default").error().code, Code::exists);
}

TEST_F(TenantsTest, ProjectsRoundTrip) {
  ProjectRecord project{.id = new_project_id(), .name = "acme", .created = 12};
  project.limits = {.live_sandboxes = 5,
                    .cpus = 2.5,
                    .memory = 6,
                    .disk = 7,
                    .creates_per_second = 0.5,
                    .boundary = BoundaryKind::gvisor};
  project.budget = {.cpu_seconds = 1, .wall_seconds = 2, .commands = 3, .bytes_out = 4, .money = 5.5};
  ASSERT_TRUE(store_->insert_project(project));
  for (auto found : {store_->find_project(project.id), store_->find_project_by_name("acme")}) {
    ASSERT_TRUE(found);
    EXPECT_EQ(found->id, project.id);
    EXPECT_EQ(found->name, "acme");
    EXPECT_EQ(found->created, 12);
    EXPECT_EQ(found->limits, project.limits);
    EXPECT_EQ(found->budget, project.budget);
  }
  ProjectLimits limits{.live_sandboxes = 9, .boundary = BoundaryKind::uml};
  ASSERT_TRUE(store_->change_project(project.id, {.limits = limits, .budget = Budget{.money = 1}}));
  EXPECT_EQ(store_->find_project(project.id)->limits, limits);
  EXPECT_EQ(store_->find_project(project.id)->budget, Budget{.money = 1});
  auto all = store_->list_projects();
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].name, "acme");
  EXPECT_EQ(store_->project_use(project.id).value(), ProjectUse{});
}

// Whoever changes one thing takes nothing back that somebody else changes at the same moment.
TEST_F(TenantsTest, ChangesOfAProjectDoNotUndoEachOther) {
  constexpr uint32_t kRounds = 200;
  auto each = [&](auto change) {
    return std::thread([&, change] {
      for (uint32_t i = 1; i <= kRounds; ++i) EXPECT_TRUE(store_->change_project("default", change(i)));
    });
  };
  std::thread limits = each([](uint32_t i) { return ProjectChange{.limits = ProjectLimits{.live_sandboxes = i}}; });
  std::thread budget = each([](uint32_t i) { return ProjectChange{.budget = Budget{.commands = i}}; });
  std::thread ceiling = each([](uint32_t i) { return ProjectChange{.ceiling = std::to_string(i)}; });
  std::thread exposed = each([](uint32_t i) { return ProjectChange{.allow_exposed = i == kRounds}; });
  for (auto* thread : {&limits, &budget, &ceiling, &exposed}) thread->join();
  auto now = store_->change_project("default", {});
  ASSERT_TRUE(now);
  EXPECT_EQ(now->limits.live_sandboxes, kRounds);
  EXPECT_EQ(now->budget.commands, kRounds);
  EXPECT_EQ(now->ceiling, std::to_string(kRounds));
  EXPECT_TRUE(now->allow_exposed);
  EXPECT_EQ(store_->find_project("default")->limits, now->limits);
}

TEST_F(TenantsTest, ProjectsRefused) {
  EXPECT_EQ(store_->insert_project({.id = "p3", .name = "default"}).error().code, Code::exists);
  EXPECT_EQ(store_->insert_project({.id = "default", .name = "other"}).error().code, Code::exists);
  EXPECT_EQ(store_->insert_project({.id = "p3", .name = ""}).error().code, Code::invalid);
  EXPECT_EQ(store_->find_project("p3").error().code, Code::not_found);
  EXPECT_EQ(store_->find_project_by_name("p3").error().code, Code::not_found);
  EXPECT_EQ(store_->change_project("p3", {.limits = ProjectLimits{}}).error().code, Code::not_found);
  EXPECT_EQ(store_->project_use("p3").error().code, Code::not_found);
}

TEST(Keys, HaveTheFormThatClientsAccept) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    auto made = make_key("default", "n", Scope::admin, 3);
    ASSERT_TRUE(made);
    EXPECT_TRUE(is_key(made->secret)) << made->secret;
    EXPECT_EQ(made->secret.size(), 44u);
    EXPECT_TRUE(seen.insert(made->secret).second);
    EXPECT_EQ(made->record.hash, sha256(made->secret).value());
    EXPECT_EQ(made->record.prefix, made->secret.substr(0, 8));
    EXPECT_EQ(made->record.id.size(), 13u);
    EXPECT_EQ(made->record.id[0], 'k');
  }
  std::string good = "e2b_" + std::string(40, 'a');
  EXPECT_TRUE(is_key(good));
  for (std::string bad : {std::string(), std::string("e2b_"), good + "a", good.substr(1), "e2b_" + std::string(40, 'A'),
                          "e2b_" + std::string(39, 'a') + "g", "E2B_" + std::string(40, 'a')})
    EXPECT_FALSE(is_key(bad)) << bad;
}

TEST(Keys, AScopeIncludesTheOnesBefore) {
  EXPECT_TRUE(allows(Scope::admin, Scope::read));
  EXPECT_TRUE(allows(Scope::use, Scope::use));
  EXPECT_FALSE(allows(Scope::read, Scope::use));
  EXPECT_FALSE(allows(Scope::use, Scope::admin));
  for (Scope scope : {Scope::read, Scope::use, Scope::admin}) EXPECT_EQ(parse_scope(to_string(scope)), scope);
  for (AtEnd action : {AtEnd::kill, AtEnd::pause, AtEnd::stop}) EXPECT_EQ(parse_at_end(to_string(action)), action);
  for (AtLimit action : {AtLimit::end, AtLimit::freeze, AtLimit::pause})
    EXPECT_EQ(parse_at_limit(to_string(action)), action);
  EXPECT_FALSE(parse_scope("root"));
  EXPECT_FALSE(parse_at_end(""));
}

TEST_F(TenantsTest, KeysOpenUntilRevoked) {
  auto made = make_key("default", "laptop", Scope::admin, 30);
  ASSERT_TRUE(made);
  EXPECT_EQ(authenticate(*store_, made->secret).error().code, Code::denied);  // not in the store yet
  ASSERT_TRUE(store_->insert_key(made->record));
  reopen();
  auto who = authenticate(*store_, made->secret);
  ASSERT_TRUE(who);
  EXPECT_EQ(who->id, made->record.id);
  EXPECT_EQ(who->project, "default");
  EXPECT_EQ(who->name, "laptop");
  EXPECT_EQ(who->scope, Scope::admin);
  EXPECT_EQ(who->prefix, made->record.prefix);
  EXPECT_EQ(who->created, 30);

  auto wrong = made->secret;
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  auto unknown = authenticate(*store_, wrong);
  auto shapeless = authenticate(*store_, "");
  ASSERT_TRUE(store_->touch_keys({{who->id, 99}, {"kunknown", 5}}));
  ASSERT_TRUE(store_->touch_keys({{who->id, 98}}));
  // The last one with which others can be made stays; other scopes and projects do not count.
  EXPECT_EQ(store_->revoke_key(who->id, 90).error().code, Code::exists);
  ASSERT_TRUE(store_->insert_project({.id = "p3", .name = "three"}));
  for (const auto& other : {make_key("default", "use", Scope::use, 31), make_key("p3", "theirs", Scope::admin, 32)})
    ASSERT_TRUE(store_->insert_key(other->record));
  EXPECT_EQ(store_->revoke_key(who->id, 90).error().code, Code::exists);
  ASSERT_TRUE(store_->insert_key(make_key("default", "desk", Scope::admin, 33)->record));
  ASSERT_TRUE(store_->revoke_key(who->id, 100));
  ASSERT_TRUE(store_->revoke_key(who->id, 200));
  auto revoked = authenticate(*store_, made->secret);
  ASSERT_FALSE(revoked);
  for (const auto& refused : {unknown, shapeless, revoked}) {
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::denied);
    EXPECT_EQ(refused.error().message, revoked.error().message);  // says nothing about which part was wrong
  }
  auto record = store_->find_key_by_hash(made->record.hash);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->revoked, 100);
  EXPECT_EQ(record->last_used, 99);
}

TEST_F(TenantsTest, KeysListedAndRefused) {
  ASSERT_TRUE(store_->insert_project({.id = "p2", .name = "two"}));
  auto a = make_key("default", "a", Scope::use, 1), b = make_key("default", "b", Scope::read, 2),
       c = make_key("p2", "c", Scope::use, 3), lost = make_key("nobody", "d", Scope::use, 4);
  for (const auto& made : {b, c, a}) ASSERT_TRUE(store_->insert_key(made->record));
  EXPECT_EQ(store_->insert_key(lost->record).error().code, Code::not_found);
  EXPECT_EQ(store_->insert_key(a->record).error().code, Code::exists);
  auto mine = store_->list_keys("default");
  ASSERT_TRUE(mine);
  ASSERT_EQ(mine->size(), 2u);
  EXPECT_EQ((*mine)[0].name, "a");
  EXPECT_EQ((*mine)[1].scope, Scope::read);
  EXPECT_EQ(store_->list_keys("")->size(), 3u);
  EXPECT_EQ(store_->revoke_key("knope", 5).error().code, Code::not_found);
  EXPECT_EQ(store_->revoke_key(a->record.id, 0).error().code, Code::invalid);
}

TEST_F(TenantsTest, BudgetsOfTasks) {
  TaskRecord task{"default", "t", {.cpu_seconds = 1.5, .commands = 2, .at_limit = AtLimit::pause}};
  ASSERT_TRUE(store_->put_task(task));
  reopen();
  EXPECT_EQ(store_->find_task("default", "t")->budget, task.budget);
  task.budget = {.money = 3};
  ASSERT_TRUE(store_->put_task(task));
  ASSERT_EQ(store_->list_tasks()->size(), 1U);
  EXPECT_EQ(store_->list_tasks()->front().budget, task.budget);
  task.budget = {};
  ASSERT_TRUE(store_->put_task(task));
  EXPECT_EQ(store_->find_task("default", "t").error().code, Code::not_found);
  EXPECT_EQ(store_->put_task({"nobody", "t", {.money = 3}}).error().code, Code::not_found);
  EXPECT_EQ(store_->put_task({"default", "", {.money = 3}}).error().code, Code::invalid);
}

TEST_F(TenantsTest, AProjectHasOnlySoManyTasksWithABudget) {
  {
    auto db = sqlite::Database::open(path(), kStoreSchema, sqlite::Sync::normal);
    ASSERT_TRUE(db);
    ASSERT_TRUE(db->run("WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < " +
                        std::to_string(kMostTasks) +
                        ") INSERT INTO tasks SELECT 'default', 't' || i, 1, 0, 0, 0, 0, 0 FROM n"));
  }
  ASSERT_TRUE(store_->put_task({"default", "last", {.money = 1}}));
  EXPECT_EQ(store_->put_task({"default", "one too many", {.money = 1}}).error().code, Code::exhausted);
  EXPECT_TRUE(store_->put_task({"default", "last", {.money = 2}}));
  EXPECT_TRUE(store_->put_task({"default", "t2", {}}));
  EXPECT_TRUE(store_->put_task({"default", "one too many", {.money = 1}}));
}

}  // namespace
}  // namespace isola::store
