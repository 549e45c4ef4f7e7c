// Sandboxes from birth to end, on a boundary that does what the test says: one that never comes to life, a guest that
// makes no link, processes that take their time to stop.
#include "launcher/cells.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/file.h"
#include "base/ids.h"
#include "boundary/box/disk.h"
#include "kernel/fault.h"
#include "kernel/mount.h"
#include "launcher/run_until_test.h"

namespace isola::launcher {
namespace {

using std::chrono::milliseconds;

// What the fakes share with the test.
struct Script {
  bool comes_to_life = true;
  bool let_go = true;     // what is made may run, once it was written down
  bool lives_on = false;  // what the journal knows is found alive
  BoundaryKind kind = BoundaryKind::jail;
  std::string handle;
  std::optional<boundary::CellName> adopted;
  std::vector<pid_t> pids;  // of what was adopted, in that order
  int links_prepared = 0, links_taken = 0;
  Fd hang_up;                                               // closing it lets the link that is being made be taken
  bool dies = false;                                        // then that was the end of the guest
  std::function<void(const boundary::LaunchSpec&)> begins;  // what runs does at once
  std::function<void()> compares;                           // when limits are
  // Whoever makes a checkpoint dies, after this.
  std::function<void(const boundary::CheckpointSpec&)> before_death;
};

// Of somebody who is killed at once.
class FakeCheckpointing : public boundary::Checkpointing {
 public:
  FakeCheckpointing() { EXPECT_EQ(::write(word_.second.get(), "x", 1), 1); }
  int fd() const override { return word_.first.get(); }
  Result<bool> advance() override { return fail(Code::unavailable, "killed"); }
  const std::string& result() const override { return result_; }
  const Latency& latency() const override { return latency_; }
  pid_t pid() const override { return -1; }

 private:
  std::pair<Fd, Fd> word_ = kernel::make_pipe().value();
  std::string result_;
  Latency latency_;
};

class FakeCell : public boundary::Cell {
 public:
  FakeCell(Script& script, kernel::Child child) : script_(script), child_(std::move(child)) {}
  ~FakeCell() override {
    ::kill(child_.pid, SIGKILL);
    ::waitpid(child_.pid, nullptr, 0);
  }
  boundary::CellName name() const override {
    return {.kind = script_.kind,
            .process = {child_.pid, kernel::start_time(child_.pid).value_or(0)},
            .handle = script_.handle};
  }
  int exit_fd() const override { return child_.pidfd.get(); }
  Result<int> prepare_link() override {
    ++script_.links_prepared;
    ISOLA_TRY(auto pipe, kernel::make_pipe());
    pending_ = std::move(pipe.first);
    script_.hang_up = std::move(pipe.second);
    return pending_.get();
  }
  Result<boundary::Link> take_link() override {
    if (script_.dies) return fail(Code::not_found, "the guest is gone");
    ++script_.links_taken;
    ISOLA_TRY(auto pipe, kernel::make_pipe());
    return boundary::Link{std::move(pipe.second), std::move(pipe.first)};
  }
  Result<const boundary::IslandSockets*> sockets() override { return &sockets_; }
  Result<void> kill() override { return kernel::send_signal(child_.pidfd.get(), SIGKILL); }
  Result<bool> quiesced() override { return true; }
  std::optional<int> exit_status() override { return std::nullopt; }

 private:
  boundary::IslandSockets sockets_;
  Script& script_;
  kernel::Child child_;
  Fd pending_;
};

class FakeLaunching : public boundary::Launching {
 public:
  FakeLaunching(Script& script, kernel::Child child, std::pair<Fd, Fd> word)
      : script_(script), child_(std::move(child)), word_(std::move(word)) {
    if (script.comes_to_life) (void)!::write(word_.second.get(), "x", 1);
  }
  ~FakeLaunching() override {
    if (!child_.pidfd) return;
    ::kill(child_.pid, SIGKILL);
    ::waitpid(child_.pid, nullptr, 0);
  }
  int fd() const override { return word_.first.get(); }
  boundary::CellName name() const override {
    if (!script_.let_go) return {};
    return {.kind = script_.kind,
            .process = {child_.pid, kernel::start_time(child_.pid).value_or(0)},
            .handle = script_.handle};
  }
  Result<std::unique_ptr<boundary::Cell>> advance() override {
    return std::make_unique<FakeCell>(script_, std::move(child_));
  }
  const Latency& latency() const override { return latency_; }

 private:
  Script& script_;
  kernel::Child child_;
  std::pair<Fd, Fd> word_;
  Latency latency_;
};

class FakeBoundary : public boundary::Boundary {
 public:
  FakeBoundary(Script& script, const kernel::CgroupTree& cgroups) : script_(script), cgroups_(cgroups) {}
  BoundaryKind kind() const override { return script_.kind; }
  boundary::Engine engine() const override { return {"fake", "1"}; }
  Result<std::unique_ptr<boundary::Launching>> begin(boundary::LaunchSpec spec) override {
    ISOLA_TRY(auto word, kernel::make_pipe());
    ISOLA_TRY(auto child, kernel::spawn(0, [] {
                for (;;) ::pause();
                return 0;
              }));
    ISOLA_TRY(auto group, cgroups_.adopt(spec.cgroup));
    auto attached = group.attach(child.pid);
    group.release();
    ISOLA_CHECK(attached);
    if (script_.begins) script_.begins(spec);
    return std::make_unique<FakeLaunching>(script_, std::move(child), std::move(word));
  }
  Result<void> verify_limits(const boundary::Limits& wanted, const kernel::CgroupLimits& installed) const override {
    if (script_.compares) script_.compares();
    if (installed.pids != wanted.pids) return fail(Code::internal, "protection mismatch: the limits");
    return {};
  }
  Result<boundary::MemoryHost> memory_host() override { return boundary::MemoryHost{}; }
  Result<std::unique_ptr<boundary::Checkpointing>> checkpoint(boundary::Cell&, boundary::CheckpointSpec spec) override {
    script_.before_death(spec);
    return std::make_unique<FakeCheckpointing>();
  }
  Result<std::unique_ptr<boundary::Cell>> adopt(const boundary::CellName& name) override {
    script_.adopted = name;
    if (!script_.lives_on) return fail(Code::not_found, "gone");
    ISOLA_TRY(auto child, kernel::spawn(0, [] {
                for (;;) ::pause();
                return 0;
              }));
    script_.pids.push_back(child.pid);
    return std::make_unique<FakeCell>(script_, std::move(child));
  }

