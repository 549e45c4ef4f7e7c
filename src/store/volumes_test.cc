// Volumes in the store: names, the project's limit of stored bytes, and who has them.
#include "store/test_store.h"

namespace isola::store {
namespace {

class StoredVolumes : public StoreTest {
 protected:
  VolumeRecord volume(const std::string& name, uint64_t size = 100, Millis created = 50) {
    VolumeRecord one{.id = new_volume_id(), .project = "default", .name = name, .size = size, .created = created};
    one.labels = {{"team", "ü"}};
    return one;
  }
  VolumeRecord there(const std::string& name, uint64_t size = 100, Millis created = 50) {
    auto one = volume(name, size, created);
    EXPECT_TRUE(store_->insert_volume(one));
    EXPECT_TRUE(store_->set_volume_there(one.id));
    return one;
  }
  uint64_t stored() { return store_->project_use("default").value().stored; }
};

TEST_F(StoredVolumes, OneComesBackAsItWasOnceItIsThere) {
  auto wrote = volume("data");
  ASSERT_TRUE(store_->insert_volume(wrote));
  EXPECT_EQ(store_->find_volume("default", "data").error().code, Code::not_found) << "it is being made";
  EXPECT_EQ(store_->insert_volume(volume("data")).error().code, Code::exists);
  ASSERT_TRUE(store_->set_volume_there(wrote.id));
  EXPECT_FALSE(store_->set_volume_there(wrote.id));
  reopen();
  for (const auto& name : {wrote.id, wrote.name}) {
    auto read = store_->find_volume("default", name);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->id, wrote.id);
    EXPECT_EQ(read->name, "data");
    EXPECT_EQ(read->size, 100u);
    EXPECT_EQ(read->created, 50);
    EXPECT_EQ(read->labels, wrote.labels);
    EXPECT_EQ(read->state, VolumeState::there);
    EXPECT_EQ(store_->find_volume("other", name).error().code, Code::not_found);
    EXPECT_EQ(store_->find_volume_of_any(name).has_value(), name == wrote.id);
  }
}

TEST_F(StoredVolumes, TheProjectsLimitHoldsForTheirSizes) {
  ASSERT_TRUE(store_->change_project("default", {.limits = ProjectLimits{.stored = 250}}));
  auto one = there("one"), two = there("two");
  EXPECT_EQ(stored(), 200u);
  EXPECT_EQ(store_->insert_volume(volume("three")).error().code, Code::exhausted);
  EXPECT_EQ(store_->set_volume_size(one.id, 151).error().code, Code::exhausted);
  ASSERT_TRUE(store_->set_volume_size(one.id, 150));
  EXPECT_EQ(stored(), 250u);
  ASSERT_TRUE(store_->set_volume_size(one.id, 50));
  ASSERT_TRUE(store_->retire_volume(two.id));
  EXPECT_EQ(stored(), 50u);
  EXPECT_TRUE(store_->insert_volume(volume("two"))) << "its name is free again";
  ASSERT_TRUE(store_->forget_volume(two.id));
  ASSERT_TRUE(store_->forget_volume(one.id));  // not gone: stays
  EXPECT_EQ(store_->all_volumes().value().size(), 2u);
}

TEST_F(StoredVolumes, WhoHasOneKeepsItFromGoing) {
  auto one = there("one"), two = there("two");
  auto box = example();
  box.state = State::running;
  box.volumes = {{.volume = one.id, .path = "/data", .read_only = true, .subpath = "a/b", .name = "one"},
                 {.volume = one.id, .path = "/again"}};
  ASSERT_TRUE(store_->insert_sandbox(box));
  EXPECT_EQ(store_->find_sandbox(box.id).value().volumes, box.volumes);
  EXPECT_EQ(store_->users_of_volume(one.id).value(), std::vector<std::string>{box.id});
  EXPECT_TRUE(store_->users_of_volume(two.id).value().empty());
  auto refused = store_->retire_volume(one.id);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().sys_errno, EBUSY);
  EXPECT_TRUE(store_->retire_volume(two.id));
  ASSERT_TRUE(store_->set_state(box.id, State::paused));
  EXPECT_FALSE(store_->retire_volume(one.id)) << "one that sleeps has it, too";
  ASSERT_TRUE(store_->set_end(box.id, EndReason::killed, "", 99));
  EXPECT_TRUE(store_->retire_volume(one.id));
}

TEST_F(StoredVolumes, NobodyGetsWhatIsNotThere) {
  auto box = example();
  box.state = State::running;
  auto one = volume("one");
  box.volumes = {{.volume = one.id, .path = "/data"}};
  EXPECT_EQ(store_->insert_sandbox(box).error().code, Code::not_found);
  ASSERT_TRUE(store_->insert_volume(one));
  ASSERT_TRUE(store_->set_volume_there(one.id));
  auto two = volume("two");
  ASSERT_TRUE(store_->insert_volume(two));
  ASSERT_TRUE(store_->retire_volume(two.id));
  auto late = box;
  late.volumes[0].volume = two.id;
  EXPECT_EQ(store_->insert_sandbox(late).error().code, Code::not_found) << "about to go";
  auto elsewhere = box;
  ASSERT_TRUE(store_->insert_project({.id = "other", .name = "other"}));
  elsewhere.project = "other";
  EXPECT_EQ(store_->insert_sandbox(elsewhere).error().code, Code::not_found) << "another project's";
  EXPECT_TRUE(store_->insert_sandbox(box));
}

TEST_F(StoredVolumes, AListComesInPages) {
  std::vector<std::string> names;
  for (int i = 0; i < 5; ++i) there("v" + std::to_string(i), 1, 100 + i);
  (void)store_->insert_volume(volume("unfinished"));
  std::string cursor;
  do {
    auto page = store_->list_volumes("default", cursor, 2).value();
    for (const auto& one : page.volumes) names.push_back(one.name);
    cursor = page.next;
  } while (!cursor.empty());
  EXPECT_EQ(names, (std::vector<std::string>{"v4", "v3", "v2", "v1", "v0"}));
  EXPECT_TRUE(store_->list_volumes("other", "", 10).value().volumes.empty());
}

}  // namespace
}  // namespace isola::store
