// kill -9 of whoever makes or restores an image, at random moments, and a disk that is full: an image is whole or was
// never there, a sandbox goes on or ends with a reason, and nothing is left behind.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <thread>

#include "base/file.h"
#include "e2e/images.h"
#include "kernel/fault.h"

namespace isola::e2e {
namespace {

using launcher::LaunchRequest;

// Below `parent`, by the name that it gave itself; 0: none now.
pid_t descendant(pid_t parent, const std::string& name) {
  std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", parent));
  for (pid_t pid; children >> pid;) {
    std::ifstream comm(fmt::format("/proc/{}/comm", pid));
    std::string word;
    if (std::getline(comm, word) && word == name) return pid;
    if (pid_t found = descendant(pid, name)) return found;
  }
  return 0;
}

// Kills the first process of that name that comes up below the launcher, some time after it did.
class Killer {
 public:
  Killer(pid_t launcher, std::string name, std::chrono::microseconds later)
      : thread_([this, launcher, name = std::move(name), later] {
          pid_t victim = 0;
          while (!stop_ && victim == 0) {
            victim = name.empty() ? launcher : descendant(launcher, name);
            if (victim == 0) std::this_thread::yield();
          }
          std::this_thread::sleep_for(later);  // the random moment itself, not synchronisation
          if (victim != 0 && !stop_) killed_ = ::kill(victim, SIGKILL) == 0;
        }) {}
  ~Killer() { finish(); }
  bool finish() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return killed_;
  }
  void wait() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false, killed_ = false;
  std::thread thread_;
};

bool works(launcher::Client& client, Counting& box) {
  auto attached = box.attach(client);
  if (!attached) return false;
  return box.next().has_value();
}

bool listed(launcher::Client& client, const std::string& id) {
  auto all = client.list();
  if (!all) return false;
  return std::ranges::any_of(*all, [&](const auto& one) { return one.id == id && one.state != State::ending; });
}

void drop_all(launcher::Client& client) {
  auto live = client.list();
  ASSERT_OK(live);
  for (const auto& one : *live) (void)client.kill(one.id);
  auto images = client.images();
  ASSERT_OK(images);
  for (const auto& image : *images) EXPECT_TRUE(client.drop_image(image.id));
}

std::mt19937 seeded() {
  unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  return std::mt19937(seed);
}

// Each boundary that keeps memory here; one that does not is skipped, with the reason.
class ImageCrash : public ::testing::TestWithParam<BoundaryKind> {
 protected:
  void SetUp() override {
    NEEDS_TEMPLATE("minimal");
    if (auto why = lacks_memory(GetParam()); !why.empty())
      GTEST_SKIP() << "memory with the boundary " << to_string(GetParam()) << ": " << why;
  }
  static LaunchRequest request(const Island& island) {
    LaunchRequest request{.digest = island.digest(), .ephemeral = false};
    request.boundary.wish = wish_for(GetParam());
    return request;
  }
  static bool jail() { return GetParam() == BoundaryKind::jail; }
  // An engine takes its time: so do those who are killed in the middle of its work.
  static std::chrono::microseconds moment(unsigned random, unsigned most) {
    return std::chrono::microseconds(random % (jail() ? most : 3 * most));
  }
};

INSTANTIATE_TEST_SUITE_P(Each, ImageCrash, ::testing::Values(BoundaryKind::jail, BoundaryKind::gvisor),
                         [](const auto& param) { return std::string(to_string(param.param)); });

// A dump that is cut off: the sandbox goes on, or it ends and says boundary-failure, or it was paused all the same; and
// there is an image only if the answer named one.
TEST_P(ImageCrash, WhoeverDumpsIsKilled) {
  Island island;
  auto random = seeded();
  int kills = count("kills during a dump", jail() ? 12 : 6, 120), struck = 0, went_on = 0, ended = 0, made = 0;
  for (int i = 0; i < kills; ++i) {
    SCOPED_TRACE(i);
    auto client = island.client();
    auto box = Counting::start(client, request(island));
    ASSERT_OK(box);
    const bool keep = random() % 2 == 0;
    Killer killer(island.launcher_pid(), random() % 2 ? (jail() ? "criu" : "runsc") : "isola-keeper",
                  moment(random(), 40000));
    auto saved = box->save(client, true, keep);
    struck += killer.finish();
    auto images = client.images();
    ASSERT_OK(images);
    EXPECT_EQ(images->size(), saved ? 1u : 0u) << (saved ? "" : saved.error().message);
    if (saved) {
      ++made;
      auto next = Counting::resume(client, {.image = saved->image}, *box);
      ASSERT_OK(next);
      auto counted = next->next();
      ASSERT_OK(counted);
    } else if (works(client, *box)) {
      ++went_on;
    } else {
      ++ended;
      std::optional<EndReason> reason;
      EXPECT_TRUE(eventually([&] {
        auto event = client.next_event();
        if (event && *event && (*event)->id == box->id()) reason = (*event)->reason;
        return reason.has_value();
      })) << saved.error().message;
      EXPECT_EQ(reason, EndReason::boundary_failure);
    }
    drop_all(client);
    if (testing::Test::HasFailure()) break;
  }
  std::printf("%d of %d kills struck: %d images, %d went on, %d ended\n", struck, kills, made, went_on, ended);
  EXPECT_GT(struck, 0);
  island.expect_unchanged();
}

// From the moment that its manifest is written the image is there, whoever dies then.
TEST(ImageCut, APauseThatIsCutOffAfterItsImageWasMadeIsAPause) {
  NEEDS_CRIU();
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  Island island({.env = {fmt::format("ISOLA_FAULT=image_committed:1:{}", SIGKILL)}});
  {
    auto client = island.client();
    auto box = Counting::start(client, island.digest());
    ASSERT_OK(box);
    ASSERT_TRUE(box->sh("echo kept >/root/file"));
    auto saved = box->save(client, true, false);
    ASSERT_OK(saved);
    EXPECT_TRUE(client.list()->empty());
    auto images = client.images();
    ASSERT_OK(images);
    ASSERT_EQ(images->size(), 1u);
    EXPECT_EQ(images->front().memory_bytes, saved->memory_bytes);
    auto next = Counting::resume(client, {.ephemeral = false, .image = saved->image, .id = box->id()}, *box);
    ASSERT_OK(next);
    auto counted = next->next();
    ASSERT_OK(counted);
    EXPECT_EQ(next->sh("cat /root/file").value_or("failed"), "kept\n");
    drop_all(client);
  }
  island.expect_unchanged();
}

// A restore that is cut off fails, leaves nothing, and the image is as good as before.
TEST_P(ImageCrash, WhoeverRestoresIsKilled) {
  Island island;
  auto random = seeded();
  int kills = count("kills during a restore", jail() ? 12 : 6, 120), struck = 0, failed = 0;
  {
    auto client = island.client();
    auto box = Counting::start(client, request(island));
    ASSERT_OK(box);
    auto saved = box->save(client, true, false);
    ASSERT_OK(saved);
    for (int i = 0; i < kills; ++i) {
      SCOPED_TRACE(i);
      Killer killer(island.launcher_pid(),
                    random() % 3 ? (jail() ? "criu" : "runsc") : (jail() ? "isola-waker" : "isola-check"),
                    moment(random(), 35000));
      auto next = Counting::resume(client, {.ephemeral = false, .image = saved->image}, *box);
      struck += killer.finish();
      failed += !next;
      if (next) {
        EXPECT_TRUE(client.kill(next->id()));
      }
      EXPECT_TRUE(eventually([&] { return client.list()->empty(); }));
      if (testing::Test::HasFailure()) break;
    }
    auto next = Counting::resume(client, {.image = saved->image}, *box);
    ASSERT_OK(next);
    auto counted = next->next();
    ASSERT_OK(counted);
    drop_all(client);
  }
  std::printf("%d of %d kills struck, %d restores failed\n", struck, kills, failed);
  EXPECT_GT(struck, 0);
  island.expect_unchanged();
}

// The launcher dies while it pauses a sandbox: afterwards there is the sandbox or its image, never neither.
TEST_P(ImageCrash, TheLauncherIsKilledInAPause) {
  Island island;
  auto random = seeded();
  int kills = count("kills of the launcher in a pause", jail() ? 10 : 5, 100), lived = 0, paused = 0;
  for (int i = 0; i < kills; ++i) {
    SCOPED_TRACE(i);
    auto started = island.start();
    ASSERT_OK(started);
    std::optional<launcher::Client> client(island.client());
    auto box = Counting::start(*client, request(island));
    ASSERT_OK(box);
    pid_t launcher = island.launcher_pid();
    Killer killer(launcher, "", moment(random(), 120000));
    auto saved = box->save(*client, true, false);
    killer.wait();
    client.reset();
    ASSERT_TRUE(eventually([&] { return !island.try_client(); }));
    started = island.start();
    ASSERT_OK(started);
    client.emplace(island.client());
    // Whoever was at it finishes, one way or the other.
    auto settled = [&] {
      auto images = client->images();
      bool there = listed(*client, box->id());
      return images && (images->size() == 1) != there;
    };
    EXPECT_TRUE(eventually(settled)) << "neither the sandbox nor its image, or both";
    auto images = client->images();
    ASSERT_OK(images);
    if (saved) {
      EXPECT_EQ(images->size(), 1u) << "a pause that was acknowledged is lost";
    }
    if (images->empty()) {
      ++lived;
      EXPECT_TRUE(eventually([&] { return works(*client, *box); })) << "the sandbox does not go on";
    } else {
      ++paused;
      auto next = Counting::resume(*client, {.ephemeral = false, .image = images->front().id}, *box);
      ASSERT_OK(next);
      auto counted = next->next();
      ASSERT_OK(counted);
    }
    drop_all(*client);
    if (testing::Test::HasFailure()) break;
  }
  std::printf("%d sandboxes went on, %d were paused\n", lived, paused);
  island.expect_unchanged();
}

TEST_P(ImageCrash, TheLauncherIsKilledInAResume) {
  Island island;
  auto random = seeded();
  int kills = count("kills of the launcher in a resume", jail() ? 10 : 5, 100);
  std::optional<launcher::Client> client(island.client());
  auto box = Counting::start(*client, request(island));
  ASSERT_OK(box);
  auto saved = box->save(*client, true, false);
  ASSERT_OK(saved);
  for (int i = 0; i < kills; ++i) {
    SCOPED_TRACE(i);
    Killer killer(island.launcher_pid(), "", moment(random(), 60000));
    (void)client->launch({.ephemeral = false, .image = saved->image});
    killer.wait();
    client.reset();
    ASSERT_TRUE(eventually([&] { return !island.try_client(); }));
    auto started = island.start();
    ASSERT_OK(started);
    client.emplace(island.client());
    // What was made before the kill lives on, and what was half made is cleared away.
    EXPECT_TRUE(eventually([&] {
      auto all = client->list();
      if (!all) return false;
      for (const auto& one : *all) (void)client->kill(one.id);
      return all->empty();
    }));
    if (testing::Test::HasFailure()) break;
  }
  auto next = Counting::resume(*client, {.ephemeral = false, .image = saved->image}, *box);
  ASSERT_OK(next);
  auto counted = next->next();
  ASSERT_OK(counted);
  drop_all(*client);
  client.reset();
  island.expect_unchanged();
}

// A data directory on a small disk of its own.
class SmallDisk {
 public:
  explicit SmallDisk(const char* size) {
    char name[] = "/tmp/isd-XXXXXX";
    if (!::mkdtemp(name)) std::abort();
    path_ = name;
    mounted_ = ::mount("isola-test", name, "tmpfs", 0, size) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
    ::rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }
  bool mounted() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_ = false;
};

TEST(ImageDisk, AFullDiskIsAClearErrorAndTheSandboxGoesOn) {
  NEEDS_CRIU();
  SmallDisk disk("size=600m");
  if (!disk.mounted()) GTEST_SKIP() << "no tmpfs here";
  // A folder on it: the census counts what is mounted at the data directory.
  auto folder = make_dirs(disk.path() + "/data");
  ASSERT_OK(folder);
  Island island({.folder = disk.path() + "/data"});
  {
    auto client = island.client();
    auto box = Counting::start(client, island.digest());
    ASSERT_OK(box);
    // More than the disk can take beside what is on it.
    ASSERT_TRUE(box->sh("head -c 300M /dev/urandom >/dev/shm/large"));
    Fd filler(::open((disk.path() + "/filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::posix_fallocate(filler.get(), 0, 350 << 20), 0);
    for (bool keep : {true, false}) {
      auto saved = box->save(client, true, keep);
      ASSERT_FALSE(saved);
      std::printf("said: %s\n", saved.error().message.c_str());
      // By errno where something still failed for it, else by what could not even be logged.
      const std::string& said = saved.error().message;
      EXPECT_TRUE(said.contains("No space left") || said.contains("the disk is full")) << said;
      auto attached = box->attach(client);
      ASSERT_OK(attached);
      auto counted = box->next();
      ASSERT_OK(counted);
      EXPECT_TRUE(client.images()->empty());
    }
    ::unlink((disk.path() + "/filler").c_str());
    filler.reset();
    ASSERT_TRUE(box->sh("rm /dev/shm/large"));
    auto saved = box->save(client, true, false);
    ASSERT_OK(saved);
    auto next = Counting::resume(client, {.image = saved->image}, *box);
    ASSERT_OK(next);
    auto counted = next->next();
    ASSERT_OK(counted);
    drop_all(client);
  }
  island.expect_unchanged();
  island.stop();
}

}  // namespace
}  // namespace isola::e2e