 private:
  Script& script_;
  const kernel::CgroupTree& cgroups_;
};

// An image that nobody looks into: the smallest filesystem that there is a maker for.
Result<void> make_blob(const std::string& folder, const std::string& digest) {
  std::string empty = folder + "/empty", blob = folder + "/" + digest + ".erofs";
  std::filesystem::create_directory(empty);
  if (std::system(("mkfs.erofs " + blob + " " + empty + " >/dev/null 2>&1").c_str()) != 0)
    return fail(Code::unsupported, "mkfs.erofs is not here");
  return {};
}

class CellsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    static const bool apart = ::unshare(CLONE_NEWNS) == 0 && kernel::make_all_slave();
    ASSERT_TRUE(apart);
    char name[] = "/tmp/isola-cells-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
    ASSERT_EQ(::chdir(name), 0);  // as the stage is for a launcher: mounts are made below the working folder
    if (auto made = make_blob(folder_, digest_); !made) GTEST_SKIP() << made.error().message;
    auto tree = kernel::CgroupTree::detect({});
    ASSERT_TRUE(tree);
    if (!tree->missing().empty() || !tree->prepare()) GTEST_SKIP() << "no cgroups here";
    cgroups_.emplace(*tree);
    auto store = image::open_layer_store(folder_, {.provider = "unquotaed"}, image::AllowUnquotaedDisk{});
    ASSERT_TRUE(store) << store.error().message;
    layers_ = std::move(*store);
    loop_.emplace(std::move(*EventLoop::make()));
    ranges_.emplace(std::move(*IdRanges::open(folder_, folder_ + "/ids")));
    journal_.emplace(std::move(*Journal::open(folder_ + "/run")));
    boundary_.emplace(script_, *cgroups_);
    other_script_.kind = BoundaryKind::gvisor;
    other_script_.handle = "its-handle";
    other_.emplace(other_script_, *cgroups_);
  }
  void TearDown() override {
    kernel::fault::disarm();
    if (cells_) {
      cells_->on_ended = nullptr;  // what it would tell is gone with the test
      cells_->kill_all();
      EXPECT_TRUE(until([&] { return cells_->empty() && cells_->cleaning() == 0; }));
      EXPECT_TRUE(ranges_->mine()->empty()) << "ids are kept";
      EXPECT_TRUE(journal_->read_all()->empty()) << "the journal knows something";
    }
    cells_.reset();
    if (!folder_.empty()) {
      EXPECT_EQ(::chdir("/"), 0);
      (void)kernel::detach(folder_ + "/images/" + digest_);
      layers_.reset();
      (void)kernel::detach(folder_ + "/storage/layers");
      std::filesystem::remove_all(folder_);
    }
  }
  void start(milliseconds limit = std::chrono::seconds(20)) {
    cells_ = std::make_unique<Cells>(Cells::Parts{.loop = *loop_,
                                                  .boundaries = {&*boundary_, &*other_},
                                                  .offers = offers_,
                                                  .cgroups = *cgroups_,
                                                  .layers = *layers_,
                                                  .ranges = *ranges_,
                                                  .journal = *journal_,
                                                  .blobs = folder_,
                                                  .images = "images",
                                                  .no_disk_limit = kNoLimit,
                                                  .kept = kept_,
                                                  .scratch = kept_.empty() ? "" : folder_ + "/scratch",
                                                  .launch_limit = limit,
                                                  .link_limit = limit,
                                                  .freeze_limit = limit});
    auto started = cells_->start();
    ASSERT_TRUE(started) << started.error().message;
  }
  bool until(const std::function<bool()>& condition) { return run_until(*loop_, condition); }
  using Reply = std::optional<Result<std::pair<LaunchReply, boundary::Link>>>;
  void launch(Reply& reply, OwnerId owner = 1) {
    cells_->launch({.digest = digest_, .ephemeral = false, .cold = true, .allow_unquotaed = true}, {}, owner,
                   [&](auto result) { reply.emplace(std::move(result)); });
  }
  std::string launched(OwnerId owner = 1) {
    Reply reply;
    launch(reply, owner);
    EXPECT_TRUE(until([&] { return reply.has_value(); }));
    EXPECT_TRUE(reply && *reply) << (reply && !*reply ? (*reply).error().message : "");
    return reply && *reply ? (*reply)->first.id : "";
  }
  State state_of(const std::string& id) {
    for (const auto& one : cells_->list("", 100))
      if (one.id == id) return one.state;
    return State::ended;
  }

  static constexpr const char* kNoLimit = "nothing limits the disk here";
  const std::string digest_ = std::string(64, 'a');
  std::string folder_, kept_;
  Script script_;
  std::optional<kernel::CgroupTree> cgroups_;
  std::unique_ptr<image::LayerStore> layers_;
  std::optional<EventLoop> loop_;
  std::optional<IdRanges> ranges_;
  std::optional<Journal> journal_;
  std::optional<FakeBoundary> boundary_, other_;
  Script other_script_;
  std::vector<boundary::Offer> offers_ = {{.kind = BoundaryKind::jail, .offered = true},
                                          {.kind = BoundaryKind::gvisor, .offered = true},
                                          {.kind = BoundaryKind::uml, .missing = "a kernel"}};
  std::unique_ptr<Cells> cells_;
};

TEST_F(CellsTest, ALaunchThatNeverFinishesIsGivenUp) {
  start(milliseconds(50));
  script_.comes_to_life = false;
  Reply reply;
  launch(reply);
  EXPECT_FALSE(reply);
  EXPECT_EQ(cells_->live(), 1u);
  ASSERT_TRUE(until([&] { return reply.has_value(); }));
  ASSERT_FALSE(*reply);
  EXPECT_EQ((*reply).error().code, Code::timeout);
  EXPECT_TRUE(cells_->empty()) << "told when nothing of it is left";
  EXPECT_EQ(cells_->live(), 0u);
  script_.comes_to_life = true;
  EXPECT_FALSE(launched().empty());
}

// The disk limit is the one that a machine may be unable to enforce, and only a caller that says so goes without.
TEST_F(CellsTest, WithoutADiskLimitThereIsNoLaunchUnlessTheRiskIsNamed) {
  start();
  Reply reply;
  cells_->launch({.digest = digest_, .ephemeral = false, .cold = true}, {}, 1,
                 [&](auto result) { reply.emplace(std::move(result)); });
  ASSERT_TRUE(reply) << "refused at once, before anything is made";
  ASSERT_FALSE(*reply);
  EXPECT_EQ((*reply).error().code, Code::unsupported);
  for (const char* word : {kNoLimit, "--allow-unquotaed-disk", "isola doctor"})
    EXPECT_NE((*reply).error().message.find(word), std::string::npos) << (*reply).error().message;
  EXPECT_TRUE(cells_->empty());
  EXPECT_TRUE(ranges_->mine()->empty());
  EXPECT_TRUE(journal_->read_all()->empty());
  EXPECT_TRUE(layers_->list()->empty());
  EXPECT_FALSE(launched().empty()) << "the same with the risk named";
}

TEST_F(CellsTest, WhoeverWaitsForALinkMayGoAway) {
  start();
  std::string id = launched();
  std::optional<Result<boundary::Link>> first, second, third;
  cells_->link(id, 7, [&](auto link) { first.emplace(std::move(link)); });
  ASSERT_FALSE(first);
  cells_->link(id, 8, [&](auto link) { second.emplace(std::move(link)); });
  ASSERT_TRUE(second);
  EXPECT_EQ(second->error().code, Code::unavailable) << "one at a time";
  cells_->owner_gone(7);
  cells_->link(id, 9, [&](auto link) { third.emplace(std::move(link)); });
  EXPECT_FALSE(third);
  EXPECT_EQ(script_.links_prepared, 1) << "the one that is being made will do";
  script_.hang_up.reset();
  ASSERT_TRUE(until([&] { return third.has_value(); }));
  EXPECT_TRUE(*third);
  EXPECT_FALSE(first) << "nobody is there to be told";
  EXPECT_EQ(script_.links_taken, 2);
}

