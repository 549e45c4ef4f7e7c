// Images in the store: whose they are, what they take of a project's limit, and the sandboxes that sleep in them.
#include "store/test_store.h"

namespace isola::store {
namespace {

ImageRecord image_of(const SandboxRecord& sandbox, ImageKind kind, uint64_t bytes = 100, Millis created = 50) {
  ImageRecord image{.id = new_image_id(), .project = sandbox.project, .kind = kind};
  image.sandbox = sandbox.id;
  image.parent = "mparent";
  image.template_name = "base";
  image.digest = std::string(64, 'b');
  image.memory = true;
  image.memory_bytes = bytes;
  image.created = image.last_used = created;
  image.limits = {.cpus = 1.5, .memory = 7, .pids = 8, .disk = 9, .open_files = 10, .io_bytes_per_second = 11};
  image.env = {{"A", "ü"}};
  image.metadata = {{"k", "v"}};
  return image;
}

class StoredImages : public StoreTest {
 protected:
  SandboxRecord running(State state = State::running) {
    auto s = example();
    s.state = state;
    s.limits.memory = 1000;
    EXPECT_TRUE(store_->insert_sandbox(s));
    return s;
  }
  uint64_t stored() { return store_->project_use("default").value().stored; }
  void limit_to(ProjectLimits limits) { ASSERT_TRUE(store_->change_project("default", {.limits = limits})); }
};

TEST_F(StoredImages, ASnapshotComesBackAsItWas) {
  auto box = running();
  auto wrote = image_of(box, ImageKind::snapshot);
  wrote.name = "before \"x\"";
  wrote.layer_bytes = 5;
  wrote.exposed = true;
  wrote.expires_after = 1000;
  ASSERT_TRUE(store_->insert_snapshot(wrote));
  reopen();
  for (const auto& name : {wrote.id, wrote.name}) {
    auto read = store_->find_snapshot("default", name);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->id, wrote.id);
    EXPECT_EQ(read->name, wrote.name);
    EXPECT_EQ(read->sandbox, box.id);
    EXPECT_EQ(read->parent, "mparent");
    EXPECT_EQ(read->template_name, "base");
    EXPECT_EQ(read->digest, wrote.digest);
    EXPECT_TRUE(read->memory);
    EXPECT_EQ(read->bytes(), 105u);
    EXPECT_TRUE(read->exposed);
    EXPECT_EQ(read->expires_after, 1000);
    EXPECT_EQ(read->limits, wrote.limits);
    EXPECT_EQ(read->env, wrote.env);
    EXPECT_EQ(read->metadata, wrote.metadata);
  }
  EXPECT_EQ(store_->find_snapshot("other", wrote.name).error().code, Code::not_found);
  EXPECT_EQ(stored(), 105u);
}

TEST_F(StoredImages, ANameIsTakenUntilTheSnapshotIsSpent) {
  auto box = running();
  auto one = image_of(box, ImageKind::snapshot), two = image_of(box, ImageKind::snapshot);
  one.name = two.name = "same";
  ASSERT_TRUE(store_->insert_snapshot(one));
  EXPECT_EQ(store_->insert_snapshot(two).error().code, Code::exists);
  ASSERT_TRUE(store_->spend_snapshot(one.id));
  EXPECT_EQ(store_->spend_snapshot(one.id).error().code, Code::not_found);
  EXPECT_EQ(stored(), 0u);
  EXPECT_TRUE(store_->insert_snapshot(two));
  auto three = two;
  three.id += "x";
  EXPECT_EQ(store_->insert_snapshot(three).error().code, Code::exists);
  EXPECT_TRUE(store_->insert_snapshot(three, two.id)) << "in the place of the one that has the name";
  EXPECT_EQ(store_->find_snapshot(three.project, three.name)->id, three.id);
  EXPECT_FALSE(store_->find_snapshot(two.project, two.id));
  ASSERT_TRUE(store_->forget_image(one.id));
  ASSERT_TRUE(store_->forget_image(two.id));
  ASSERT_TRUE(store_->forget_image(three.id));  // not spent: stays
  auto all = store_->all_images().value();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all.front().id, three.id);
}

