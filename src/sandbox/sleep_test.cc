// Pauses, resumes and rollbacks when the disk is full or the launcher does not do what it is asked.
#include "base/ids.h"
#include "sandbox/service_fixture.h"

namespace isola::sandbox {
namespace {

class SleepTest : public ServiceTest {
 protected:
  // A snapshot without memory, as an earlier server made it of the sandbox.
  std::string kept(const std::string& id) {
    store::ImageRecord image{.id = new_image_id(), .project = "default", .name = "kept", .sandbox = id};
    EXPECT_TRUE(store_->insert_snapshot(image));
    fake_.add_image({.id = image.id, .sandbox = id, .verb = "snapshot"});
    return image.id;
  }
  // One that is paused; its image has its memory.
  std::string paused() {
    auto id = left(State::running);
    store::ImageRecord image{
        .id = new_image_id(), .project = "default", .kind = store::ImageKind::pause, .sandbox = id};
    image.memory = true;
    EXPECT_TRUE(store_->set_asleep(id, State::paused, image, 1, ""));
    fake_.add_image({.id = image.id, .sandbox = id, .verb = "pause", .memory = true});
    fake_.forget(id);
    return id;
  }
};

TEST_F(SleepTest, APauseThatCannotBeWrittenDownKeepsItsImage) {
  auto id = left(State::running);
  ASSERT_TRUE(start({.sweep = std::chrono::milliseconds(10)}));
  auto box = adopted(id);
  fill_disk();
  PauseRequest files{.memory = false};
  auto paused = wait(service_->pause(box, files));
  ASSERT_FALSE(paused) << "nobody is told that it is kept before it is";
  EXPECT_NE(paused.error().message.find("cannot be written down"), std::string::npos) << paused.error().message;
  EXPECT_EQ(box->state(), State::stopped);
  EXPECT_FALSE(wait(service_->pause(box, files)));
  // A stranger would be dropped at the second look.
  fake_.wait_for(launcher::Op::images, fake_.asked(launcher::Op::images) + 4);
  EXPECT_EQ(fake_.images(), std::set<std::string>{box->record().image});
  empty_disk();
  while (stored(id).state != State::stopped) std::this_thread::yield();
  EXPECT_EQ(stored(id).image, box->record().image);
  EXPECT_TRUE(store_->find_image(box->record().image));
  EXPECT_TRUE(wait(service_->pause(box, files)));
}

// Its time was up: it sleeps, written down or not, and is not ended for that.
TEST_F(SleepTest, AnAutomaticPauseThatCannotBeWrittenDownIsNoReasonToEndIt) {
  auto id = left(State::running, [](auto& r) {
    r.lifetime.at_end = store::AtEnd::stop;
    r.lifetime.deadline = 1;
  });
  fill_disk();
  ASSERT_TRUE(start());
  auto box = adopted(id);
  while (box->state() != State::stopped) std::this_thread::yield();
  settle(box);
  EXPECT_EQ(box->state(), State::stopped);
  EXPECT_EQ(fake_.asked(launcher::Op::kill), 0);
  EXPECT_EQ(fake_.images().size(), 1u);
  empty_disk();
  while (stored(id).state != State::stopped) std::this_thread::yield();
}

TEST_F(SleepTest, WhatAnEarlierServerCouldNotWriteDownIsNotDropped) {
  auto id = left(State::running);
  ASSERT_TRUE(start({.sweep = std::chrono::milliseconds(10)}));
  fake_.add_image({.id = "maaaaaaaaaaaaaaaaaaaa", .sandbox = id, .verb = "pause"});
  fake_.add_image({.id = "mbbbbbbbbbbbbbbbbbbbb", .sandbox = id, .verb = "snapshot"});
  while (fake_.images().contains("mbbbbbbbbbbbbbbbbbbbb")) std::this_thread::yield();
  EXPECT_TRUE(fake_.images().contains("maaaaaaaaaaaaaaaaaaaa"));
  // Nobody needs it once the sandbox is over.
  ASSERT_TRUE(wait(service_->kill(adopted(id))));
  while (!fake_.images().empty()) std::this_thread::yield();
}

TEST_F(SleepTest, ARollbackIsNeverAnsweredWithWhatItWasToUndo) {
  auto id = left(State::running);
  auto snapshot = kept(id);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  fake_.fail(launcher::Op::kill, 1);
  ASSERT_FALSE(wait(service_->rollback(box, snapshot)));
  EXPECT_EQ(box->state(), State::stopped);
  EXPECT_EQ(fake_.life(id), 0) << "what it was lives still";
  auto again = wait(service_->rollback(box, snapshot));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(box->state(), State::running);
  EXPECT_EQ(fake_.asked(launcher::Op::kill), 2);
  EXPECT_NE(fake_.life(id), 0) << "another one";
}

TEST_F(SleepTest, NeitherAResumeNorTheSweepTakesWhatARollbackGaveUp) {
  auto id = left(State::running);
  auto snapshot = kept(id);
  ASSERT_TRUE(start({.sweep = std::chrono::milliseconds(10)}));
  auto box = adopted(id);
  fake_.fail(launcher::Op::kill, 1);
  ASSERT_FALSE(wait(service_->rollback(box, snapshot)));
  while (fake_.left().contains(id)) std::this_thread::yield();
  EXPECT_EQ(box->state(), State::stopped);
  ResumeRequest usual;
  auto woken = wait(service_->resume(box, usual));
  ASSERT_TRUE(woken) << woken.error().message;
  EXPECT_NE(fake_.life(id), 0);
}

TEST_F(SleepTest, AServerThatStartsEndsWhatARollbackGaveUp) {
  auto id = left(State::running);
  auto snapshot = kept(id);
  ASSERT_TRUE(store_->set_rolled_back(id, snapshot, 77));
  ASSERT_TRUE(start());
  EXPECT_TRUE(fake_.left().empty());
  EXPECT_EQ(adopted(id)->state(), State::stopped);
}

// The answer got lost, and the server with it.
TEST_F(SleepTest, AServerThatStartsTakesWhatWasResumed) {
  auto id = left(State::running);
  auto snapshot = kept(id);
  ASSERT_TRUE(store_->set_rolled_back(id, snapshot, 77));
  ASSERT_TRUE(store_->set_state(id, State::creating));
  fake_.add(id, false, false, 77);
  ASSERT_TRUE(start());
  EXPECT_EQ(fake_.left(), std::set<std::string>{id});
  EXPECT_EQ(adopted(id)->state(), State::running);
}

TEST_F(SleepTest, WhatCannotBeUsedIsFoundBeforeAnythingIsGivenUp) {
  auto id = left(State::running);
  auto snapshot = kept(id);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  fake_.fail(launcher::Op::verify_image, 1, Code::invalid);
  EXPECT_FALSE(wait(service_->rollback(box, snapshot)));
  EXPECT_EQ(box->state(), State::running);
  EXPECT_EQ(fake_.asked(launcher::Op::kill), 0);
  EXPECT_EQ(fake_.wanted().id, id) << "asked for this sandbox, with its limits";
  EXPECT_EQ(fake_.wanted().limits, box->record().limits);
}

TEST_F(SleepTest, AResumeThatCannotBeWrittenDownComesThroughLater) {
  auto id = paused();
  ASSERT_TRUE(start({.patience = std::chrono::milliseconds(20)}));
  auto box = adopted(id);
  run_sql(
      "CREATE TRIGGER full BEFORE UPDATE ON sandboxes WHEN NEW.state = 'running' BEGIN SELECT RAISE(ABORT, 'full'); "
      "END");
  ResumeRequest usual;
  ASSERT_FALSE(wait(service_->resume(box, usual)));
  EXPECT_EQ(box->state(), State::creating);
  empty_disk();
  while (box->state() != State::running) std::this_thread::yield();
  EXPECT_EQ(stored(id).state, State::running);
}

// Whoever finds it alive, or makes it go on when the disk has room again, knows only what is in the store.
TEST_F(SleepTest, GrantsAreGoneBeforeAnythingIsResumed) {
  auto id = paused();
  ASSERT_TRUE(store_->insert_secret({.project = "default", .name = "token", .sealed = "sealed"}));
  store::BindingRecord grant{.id = "b1", .project = "default", .scope = store::BindingScope::sandbox, .subject = id};
  grant.secret = "token";
  grant.body = R"({"names":["a.example"]})";
  ASSERT_TRUE(store_->insert_binding(grant));
  ASSERT_TRUE(store_->change_sandbox(id, {.keep_grants = true}));
  ASSERT_TRUE(start({.patience = std::chrono::milliseconds(20)}));
  auto box = adopted(id);
  auto grants = [&] { return store_->list_bindings("default", store::BindingScope::sandbox, id)->size(); };
  ASSERT_EQ(grants(), 1u);
  run_sql("CREATE TRIGGER full BEFORE DELETE ON bindings BEGIN SELECT RAISE(ABORT, 'full'); END");
  ResumeRequest without;
  without.keep_grants = false;
  ASSERT_FALSE(wait(service_->resume(box, without)));
  EXPECT_EQ(fake_.asked(launcher::Op::launch), 0);
  EXPECT_EQ(box->state(), State::paused);
  EXPECT_EQ(stored(id).state, State::paused);
  empty_disk();
  fake_.hold(launcher::Op::launch);
  auto resumed = begin(service_->resume(box, without));
  fake_.wait_for(launcher::Op::launch, 1);
  EXPECT_EQ(grants(), 0u);
  fake_.release(launcher::Op::launch);
  (void)resumed.get();
}

// ---- scrub ----------------------------------------------------------------------------------------------------------

TEST_F(SleepTest, WhatTheDiskHasLostIsFoundOneAfterTheOther) {
  auto id = left(State::running);
  auto snapshot = kept(id);
  auto other = paused();
  fake_.damage(snapshot);
  ASSERT_TRUE(start({.sweep = std::chrono::milliseconds(10), .scrub = std::chrono::milliseconds(1)}));
  while (events(id, ledger::Kind::image_damaged).empty()) std::this_thread::yield();
  auto event = events(id, ledger::Kind::image_damaged).front();
  EXPECT_NE(event.data.find(snapshot), std::string::npos) << event.data;
  // Each has its turn, and what is known is not said again.
  fake_.wait_for(launcher::Op::verify_image, fake_.asked(launcher::Op::verify_image) + 6);
  EXPECT_EQ(fake_.read_through(), (std::set<std::string>{snapshot, stored(other).image}));
  EXPECT_EQ(events(id, ledger::Kind::image_damaged).size(), 1u);
  EXPECT_TRUE(events(other, ledger::Kind::image_damaged).empty());
}

// ---- buckets --------------------------------------------------------------------------------------------------------

class BucketsOfServiceTest : public SleepTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(start());
    SecretRequest secret;
    secret.name = "keys";
    secret.value = vault::Secret("id:key");
    auto put = wait(service_->put_secret(std::move(secret), false));
    ASSERT_TRUE(put) << put.error().message;
  }
  static store::VolumeUse bucket() {
    store::VolumeUse use;
    use.path = "/mnt/bucket";
    use.bucket = store::BucketUse{.endpoint = "https://s3.example.org", .bucket = "data", .secret = "keys"};
    return use;
  }
  std::string refused(CreateRequest request) {
    auto created = wait(service_->create(std::move(request)));
    if (created) return "created";
    return created.error().code == Code::denied ? created.error().message : "otherwise: " + created.error().message;
  }
};