TEST_F(CellsTest, ALinkThatNobodyWaitsForIsNotTaken) {
  start();
  std::string id = launched();
  cells_->link(id, 7, [](auto) { FAIL() << "it went away"; });
  cells_->owner_gone(7);
  script_.hang_up.reset();
  ASSERT_TRUE(until([&] {
    std::optional<Result<boundary::Link>> next;
    cells_->link(id, 8, [&](auto link) { next.emplace(std::move(link)); });
    cells_->owner_gone(8);
    return script_.links_prepared == 2;  // so the loop has seen the hang-up
  }));
  EXPECT_EQ(script_.links_taken, 1) << "the first, with the launch";
}

TEST_F(CellsTest, AGuestThatMakesNoLinkIsGivenUp) {
  start(milliseconds(30));
  std::string id = launched();
  std::optional<Result<boundary::Link>> link;
  cells_->link(id, 7, [&](auto result) { link.emplace(std::move(result)); });
  ASSERT_TRUE(until([&] { return link.has_value(); }));
  EXPECT_EQ(link->error().code, Code::timeout);
}

TEST_F(CellsTest, FreezingWaitsForNobodyElse) {
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "built without fault injection";
  start();
  std::string id = launched();
  // The first time it is asked it is not done yet.
  ASSERT_TRUE(kernel::fault::arm("cgroup_frozen:1:" + std::to_string(EAGAIN)));
  std::optional<Result<void>> one, two, again;
  cells_->freeze(id, [&](auto result) { one.emplace(result); });
  EXPECT_FALSE(one) << "the loop would have waited";
  EXPECT_EQ(state_of(id), State::running);
  cells_->freeze(id, [&](auto result) { two.emplace(result); });
  std::optional<Result<boundary::Link>> link;
  cells_->link(id, 7, [&](auto result) { link.emplace(std::move(result)); });
  EXPECT_EQ(link->error().code, Code::unavailable);
  if (cgroups_->version() == kernel::CgroupVersion::v1) {  // v2 would wait for the next change, and there is none
    ASSERT_TRUE(until([&] { return one && two; }));
    EXPECT_TRUE(*one && *two);
    EXPECT_EQ(state_of(id), State::frozen);
  }
  ASSERT_TRUE(cells_->thaw(id));
  EXPECT_TRUE(one && two) << "whoever waited is told that it was thawed";
  EXPECT_EQ(state_of(id), State::running);
  cells_->freeze(id, [&](auto result) { again.emplace(result); });
  ASSERT_TRUE(until([&] { return again.has_value(); }));
  EXPECT_TRUE(*again);
}

TEST_F(CellsTest, WhatCannotBeStoppedIsThawedAgain) {
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "built without fault injection";
  start(milliseconds(1));
  script_.comes_to_life = true;
  std::string id = launched();
  ASSERT_TRUE(kernel::fault::arm("cgroup_frozen:1:" + std::to_string(EIO)));
  std::optional<Result<void>> frozen;
  cells_->freeze(id, [&](auto result) { frozen.emplace(result); });
  ASSERT_TRUE(frozen);
  EXPECT_FALSE(*frozen);
  EXPECT_EQ(state_of(id), State::running);
  ASSERT_TRUE(kernel::fault::arm("cgroup_frozen:1:" + std::to_string(EAGAIN)));
  frozen.reset();
  cells_->freeze(id, [&](auto result) { frozen.emplace(result); });
  ASSERT_TRUE(until([&] { return frozen.has_value(); }));  // in time or not: answered once
  EXPECT_EQ(state_of(id), *frozen ? State::frozen : State::running);
}

TEST_F(CellsTest, KillingOneThatIsBeingFrozenTellsTheWaiters) {
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "built without fault injection";
  start();
  std::string id = launched();
  ASSERT_TRUE(kernel::fault::arm("cgroup_frozen:1:" + std::to_string(EAGAIN)));
  std::optional<Result<void>> frozen;
  std::optional<Result<Ended>> ended;
  cells_->freeze(id, [&](auto result) { frozen.emplace(result); });
  cells_->kill(id, [&](auto result) { ended.emplace(result); });
  ASSERT_TRUE(frozen);
  EXPECT_EQ(frozen->error().code, Code::not_found);
  EXPECT_TRUE(until([&] { return ended.has_value(); }));
}

TEST_F(CellsTest, OneThatIsHeldIsGoneWhenItIsLetGo) {
  start();
  std::string id = launched();
  bool dropped = false;
  cells_->on_drop = [&](const std::string&) { return dropped = true; };
  std::optional<Result<Ended>> ended;
  cells_->kill(id, [&](auto result) { ended.emplace(result); });
  ASSERT_TRUE(until([&] { return dropped && cells_->cleaning() == 1; }));  // itself alone
  EXPECT_FALSE(ended);
  EXPECT_EQ(cells_->owner_of(id), 1u);
  cells_->let_go(id);
  EXPECT_TRUE(until([&] { return ended.has_value(); }));
  // The other way round, and twice.
  id = launched();
  ended.reset();
  dropped = false;
  cells_->kill(id, [&](auto result) { ended.emplace(result); });
  ASSERT_TRUE(until([&] { return dropped; }));
  cells_->let_go(id);
  cells_->let_go(id);
  EXPECT_TRUE(until([&] { return ended.has_value(); }));
  cells_->on_drop = nullptr;
}

// As a launcher leaves it that was killed, and whose journal was lost.
TEST_F(CellsTest, AnIdThatAnotherLauncherHasIsNotTouched) {
  const std::string theirs = new_sandbox_id();
  pid_t inside = ::fork();
  if (inside == 0)
    for (;;) ::pause();
  auto group = cgroups_->create(theirs, {.memory = 64 << 20, .pids = 8});
  ASSERT_TRUE(group && group->attach(inside));
  start();
  Reply reply;
  LaunchRequest request{.digest = digest_, .ephemeral = false, .cold = true, .allow_unquotaed = true};
  request.id = theirs;
  cells_->launch(std::move(request), {}, 1, [&](auto result) { reply.emplace(std::move(result)); });
  EXPECT_TRUE(until([&] { return reply.has_value() && cells_->empty() && cells_->cleaning() == 0; }));
  ASSERT_TRUE(reply && !*reply);
  EXPECT_EQ(reply->error().code, Code::exists) << reply->error().message;
  int status = 0;
  EXPECT_EQ(::waitpid(inside, &status, WNOHANG), 0) << "what lives in it was killed";
  EXPECT_TRUE(cgroups_->adopt(theirs)) << "the group was removed";
  ::kill(inside, SIGKILL);
  ::waitpid(inside, &status, 0);
}

