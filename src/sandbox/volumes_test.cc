// Volumes of the service and of the launcher stay the same, whoever fails in the middle.
#include "base/ids.h"
#include "sandbox/fake_launcher.h"
#include "sandbox/folders.h"

namespace isola::sandbox {
namespace {

class ServiceVolumes : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = store::SqliteStore::open(folder_ / "store.db");
    EXPECT_TRUE(ledger::provide_key(folder_ / "ledger.db", folder_ / "ledger.key", ::getuid(), ::getgid()));
    auto ledger = ledger::Ledger::open(folder_ / "ledger.db");
    ASSERT_TRUE(store && ledger);
    store_ = std::move(*store);
    ledger_ = std::move(*ledger);
    ASSERT_TRUE(store_->insert_project({.id = "default", .name = "default", .created = 1}));
  }
  void TearDown() override {
    if (service_) service_->stop();
    if (link_) link_->stop();
    service_.reset();
    link_.reset();
    keep_.reset();
    io_.stop();
    worker_.join();
  }
  void start() {
    link_ = LauncherLink::make(io_, [this](bool) { return fake_.connect(); });
    service_ = std::make_shared<Service>(Service::Parts{.next_worker = [this]() -> net::io_context& { return io_; },
                                                        .launcher = link_,
                                                        .store = *store_,
                                                        .ledger = *ledger_,
                                                        .cache_dir = folder_.path(),
                                                        .registries = {},
                                                        .settings = {.sweep = std::chrono::milliseconds(10)}});
    Result<void> started;
    for (int i = 0; i < 1000; ++i) {
      started = run(service_->start());
      if (started || started.error().code != Code::unavailable) break;
      std::this_thread::yield();
    }
    ASSERT_TRUE(started) << started.error().message;
  }
  template <typename T>
  T run(Task<T> task) {
    return net::co_spawn(io_, std::move(task), net::use_future).get();
  }
  Result<VolumeLook> make(const std::string& name, bool or_get = false) {
    VolumeRequest request;
    request.name = name;
    request.or_get = or_get;
    return run(service_->create_volume(std::move(request)));
  }

  store::TempFolder folder_;
  std::unique_ptr<store::SqliteStore> store_;
  std::unique_ptr<ledger::Ledger> ledger_;
  FakeLauncher fake_;
  net::io_context io_;
  net::executor_work_guard<net::io_context::executor_type> keep_ = net::make_work_guard(io_);
  std::thread worker_{[this] { io_.run(); }};
  std::shared_ptr<LauncherLink> link_;
  std::shared_ptr<Service> service_;
};

TEST_F(ServiceVolumes, OneThatCannotBeMadeLeavesNothing) {
  start();
  fake_.fail(launcher::Op::make_volume, 1);
  EXPECT_FALSE(make("data"));
  EXPECT_TRUE(store_->all_volumes().value().empty());
  EXPECT_EQ(store_->project_use("default").value().stored, 0u);
  auto made = make("data");
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(fake_.volumes(), std::set<std::string>{made->volume.id});
  EXPECT_EQ(make("data").error().code, Code::exists);
  auto again = make("data", true);
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->existed);
  EXPECT_EQ(again->volume.id, made->volume.id);
}

TEST_F(ServiceVolumes, OneThatCannotBeDroppedIsTriedAgain) {
  start();
  auto made = make("data");
  ASSERT_TRUE(made) << made.error().message;
  fake_.fail(launcher::Op::drop_volume, 3);
  ASSERT_TRUE(run(service_->remove_volume("default", "data", Caller())));
  EXPECT_EQ(run(service_->look_at_volume("default", "data")).error().code, Code::not_found);
  EXPECT_TRUE(make("data")) << "its name is free at once";
  fake_.wait_for(launcher::Op::drop_volume, 4);
  EXPECT_EQ(fake_.volumes().size(), 1u);
}

// Killed between the record and the volume, or between the volume and the word that it is there.
TEST_F(ServiceVolumes, WhatNobodyWasToldOfIsRemovedAtTheStart) {
  store::VolumeRecord bare{.id = new_volume_id(), .project = "default", .name = "bare", .size = 1};
  store::VolumeRecord half{.id = new_volume_id(), .project = "default", .name = "half", .size = 1};
  store::VolumeRecord whole{.id = new_volume_id(), .project = "default", .name = "whole", .size = 1};
  for (const auto& one : {bare, half, whole}) ASSERT_TRUE(store_->insert_volume(one));
  ASSERT_TRUE(store_->set_volume_there(whole.id));
  fake_.add_volume(half.id);
  fake_.add_volume(whole.id);
  std::string strange = new_volume_id();
  fake_.add_volume(strange);
  start();
  EXPECT_EQ(fake_.volumes(), (std::set<std::string>{whole.id, strange})) << "what the store does not know is not ours";
  auto left = store_->all_volumes().value();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left.front().id, whole.id);
}

// Who was filling it is on its way out when the server starts, and is not waited for.
TEST_F(ServiceVolumes, AFolderThatWasHalfKeptIsNobodys) {
  store::VolumeRecord half{.id = new_volume_id(), .project = "default", .name = "half", .size = 1, .created = 1};
  half.labels[kFolderLabel] = "i:/srv";
  ASSERT_TRUE(store_->insert_volume(half));
  fake_.add_volume(half.id);
  store::ImageRecord files{.id = new_image_id(), .project = "default", .kind = store::ImageKind::step};
  files.name = kFolderLabel;
  ASSERT_TRUE(store_->insert_build_image(files));
  auto helper = store::example();
  helper.state = State::running;
  helper.one_shot = true;
  store::VolumeUse use;
  use.volume = half.id;
  use.path = "/mnt";
  helper.volumes.push_back(use);
  ASSERT_TRUE(store_->insert_sandbox(helper));
  fake_.add(helper.id);
  fake_.add_image({.id = files.id, .sandbox = helper.id, .verb = "snapshot"});
  start();
  while (!store_->all_volumes().value().empty()) std::this_thread::yield();
  while (!fake_.images().empty()) std::this_thread::yield();
  EXPECT_TRUE(fake_.volumes().empty());
  EXPECT_TRUE(make("half")) << "its name is free";
}

TEST_F(ServiceVolumes, OneIsLookedAtAlone) {
  start();
  ASSERT_TRUE(make("data"));
  fake_.hold(launcher::Op::volumes);  // of all projects: nobody waits for those
  auto look = run(service_->look_at_volume("default", "data"));
  ASSERT_TRUE(look) << look.error().message;
  EXPECT_EQ(look->used, 4711u);
}

}  // namespace
}  // namespace isola::sandbox