TEST_F(StoredImages, WhatIsPackedTakesLess) {
  auto box = running();
  EXPECT_EQ(store_->set_packed(box.id, State::archived, 1, 1).error().code, Code::not_found) << "it is awake";
  ASSERT_TRUE(store_->set_asleep(box.id, State::paused, image_of(box, ImageKind::pause), 60));
  EXPECT_EQ(stored(), 100u);
  ASSERT_TRUE(store_->set_packed(box.id, State::archived, 7, 3));
  EXPECT_EQ(stored(), 10u);
  reopen();
  EXPECT_EQ(store_->find_sandbox(box.id).value().state, State::archived);
  EXPECT_EQ(store_->set_packed(box.id, State::running, 7, 3).error().code, Code::invalid);
  ASSERT_TRUE(store_->set_packed(box.id, State::paused, 100, 0));
  EXPECT_EQ(stored(), 100u);
  EXPECT_EQ(store_->find_sandbox(box.id).value().state, State::paused);
}

TEST_F(StoredImages, TheProjectsLimitHoldsForAllOfThem) {
  auto box = running();
  limit_to({.stored = 250});
  ASSERT_TRUE(store_->insert_snapshot(image_of(box, ImageKind::snapshot)));
  auto other = running();
  ASSERT_TRUE(store_->set_asleep(other.id, State::paused, image_of(other, ImageKind::pause), 60));
  EXPECT_EQ(stored(), 200u);
  auto refused = store_->insert_snapshot(image_of(box, ImageKind::snapshot));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::exhausted);
  EXPECT_NE(refused.error().message.find("250 stored bytes"), std::string::npos);
  ASSERT_TRUE(store_->set_end(other.id, EndReason::killed, "", 70));
  EXPECT_EQ(stored(), 100u);  // its pause is spent with it
  EXPECT_TRUE(store_->insert_snapshot(image_of(box, ImageKind::snapshot)));
}

TEST_F(StoredImages, ASandboxSleepsAndWakes) {
  auto box = running();
  auto pause = image_of(box, ImageKind::pause);
  ASSERT_TRUE(store_->set_asleep(box.id, State::paused, pause, 60, "its time was up"));
  auto asleep = store_->find_sandbox(box.id).value();
  EXPECT_EQ(asleep.state, State::paused);
  EXPECT_EQ(asleep.image, pause.id);
  EXPECT_EQ(asleep.asleep, 60);
  EXPECT_EQ(asleep.end_detail, "its time was up");
  EXPECT_EQ(store_->project_use("default").value().memory, 0u);
  ASSERT_TRUE(store_->set_state(box.id, State::creating));  // on its way back: it counts again
  EXPECT_EQ(store_->project_use("default").value().memory, 1000u);
  EXPECT_EQ(store_->find_sandbox(box.id).value().image, pause.id);
  Lifetime lifetime{.deadline = 99, .timeout = 9};
  ASSERT_TRUE(store_->set_awake(box.id, Birth::resumed, lifetime, 33, 70));
  auto awake = store_->find_sandbox(box.id).value();
  EXPECT_EQ(awake.state, State::running);
  EXPECT_EQ(awake.birth, Birth::resumed);
  EXPECT_EQ(awake.image, "");
  EXPECT_EQ(awake.asleep, 0);
  EXPECT_EQ(awake.lifetime.deadline, 99);
  EXPECT_EQ(awake.cpu_before, 33u);
  EXPECT_EQ(store_->find_image(pause.id).value().kind, ImageKind::spent);
  EXPECT_EQ(stored(), 0u);
}

TEST_F(StoredImages, WhatIsEndingOnlyEnds) {
  auto box = running();
  auto snapshot = image_of(box, ImageKind::snapshot);
  ASSERT_TRUE(store_->insert_snapshot(snapshot));
  ASSERT_TRUE(store_->set_state(box.id, State::ending, {EndReason::killed, "by hand"}));
  EXPECT_FALSE(store_->set_asleep(box.id, State::paused, image_of(box, ImageKind::pause), 60));
  EXPECT_FALSE(store_->set_rolled_back(box.id, snapshot.id, 60));
  EXPECT_FALSE(store_->set_awake(box.id, Birth::resumed, {}, 0, 60));
  auto still = store_->find_sandbox(box.id).value();
  EXPECT_EQ(still.state, State::ending);
  EXPECT_EQ(still.end_detail, "by hand");
  EXPECT_EQ(stored(), 100u);  // the snapshot alone: nothing is half written
}