TEST_F(CellsTest, GroupsThatNobodyKnowsAreClearedAway) {
  const std::string lost = new_sandbox_id(), somebodys = new_sandbox_id();
  auto other = IdRanges::open("/elsewhere", folder_ + "/ids");
  ASSERT_TRUE(other);
  ASSERT_TRUE(ranges_->take(lost) && other->take(somebodys));
  pid_t inside = ::fork();
  if (inside == 0)
    for (;;) ::pause();
  for (const auto& id : {lost, somebodys}) {
    auto group = cgroups_->create(id, {.memory = 64 << 20, .pids = 8});
    ASSERT_TRUE(group);
    EXPECT_TRUE(id != lost || group->attach(inside));
    group->release();
  }
  start();
  EXPECT_TRUE(until([&] { return ranges_->mine()->empty(); }));
  EXPECT_FALSE(cgroups_->adopt(lost));
  int status = 0;
  EXPECT_EQ(::waitpid(inside, &status, 0), inside);
  EXPECT_TRUE(WIFSIGNALED(status));
  auto kept = cgroups_->adopt(somebodys);
  EXPECT_TRUE(kept) << "another launcher's on the same machine";  // and goes with `kept`
  EXPECT_EQ(other->mine()->size(), 1u);
}

// The deadline of a sandbox is in the journal; that of one that has none must not come.
TEST_F(CellsTest, ADeadlineHoldsForWhatIsAdopted) {
  script_.lives_on = true;
  const std::string late = new_sandbox_id(), unhurried = new_sandbox_id();
  for (const auto& id : {late, unhurried})
    ASSERT_TRUE(journal_->write(
        {.id = id, .digest = digest_, .process = {1, 1}, .deadline = id == late ? 1 : 0}));  // since boot: long ago
  std::vector<Ended> ended;
  start();
  cells_->on_ended = [&](OwnerId, const Ended& one) { ended.push_back(one); };
  ASSERT_TRUE(cells_->own(late, 1) && cells_->own(unhurried, 1));
  ASSERT_TRUE(until([&] { return !ended.empty(); }));
  EXPECT_EQ(ended[0].id, late);
  EXPECT_EQ(ended[0].reason, EndReason::deadline);
  EXPECT_EQ(state_of(unhurried), State::running);
}

// A process in the group that takes more memory than that may have.
void starve(kernel::Cgroup& group) {
  auto eater = kernel::spawn(0, [] {
    (void)::raise(SIGSTOP);
    std::string all(64 << 20, 'x');
    return all[1000] == 'x' ? 0 : 1;
  });
  ASSERT_TRUE(eater);
  ASSERT_EQ(::waitpid(eater->pid, nullptr, WUNTRACED), eater->pid);
  ASSERT_TRUE(group.attach(eater->pid));
  ::kill(eater->pid, SIGCONT);
  int status = 0;
  ASSERT_EQ(::waitpid(eater->pid, &status, 0), eater->pid);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the limit does not hold";
}

// Nobody learns how a process ended that is somebody else's child; that its memory was the reason is still known. What
// its group counted in its life before that is no reason.
TEST_F(CellsTest, OneThatWasAdoptedAndRanOutOfMemorySaysSo) {
  script_.lives_on = true;
  const std::string hungry = new_sandbox_id(), scarred = new_sandbox_id(), modest = new_sandbox_id();
  for (const auto& id : {hungry, scarred, modest}) {
    auto group = cgroups_->create(id, {.memory = 16 << 20});
    ASSERT_TRUE(group) << group.error().message;
    if (id == scarred) starve(*group);
    group->release();
    ASSERT_TRUE(journal_->write({.id = id, .digest = digest_, .process = {1, 1}}));
  }
  std::map<std::string, EndReason> ended;
  start();
  cells_->on_ended = [&](OwnerId, const Ended& one) { ended[one.id] = one.reason; };
  auto group = cgroups_->adopt(hungry);
  ASSERT_TRUE(group);
  starve(*group);
  group->release();
  for (const auto& id : {hungry, scarred, modest}) {
    ASSERT_TRUE(cells_->own(id, 1));
    ::kill(script_.pids.at(0), SIGKILL);
    script_.pids.erase(script_.pids.begin());
  }
  ASSERT_TRUE(until([&] { return ended.size() == 3; }));
  EXPECT_EQ(ended[hungry], EndReason::oom);
  EXPECT_EQ(ended[scarred], EndReason::exited);
  EXPECT_EQ(ended[modest], EndReason::exited);
}

// What was cleared from the cache is not used from the mount that is still there: nothing that is made of it could be
// started again.
TEST_F(CellsTest, AnImageThatIsGoneFromTheCacheIsGone) {
  start();
  std::string id = launched();
  ASSERT_FALSE(id.empty());
  ASSERT_EQ(::rename((folder_ + "/" + digest_ + ".erofs").c_str(), (folder_ + "/away").c_str()), 0);
  Reply reply;
  launch(reply);
  ASSERT_TRUE(until([&] { return reply.has_value(); }));
  ASSERT_FALSE(*reply);
  EXPECT_EQ(reply->error().code, Code::not_found);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/images/" + digest_)) << "its mount is kept";
  EXPECT_EQ(state_of(id), State::running);
  ASSERT_EQ(::rename((folder_ + "/away").c_str(), (folder_ + "/" + digest_ + ".erofs").c_str()), 0);
  EXPECT_FALSE(launched().empty()) << "once it is back";
}

// An entry as an earlier launcher left it, with ids that another launcher on this machine has taken since.
class CellsWithAnothersIds : public CellsTest {
 protected:
  void SetUp() override {
    CellsTest::SetUp();
    if (IsSkipped()) return;
    other_.emplace(std::move(*IdRanges::open("/elsewhere", folder_ + "/ids")));
    auto base = other_->take(theirs_);
    ASSERT_TRUE(base);
    ASSERT_TRUE(journal_->write({.id = ours_, .id_base = *base, .digest = digest_, .process = {1, 1}}));
  }
  void of_another_boot() {
    std::string path = folder_ + "/run/" + ours_, text = read_file(path).value();
    text.replace(text.find(journal_->boot()), journal_->boot().size(), std::string(journal_->boot().size(), '0'));
    ASSERT_TRUE(replace_file(path, text));
  }
  void expect_theirs_untouched() {
    ASSERT_EQ(other_->mine()->size(), 1u);
    EXPECT_EQ(other_->mine()->front().sandbox, theirs_);
  }
  const std::string ours_ = new_sandbox_id(), theirs_ = new_sandbox_id();
  std::optional<IdRanges> other_;
};

TEST_F(CellsWithAnothersIds, AfterABootTheyAreNotGivenBack) {
  of_another_boot();
  start();
  EXPECT_TRUE(until([&] { return cells_->empty(); }));
  expect_theirs_untouched();
}

TEST_F(CellsWithAnothersIds, AfterABootNoneAreTakenInItsName) {
  other_->give_back(other_->mine()->front().base);
  of_another_boot();
  start();
  EXPECT_TRUE(ranges_->mine()->empty());
}