TEST_F(BucketsOfServiceTest, NoneBeyondTheCeilingOfTheProject) {
  store::ProjectChange change;
  change.ceiling = "allow other.example.org\ndefault deny\n";
  ASSERT_TRUE(service_->change_project("default", change));
  auto request = reaching_out();
  request.network.clear();
  request.may_mount_buckets = true;
  request.buckets.emplace().push_back(bucket());
  EXPECT_NE(refused(request).find("ceiling"), std::string::npos) << refused(request);
  change.ceiling = "allow s3.example.org:443\ndefault deny\n";
  ASSERT_TRUE(service_->change_project("default", change));
  EXPECT_EQ(refused(request).find("ceiling"), std::string::npos) << refused(request);
}

TEST_F(BucketsOfServiceTest, ASnapshotBringsThemToNobodyWhoMayNotMountThem) {
  store::ImageRecord image{.id = new_image_id(), .project = "default", .name = "with"};
  image.volumes.push_back(bucket());
  ASSERT_TRUE(store_->insert_snapshot(image));
  CreateRequest request{.project = "default"};
  request.snapshot = "with";
  EXPECT_NE(refused(request).find("scope admin"), std::string::npos);
  EXPECT_EQ(fake_.asked(launcher::Op::launch), 0);
  request.buckets.emplace();
  EXPECT_EQ(refused(request).find("scope admin"), std::string::npos) << "its files are no secret of the project";
}

}  // namespace
}  // namespace isola::sandbox