TEST_F(StoredImages, ARollbackKeepsTheSnapshotAndSpendsThePause) {
  auto box = running();
  auto snapshot = image_of(box, ImageKind::snapshot);
  ASSERT_TRUE(store_->insert_snapshot(snapshot));
  auto pause = image_of(box, ImageKind::pause);
  ASSERT_TRUE(store_->set_asleep(box.id, State::paused, pause, 60));
  EXPECT_EQ(store_->set_rolled_back(box.id, pause.id, 65).error().code, Code::not_found);
  ASSERT_TRUE(store_->set_rolled_back(box.id, snapshot.id, 65));
  EXPECT_EQ(store_->find_image(pause.id).value().kind, ImageKind::spent);
  // While it waits to be made from it, the snapshot is in use.
  auto refused = store_->spend_snapshot(snapshot.id);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().sys_errno, EBUSY);
  ASSERT_TRUE(store_->set_awake(box.id, Birth::resumed, {}, 0, 70));
  EXPECT_EQ(store_->find_image(snapshot.id).value().kind, ImageKind::snapshot);
  EXPECT_TRUE(store_->spend_snapshot(snapshot.id));
}

TEST_F(StoredImages, ExpireAfterTheirLastUse) {
  auto box = running();
  auto one = image_of(box, ImageKind::snapshot), never = image_of(box, ImageKind::snapshot);
  one.expires_after = 100;
  ASSERT_TRUE(store_->insert_snapshot(one));
  ASSERT_TRUE(store_->insert_snapshot(never));
  EXPECT_TRUE(store_->expired_images(149).value().empty());
  EXPECT_EQ(store_->expired_images(150).value().size(), 1u);
  ASSERT_TRUE(store_->touch_image(one.id, 120));
  EXPECT_TRUE(store_->expired_images(150).value().empty());
  EXPECT_EQ(store_->expired_images(220).value().front().id, one.id);
}

TEST_F(StoredImages, AWarmOneIsNobodysSnapshot) {
  auto box = running();
  auto warm = image_of(box, ImageKind::warm, 0);
  ASSERT_TRUE(store_->insert_warm(warm));
  EXPECT_EQ(store_->insert_warm(image_of(box, ImageKind::snapshot)).error().code, Code::invalid);
  EXPECT_EQ(store_->find_snapshot("default", warm.id).error().code, Code::not_found);
  EXPECT_TRUE(store_->list_snapshots("default", "", "", 10).value().snapshots.empty());
  EXPECT_EQ(store_->all_images().value().front().kind, ImageKind::warm);
  EXPECT_EQ(store_->spend_snapshot(warm.id).error().code, Code::not_found);
  ASSERT_TRUE(store_->spend_warm(warm.id));
  EXPECT_EQ(store_->find_image(warm.id).value().kind, ImageKind::spent);
  ASSERT_TRUE(store_->forget_image(warm.id));
  EXPECT_TRUE(store_->all_images().value().empty());
}

TEST_F(StoredImages, ListsArePagedNewestFirst) {
  auto box = running(), other = running();
  for (Millis at = 1; at <= 5; ++at)
    ASSERT_TRUE(store_->insert_snapshot(image_of(at % 2 ? box : other, ImageKind::snapshot, 1, at)));
  std::vector<Millis> seen;
  std::string cursor;
  do {
    auto page = store_->list_snapshots("default", "", cursor, 2).value();
    for (const auto& image : page.snapshots) seen.push_back(image.created);
    cursor = page.next;
  } while (!cursor.empty());
  EXPECT_EQ(seen, (std::vector<Millis>{5, 4, 3, 2, 1}));
  EXPECT_EQ(store_->list_snapshots("default", other.id, "", 10).value().snapshots.size(), 2u);
  EXPECT_TRUE(store_->list_snapshots("other", "", "", 10).value().snapshots.empty());
  EXPECT_EQ(store_->list_snapshots("default", "", "nonsense", 10).error().code, Code::invalid);
}

}  // namespace
}  // namespace isola::store