// Where /run outlives the machine's boots, so do the ranges.
TEST_F(CellsWithAnothersIds, AfterABootOnesOwnAreGivenBack) {
  ASSERT_TRUE(ranges_->take(ours_));
  of_another_boot();
  start();
  EXPECT_TRUE(until([&] { return cells_->empty(); }));
  EXPECT_TRUE(ranges_->mine()->empty());
  expect_theirs_untouched();
}

// Killed after it gave the ids back and before it erased the entry.
TEST_F(CellsWithAnothersIds, InTheSameBootTheyAreNotGivenBackEither) {
  start();
  EXPECT_TRUE(until([&] { return cells_->empty(); }));
  expect_theirs_untouched();
}

TEST_F(CellsWithAnothersIds, WhoeverLivesWithThemIsEnded) {
  script_.lives_on = true;
  start();
  std::optional<Result<Ended>> ended;
  cells_->kill(ours_, [&](auto result) { ended.emplace(result); });
  ASSERT_TRUE(until([&] { return ended.has_value(); }));
  ASSERT_TRUE(*ended);
  EXPECT_EQ((*ended)->reason, EndReason::boundary_failure) << "not by our kill: it was ending already";
  expect_theirs_untouched();
}

// ---- several boundaries ---------------------------------------------------------------------------------------------

TEST_F(CellsTest, ASandboxGetsTheBoundaryItAsksFor) {
  start();
  auto launch_with = [&](boundary::Choice choice) {
    Reply reply;
    cells_->launch({.digest = digest_, .boundary = choice, .ephemeral = false, .allow_unquotaed = true}, {}, 1,
                   [&](auto result) { reply.emplace(std::move(result)); });
    EXPECT_TRUE(until([&] { return reply.has_value(); }));
    return std::move(*reply);
  };
  auto usual = launch_with({});
  ASSERT_TRUE(usual) << usual.error().message;
  EXPECT_EQ(usual->first.kind, BoundaryKind::jail);
  auto strong = launch_with({.wish = BoundaryWish::strongest});
  ASSERT_TRUE(strong) << strong.error().message;
  EXPECT_EQ(strong->first.kind, BoundaryKind::gvisor);
  EXPECT_EQ(strong->first.engine.name, "fake");
  auto least = launch_with({.at_least = BoundaryKind::gvisor});
  ASSERT_TRUE(least) << least.error().message;
  EXPECT_EQ(least->first.kind, BoundaryKind::gvisor);
  auto none = launch_with({.wish = BoundaryWish::uml});
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("a kernel"), std::string::npos) << none.error().message;
  for (const auto& one : cells_->list("", 10))
    EXPECT_EQ(one.kind, one.id == usual->first.id ? BoundaryKind::jail : BoundaryKind::gvisor);
}

TEST_F(CellsTest, WhatIsParkedInOneBoundaryIsNotClaimedForAnother) {
  // Nothing is parked where nothing limits the disk.
  auto limited = image::open_layer_store(folder_, {}, std::nullopt);
  if (!limited) GTEST_SKIP() << limited.error().message;
  layers_ = std::move(*limited);
  start();
  ASSERT_TRUE(cells_->park(digest_, 1, BoundaryKind::gvisor));
  ASSERT_TRUE(until([&] { return cells_->parked() == 1; }));
  auto launch_with = [&](BoundaryWish wish) {
    Reply reply;
    cells_->launch({.digest = digest_, .boundary = {.wish = wish}, .ephemeral = false, .allow_unquotaed = true}, {}, 1,
                   [&](auto result) { reply.emplace(std::move(result)); });
    EXPECT_TRUE(until([&] { return reply.has_value(); }));
    return std::move(*reply);
  };
  auto jail = launch_with(BoundaryWish::jail);
  ASSERT_TRUE(jail) << jail.error().message;
  EXPECT_EQ(jail->first.birth, Birth::cold);
  EXPECT_EQ(jail->first.kind, BoundaryKind::jail);
  auto gvisor = launch_with(BoundaryWish::gvisor);
  ASSERT_TRUE(gvisor) << gvisor.error().message;
  EXPECT_EQ(gvisor->first.birth, Birth::pooled);
  EXPECT_EQ(gvisor->first.kind, BoundaryKind::gvisor);
}

// It may have waited for days, on a machine where others can write to its group, too.
TEST_F(CellsTest, AParkedOneWhoseGroupWasChangedIsNotHandedOut) {
  auto limited = image::open_layer_store(folder_, {}, std::nullopt);
  if (!limited) GTEST_SKIP() << limited.error().message;
  layers_ = std::move(*limited);
  start();
  auto launch_one = [&] {
    Reply reply;
    cells_->launch({.digest = digest_, .ephemeral = false, .allow_unquotaed = true}, {}, 1,
                   [&](auto result) { reply.emplace(std::move(result)); });
    EXPECT_TRUE(until([&] { return reply.has_value(); }));
    return std::move(*reply);
  };
  for (bool changed : {true, false}) {
    SCOPED_TRACE(changed);
    ASSERT_TRUE(cells_->park(digest_, 1, BoundaryKind::jail));
    ASSERT_TRUE(until([&] { return cells_->parked() == 1; }));
    std::string parked;
    for (const auto& one : cells_->list("", 10))
      if (one.parked) parked = one.id;
    ASSERT_TRUE(cells_->park(digest_, 0, BoundaryKind::jail));  // no other one while this is looked at
    if (changed) {
      auto group = cgroups_->adopt(parked);
      ASSERT_TRUE(group);
      auto limits = group->limits();
      ASSERT_TRUE(limits);
      limits->pids += 1000;
      auto set = group->set(*limits);
      group->release();
      ASSERT_TRUE(set) << set.error().message;
    }
    auto got = launch_one();
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(got->first.birth, changed ? Birth::cold : Birth::pooled);
    EXPECT_EQ(got->first.id == parked, !changed);
    EXPECT_TRUE(!changed || until([&] { return state_of(parked) == State::ended; })) << "it is still there";
  }
}

TEST_F(CellsTest, ACellIsAdoptedByItsOwnBoundaryWithItsHandle) {
  JournalEntry entry{.id = "iaaaaaaaaaaaaaaaaaaaa",
                     .digest = digest_,
                     .kind = BoundaryKind::gvisor,
                     .process = {::getpid(), 1},
                     .handle = "its-handle"};
  ASSERT_TRUE(journal_->write(entry));
  script_.lives_on = other_script_.lives_on = true;
  start();
  EXPECT_FALSE(script_.adopted);
  ASSERT_TRUE(other_script_.adopted);
  EXPECT_EQ(other_script_.adopted->handle, "its-handle");
  EXPECT_EQ(other_script_.adopted->process.pid, ::getpid());
  EXPECT_EQ(state_of(entry.id), State::running);
}

// A launcher was killed while it resumed a sandbox, whose processes may just be on their way out: the image goes when
// the guest has answered, and stays when it only hung up.
TEST_F(CellsTest, AnImageIsSpentByAGuestThatLives) {
  kept_ = folder_ + "/kept";
  for (bool dies : {true, false}) {
    JournalEntry entry{.id = new_sandbox_id(), .digest = digest_, .process = {::getpid(), 1}};
    image::ImageStore store(kept_);
    ASSERT_TRUE(make_dirs(kept_, 0700));
    auto draft = store.begin();
    ASSERT_TRUE(draft);
    ASSERT_TRUE(layers_->create(entry.id, {.bytes = 16 << 20}));
    image::Image image{.id = draft->id, .sandbox = entry.id, .verb = "pause", .digest = digest_, .layers = {entry.id}};
    ASSERT_TRUE(store.commit(image));
    draft->lock.reset();
    ASSERT_TRUE(journal_->write(entry));
    script_.lives_on = true;
    script_.dies = dies;
    start();
    std::optional<bool> linked;
    cells_->link(entry.id, 1, [&](const auto& link) { linked = link.has_value(); });
    script_.hang_up.reset();
    ASSERT_TRUE(until([&] { return linked.has_value(); }));
    EXPECT_EQ(*linked, !dies);
    EXPECT_EQ(store.find(image.id).has_value(), dies);
    cells_->kill_all();
    ASSERT_TRUE(until([&] { return cells_->empty() && cells_->cleaning() == 0; }));
    EXPECT_EQ(layers_->path(entry.id).has_value(), dies) << "its files";
    cells_.reset();
    loop_.emplace(std::move(*EventLoop::make()));
  }
}

// The memory in an image belongs to the disk as it was. Whatever ran until its restore failed has changed that.
TEST_F(CellsTest, AMachineThatIsNotRestoredFindsItsDiskAsItWas) {
  layers_.reset();
  (void)kernel::detach(folder_ + "/storage/layers");
  auto store = image::open_layer_store(
      folder_, {.provider = "btrfs", .store_bytes = uint64_t{1} << 30, .reserve_bytes = 1}, std::nullopt);
  if (!store) GTEST_SKIP() << "btrfs: " << store.error().message;
  layers_ = std::move(*store);
  kept_ = folder_ + "/kept";
  image::ImageStore images(kept_);
  ASSERT_TRUE(make_dirs(kept_, 0700));
  const std::string id = new_sandbox_id();
  auto draft = images.begin();
  ASSERT_TRUE(draft);
  auto layer = layers_->create(id, {.bytes = 64 << 20});
  ASSERT_TRUE(layer) << layer.error().message;
  const std::string disk = *layer + "/upper/disk", before(100'000, 'b'), after(100'000, 'a');
  ASSERT_TRUE(replace_file(disk, before));
  image::Image image{.id = draft->id,
                     .sandbox = id,
                     .verb = "pause",
                     .boundary = "microvm",
                     .digest = digest_,
                     .layers = {id},
                     .limits = {.disk = 64 << 20, .open_files = 1024},
                     .memory = true};
  ASSERT_TRUE(images.commit(image));
  draft->lock.reset();
  script_.kind = BoundaryKind::microvm;
  offers_.push_back({.kind = BoundaryKind::microvm, .offered = true});
  script_.begins = [&](const boundary::LaunchSpec& spec) {
    EXPECT_EQ(spec.layer + "/upper/disk", disk) << "it goes on with its own";
    EXPECT_TRUE(write_file(disk, after));
  };
  auto resumed = [&] {
    LaunchRequest request{.ephemeral = false, .image = image.id, .id = id, .spend = true};
    request.limits.disk = 64 << 20;
    Reply reply;
    cells_->launch(request, {}, 1, [&](auto result) { reply.emplace(std::move(result)); });
    EXPECT_TRUE(until([&] { return script_.hang_up.reset(), reply.has_value(); }));
    return !reply ? "no answer" : *reply ? "" : reply->error().message;
  };
  start();
  script_.dies = true;
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(resumed(), "the guest is gone");
    EXPECT_TRUE(read_file(disk) == before) << "after a restore that failed";
    EXPECT_TRUE(images.find(image.id));
  }
  // A launcher that was killed in the middle of it could not see to that any more.
  cells_.reset();
  loop_.emplace(std::move(*EventLoop::make()));
  (void)kernel::detach(folder_ + "/images/" + digest_);
  ASSERT_TRUE(boundary::box::keep_disk(*layer, image.id));
  ASSERT_TRUE(write_file(disk, after));
  start();
  EXPECT_TRUE(read_file(disk) == before) << "after a launcher was killed";
  script_.dies = false;
  EXPECT_EQ(resumed(), "");
  EXPECT_TRUE(read_file(disk) == after);
  EXPECT_FALSE(images.find(image.id)) << "it is spent";
  for (const auto& file : std::filesystem::directory_iterator(*layer))
    EXPECT_FALSE(file.path().filename().string().starts_with("disk-of-")) << file.path();
}

// The disk of a virtual machine is whole in its layer, copied where it cannot be shared: what was below it would only
// be kept, one more copy with every pause.
TEST_F(CellsTest, AMachineStandsOnNoDisksOfItsPast) {
  kept_ = folder_ + "/kept";
  image::ImageStore images(kept_);
  ASSERT_TRUE(make_dirs(kept_, 0700));
  auto draft = images.begin();
  ASSERT_TRUE(draft);
  for (const char* name : {"now", "past"}) ASSERT_TRUE(layers_->create(name, {.bytes = 64 << 20}));
  image::Image image{.id = draft->id,
                     .verb = "snapshot",
                     .boundary = "microvm",
                     .digest = digest_,
                     .layers = {"now", "past"},
                     .limits = {.disk = 64 << 20, .open_files = 1024},
                     .memory = true};
  ASSERT_TRUE(images.commit(image));
  draft->lock.reset();
  script_.kind = BoundaryKind::microvm;
  offers_.push_back({.kind = BoundaryKind::microvm, .offered = true});
  std::vector<std::string> lowers;
  std::string layer;
  script_.begins = [&](const boundary::LaunchSpec& spec) { lowers = spec.lowers, layer = spec.layer; };
  start();
  Reply reply;
  cells_->launch({.ephemeral = false, .allow_unquotaed = true, .image = image.id}, {}, 1,
                 [&](auto result) { reply.emplace(std::move(result)); });
  ASSERT_TRUE(until([&] { return script_.hang_up.reset(), reply.has_value(); }));
  ASSERT_TRUE(*reply) << reply->error().message;
  ASSERT_EQ(lowers.size(), 2u) << "the disk to begin with, and the template";
  EXPECT_NE(lowers.front().find("/now"), std::string::npos) << lowers.front();
  // Paused, it is in its own layer, and nowhere else.
  script_.before_death = [](const boundary::CheckpointSpec& spec) {
    spec.begun();
    auto made = spec.at_rest();
    EXPECT_TRUE(made) << made.error().message;
  };
  std::optional<Result<CheckpointReply>> made;
  const std::string pause = new_image_id();
  cells_->checkpoint({.id = (*reply)->first.id, .memory = true, .image = pause}, 1,
                     [&](auto result) { made.emplace(std::move(result)); });
  ASSERT_TRUE(until([&] { return made && cells_->empty() && cells_->cleaning() == 0; }));
  ASSERT_TRUE(*made) << (*made).error().message;
  EXPECT_EQ(images.find(pause)->layers, std::vector<std::string>{std::filesystem::path(layer).filename()});
  ASSERT_TRUE(cells_->drop_image(image.id));
  ASSERT_TRUE(until([&] { return cells_->cleaning() == 0; }));
  EXPECT_EQ(layers_->list()->size(), 1u);
}

// Whoever resumes an image reads all of it, as whoever seals it does: the one who waits goes first.
TEST_F(CellsTest, AResumeGoesBeforeTheSealing) {
  kept_ = folder_ + "/kept";
  image::ImageStore images(kept_);
  ASSERT_TRUE(make_dirs(kept_, 0700));
  auto draft = images.begin();
  ASSERT_TRUE(draft);
  ASSERT_TRUE(layers_->create("layer", {.bytes = 64 << 20}));
  ASSERT_TRUE(replace_file(draft->memory + "/pages-1.img", "pages"));
  image::Image image{.id = draft->id,
                     .verb = "snapshot",
                     .boundary = "jail",
                     .digest = digest_,
                     .layers = {"layer"},
                     .limits = {.disk = 64 << 20, .open_files = 1024},
                     .memory = true};
  image.files = images.sum_up(image.id).value();
  ASSERT_TRUE(images.commit(image));
  ASSERT_EQ(::flock(draft->lock.get(), LOCK_EX), 0);  // the sealer's last step waits for that
  auto is_sealed = [&] { return !images.find(image.id)->files.front().sha256.empty(); };
  auto children = [] {
    std::ifstream list("/proc/self/task/" + std::to_string(::getpid()) + "/children");
    return std::distance(std::istream_iterator<pid_t>(list), {});
  };
  start();
  const auto before = children();
  ASSERT_TRUE(until([&] { return children() == before + 1; })) << "the sealer";
  script_.comes_to_life = false;
  Reply reply;
  cells_->launch({.ephemeral = false, .allow_unquotaed = true, .image = image.id, .forked = true}, {}, 1,
                 [&](auto result) { reply.emplace(std::move(result)); });
  ASSERT_FALSE(reply);
  ASSERT_EQ(::flock(draft->lock.get(), LOCK_UN), 0);  // whoever was born meanwhile has the descriptor, too
  bool later = false;                                 // than it would have been tried again
  loop_->after(milliseconds(1500), [&] { later = true; });
  ASSERT_TRUE(until([&] { return later; }));
  EXPECT_FALSE(reply);
  EXPECT_FALSE(is_sealed()) << "while it is being resumed";
  cells_->kill_all();
  EXPECT_TRUE(until([&] { return is_sealed(); })) << "and never after";
}

// What was restored ahead has programs that run as soon as they may.
TEST_F(CellsTest, AParkedOneStandsStillUntilItWasCompared) {
  layers_.reset();
  auto limited = image::open_layer_store(folder_, {}, std::nullopt);
  if (!limited) GTEST_SKIP() << limited.error().message;
  layers_ = std::move(*limited);
  kept_ = folder_ + "/kept";
  image::ImageStore images(kept_);
  ASSERT_TRUE(make_dirs(kept_, 0700));
  auto draft = images.begin();
  ASSERT_TRUE(draft);
  ASSERT_TRUE(layers_->create("layer", {.bytes = 64 << 20}));
  image::Image image{
      .id = draft->id,
      .verb = "snapshot",
      .boundary = "jail",
      .digest = digest_,
      .layers = {"layer"},
      .limits = {.milli_cpus = 1000, .memory = 64 << 20, .disk = 64 << 20, .pids = 64, .open_files = 1024},
      .memory = true};
  ASSERT_TRUE(images.commit(image));
  draft->lock.reset();
  start();
  ASSERT_TRUE(cells_->park(image.id, 1, BoundaryKind::jail));
  ASSERT_TRUE(until([&] { return script_.hang_up.reset(), cells_->parked() == 1; }));
  const std::string parked = cells_->list("", 10).at(0).id;
  ASSERT_TRUE(until([&] { return state_of(parked) == State::frozen; }));
  ASSERT_TRUE(cells_->park(image.id, 0, BoundaryKind::jail));
  int compared = 0;
  script_.compares = [&] {
    auto group = cgroups_->adopt(parked);
    ASSERT_TRUE(group);
    EXPECT_TRUE(group->frozen().value_or(false));
    group->release();
    ++compared;
  };
  LaunchRequest request{.ephemeral = false, .allow_unquotaed = true, .image = image.id, .forked = true};
  request.limits = {.cpus = 1, .memory = 64 << 20, .pids = 64, .disk = 64 << 20, .open_files = 1024};
  Reply reply;
  cells_->launch(request, {}, 1, [&](auto result) { reply.emplace(std::move(result)); });
  ASSERT_TRUE(until([&] { return reply.has_value(); }));
  ASSERT_TRUE(*reply) << reply->error().message;
  EXPECT_EQ((*reply)->first.id, parked);
  EXPECT_EQ(compared, 1);
  EXPECT_EQ(state_of(parked), State::running);
  script_.compares = nullptr;
}

// Memory and files belong together: what ran on and then failed has left newer files than its memory knows.
TEST_F(CellsTest, WhatRanBeforeItsResumeFailedIsResumedWithItsFilesOnly) {
  kept_ = folder_ + "/kept";
  image::ImageStore images(kept_);
  ASSERT_TRUE(make_dirs(kept_, 0700));
  for (bool launcher_died : {false, true}) {
    SCOPED_TRACE(launcher_died);
    const std::string id = new_sandbox_id();
    auto draft = images.begin();
    ASSERT_TRUE(draft);
    ASSERT_TRUE(layers_->create(id, {.bytes = 64 << 20}));
    image::Image image{.id = draft->id,
                       .sandbox = id,
                       .verb = "pause",
                       .boundary = "jail",
                       .digest = digest_,
                       .layers = {id},
                       .limits = {.disk = 64 << 20, .open_files = 1024},
                       .memory = true};
    ASSERT_TRUE(images.commit(image));
    draft->lock.reset();
    auto resumed = [&](bool files_only) {
      LaunchRequest request{.ephemeral = false, .allow_unquotaed = true, .image = image.id, .id = id, .spend = true};
      request.limits.disk = 64 << 20;
      request.files_only = files_only;
      Reply reply;
      cells_->launch(request, {}, 1, [&](auto result) { reply.emplace(std::move(result)); });
      EXPECT_TRUE(until([&] { return script_.hang_up.reset(), reply.has_value(); }));
      return !reply ? "no answer" : *reply ? "" : reply->error().message;
    };
    JournalEntry entry{.id = id, .digest = digest_, .layer = id, .image = image.id, .birth = Birth::resumed};
    // Before it may run nothing happens to its files.
    if (launcher_died) {
      ASSERT_TRUE(journal_->write(entry));
    }
    start(milliseconds(100));
    if (!launcher_died) {
      script_.let_go = script_.comes_to_life = false;
      EXPECT_EQ(resumed(false), "the sandbox did not come to life in time");
      script_.let_go = script_.comes_to_life = true;
    }
    ASSERT_TRUE(until([&] { return cells_->empty() && cells_->cleaning() == 0; }));
    EXPECT_FALSE(images.find(image.id)->outrun);
    if (launcher_died) {
      cells_.reset();
      loop_.emplace(std::move(*EventLoop::make()));
      (void)kernel::detach(folder_ + "/images/" + digest_);
      entry.process = {::getpid(), 1};
      ASSERT_TRUE(journal_->write(entry));
      start();
      ASSERT_TRUE(until([&] { return cells_->empty() && cells_->cleaning() == 0; }));
    } else {
      script_.dies = true;
      EXPECT_EQ(resumed(false), "the guest is gone");
      script_.dies = false;
    }
    EXPECT_TRUE(images.find(image.id)->outrun);
    EXPECT_NE(resumed(false).find("resume it with files_only"), std::string::npos);
    EXPECT_EQ(resumed(true), "");
    EXPECT_FALSE(images.find(image.id)) << "it is spent";
    cells_->kill_all();
    ASSERT_TRUE(until([&] { return cells_->empty() && cells_->cleaning() == 0; }));
    cells_.reset();
    loop_.emplace(std::move(*EventLoop::make()));
    (void)kernel::detach(folder_ + "/images/" + digest_);
  }
}

// A pause that an earlier launcher had begun comes through, and its manifest cannot be read: the files are in the layer
// of the sandbox that ends by it.
TEST_F(CellsTest, ADraftThatCannotBeReadCostsNoLayer) {
  kept_ = folder_ + "/kept";
  image::ImageStore store(kept_);
  ASSERT_TRUE(make_dirs(kept_, 0700));
  for (bool still_busy : {false, true}) {
    JournalEntry entry{.id = new_sandbox_id(), .digest = digest_, .process = {::getpid(), 1}};
    auto draft = store.begin();
    ASSERT_TRUE(draft);
    ASSERT_TRUE(layers_->create(entry.id, {.bytes = 16 << 20}));
    ASSERT_TRUE(journal_->write(entry));
    script_.lives_on = true;
    start();
    const std::string manifest = kept_ + "/" + draft->id + "/manifest.json";
    ASSERT_TRUE(replace_file(manifest, "not written by us"));
    if (!still_busy) draft->lock.reset();
    cells_->kill_all();
    ASSERT_TRUE(until([&] { return cells_->empty() && cells_->cleaning() == 0; }));
    EXPECT_TRUE(layers_->path(entry.id)) << "its files";
    EXPECT_TRUE(std::filesystem::exists(manifest));
    cells_.reset();
    loop_.emplace(std::move(*EventLoop::make()));
    ASSERT_TRUE(layers_->destroy(entry.id));
    std::filesystem::remove_all(kept_ + "/" + draft->id);
  }
}

// Whoever paused it was killed, and whether that was before or after the image was there cannot be seen: it may be all
// that is left of the sandbox.
TEST_F(CellsTest, AnImageThatCannotBeLookedAtIsNotDropped) {
  kept_ = folder_ + "/kept";
  start();
  const std::string id = launched(), image = new_image_id(), manifest = kept_ + "/" + image + "/manifest.json";
  std::string whole;
  script_.before_death = [&](const boundary::CheckpointSpec& spec) {
    image::Image made{.id = image, .sandbox = id, .verb = "pause", .digest = digest_, .layers = {id}, .memory = true};
    EXPECT_TRUE(image::ImageStore(kept_).commit(made));
    whole = read_file(manifest).value_or("");
    EXPECT_TRUE(spec.memory && replace_file(manifest, "cannot be read now"));
  };
  std::optional<Result<CheckpointReply>> made;
  cells_->checkpoint({.id = id, .image = image}, 1, [&](auto result) { made.emplace(std::move(result)); });
  ASSERT_TRUE(until([&] { return made && cells_->empty() && cells_->cleaning() == 0; }));
  EXPECT_FALSE(*made);
  EXPECT_TRUE(layers_->path(id)) << "its files";
  ASSERT_TRUE(std::filesystem::exists(manifest));
  // It was only for a moment.
  ASSERT_TRUE(replace_file(manifest, whole));
  EXPECT_TRUE(cells_->image_open_to_user(image));
  EXPECT_EQ(cells_->images("", 10).size(), 1u);
}

// On a smaller disk than it was paused on.
TEST_F(CellsTest, WhatASandboxWasPausedWithItMayHaveAgain) {
  kept_ = folder_ + "/kept";
  image::ImageStore store(kept_);
  ASSERT_TRUE(make_dirs(kept_, 0700));
  const std::string id = new_sandbox_id();
  constexpr uint64_t kMuch = uint64_t{1} << 58;
  auto draft = store.begin();
  ASSERT_TRUE(draft);
  ASSERT_TRUE(layers_->create(id, {.bytes = kMuch}));
  image::Image image{.id = draft->id,
                     .sandbox = id,
                     .verb = "pause",
                     .boundary = "jail",
                     .digest = digest_,
                     .layers = {id},
                     .limits = {.disk = kMuch}};
  ASSERT_TRUE(store.commit(image));
  draft->lock.reset();
  start();
  auto resumed = [&](uint64_t disk) {
    LaunchRequest request{.ephemeral = false, .allow_unquotaed = true, .image = image.id, .id = id, .spend = true};
    request.limits.disk = disk;
    Reply reply;
    cells_->launch(request, {}, 1, [&](auto result) { reply.emplace(std::move(result)); });
    EXPECT_TRUE(until([&] { return reply.has_value(); }));
    return !reply ? "no answer" : *reply ? "" : reply->error().message;
  };
  EXPECT_NE(resumed(2 * kMuch).find("more than this machine's disk"), std::string::npos) << "it would grow";
  EXPECT_EQ(resumed(kMuch), "");
}

// The layer of a snapshot that was dropped lives on below the sandboxes that were made from it.
TEST_F(CellsTest, ASnapshotDoesNotTakeTheNameOfALayerThatIsThere) {
  kept_ = folder_ + "/kept";
  start();
  std::string id = launched(), image = new_image_id();
  ASSERT_TRUE(layers_->create(image, {.bytes = 16 << 20}));
  std::optional<Result<CheckpointReply>> made;
  cells_->checkpoint({.id = id, .memory = false, .keep_running = true, .image = image}, 1,
                     [&](auto result) { made.emplace(std::move(result)); });
  ASSERT_TRUE(until([&] { return made && cells_->cleaning() == 0; }));
  ASSERT_FALSE(*made);
  EXPECT_EQ(made->error().code, Code::exists) << made->error().message;
  EXPECT_TRUE(layers_->path(image)) << "it is somebody's";
}

}  // namespace
}  // namespace isola::launcher
