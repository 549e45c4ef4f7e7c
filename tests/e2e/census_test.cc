// The census itself: whatever it claims to count is planted once, and has to be reported, and gone again afterwards.
#include "e2e/census.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/ids.h"
#include "e2e/island.h"
#include "image/layer_store.h"
#include "image/loop.h"
#include "kernel/cgroup_layout.h"
#include "launcher/id_ranges.h"
#include "launcher/name_files.h"

namespace isola::e2e {
namespace {

namespace fs = std::filesystem;

class CensusTest : public ::testing::Test {
 protected:
  // Mounts that are planted are seen by nobody else.
  static void SetUpTestSuite() {
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  }
  void SetUp() override { NEEDS_TEMPLATE("minimal"); }

  static void plant(Island& island, const std::string& kind, const std::function<void()>& leak,
                    const std::function<void()>& mend) {
    Census before;
    ASSERT_TRUE(eventually([&] {
      Census again = island.census();
      // An image is read through once when it is first used: whoever does that would be missed later.
      bool same = difference(before, again).empty() && difference({}, again).find("isola-check") == std::string::npos;
      before = again;
      return same;
    })) << difference({}, before);
    leak();
    std::string seen = difference(before, island.census());
    EXPECT_NE(seen.find("left behind: " + kind + " "), std::string::npos) << kind << " goes unseen; seen is:\n" << seen;
    mend();
    EXPECT_TRUE(eventually([&] { return difference(before, island.census()).empty(); }))
        << kind << ":\n"
        << difference(before, island.census());
  }

  // A process of this sandbox: its name is in the command line.
  static pid_t start_sleeper(const std::string& id, int namespaces) {
    pid_t pid = ::fork();
    if (pid == 0) {
      if (namespaces && ::unshare(namespaces) < 0) ::_exit(1);
      ::execlp("sleep", id.c_str(), "600", nullptr);
      ::_exit(1);
    }
    std::string cmdline = "/proc/" + std::to_string(pid) + "/cmdline";
    EXPECT_TRUE(eventually([&] { return read_file(cmdline).value_or("").find(id) != std::string::npos; }));
    return pid;
  }
  static void end(pid_t pid) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  static void touch(const std::string& path) { ASSERT_TRUE(replace_file(path, "x")); }
};

TEST_F(CensusTest, EachKindOfLeakIsSeen) {
  Island island;
  const std::string& data = island.data();
  const std::string id = new_sandbox_id();
  const std::string storage = "/proc/" + std::to_string(island.launcher_pid()) + "/root" + data + "/storage";

  // The journal first: from then on the id is known as one of ours.
  std::string entry = data + "/run/" + id;
  plant(island, "journal", [&] { touch(entry); }, [&] { ::unlink(entry.c_str()); });
  std::string aside = data + "/run/.1.0";
  touch(aside);
  EXPECT_EQ(island.census()["journal"].size(), 0u) << "a file put aside is no entry";
  ::unlink(aside.c_str());

  std::string layer = storage + "/layers/" + id;
  plant(island, "layer", [&] { ASSERT_EQ(::mkdir(layer.c_str(), 0700), 0) << layer; }, [&] { ::rmdir(layer.c_str()); });
  bool files = fs::exists(storage + "/files");
  if (!files) ::mkdir((storage + "/files").c_str(), 0700);
  std::string file = storage + "/files/" + id + ".ext4";
  plant(island, "layer", [&] { touch(file); }, [&] { ::unlink(file.c_str()); });
  if (!files) ::rmdir((storage + "/files").c_str());

  auto ranges = launcher::IdRanges::open(data);
  ASSERT_OK(ranges);
  uint32_t base = 0;
  plant(island, "id range", [&] { base = ranges->take(id).value_or(0); }, [&] { ranges->give_back(base); });

  auto layout = kernel::find_cgroup_layout({});
  ASSERT_OK(layout);
  for (const auto& folder : layout->folders()) {
    std::string group = folder + "/" + id;
    plant(
        island, "cgroup", [&] { ASSERT_EQ(::mkdir(group.c_str(), 0755), 0) << group; },
        [&] { ::rmdir(group.c_str()); });
  }

  pid_t pid = 0;
  plant(island, "process", [&] { pid = start_sleeper(id, 0); }, [&] { end(pid); });
  plant(island, "network namespace", [&] { pid = start_sleeper(id, CLONE_NEWNET); }, [&] { end(pid); });

  std::string place = data + "/place";
  ASSERT_EQ(::mkdir(place.c_str(), 0700), 0);
  plant(
      island, "mount", [&] { ASSERT_EQ(::mount("none", place.c_str(), "tmpfs", 0, nullptr), 0); },
      [&] { ::umount(place.c_str()); });
  auto in_launcher = [&](const std::function<bool()>& body) {
    auto ns = kernel::open_namespace(island.launcher_pid(), "mnt");
    ASSERT_OK(ns);
    auto child = kernel::spawn(0, [&] { return ::setns(ns->get(), CLONE_NEWNS) == 0 && body() ? 0 : 1; });
    ASSERT_OK(child);
    int status = 1;
    ::waitpid(child->pid, &status, 0);
    ASSERT_EQ(status, 0);
  };
  plant(
      island, "launcher mount",
      [&] { in_launcher([&] { return ::mount("none", place.c_str(), "tmpfs", 0, nullptr) == 0; }); },
      [&] { in_launcher([&] { return ::umount(place.c_str()) == 0; }); });
  ::rmdir(place.c_str());

  std::string disk = data + "/disk";
  image::Loop loop;
  plant(
      island, "loop device",
      [&] {
        Fd fd(::open(disk.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        ASSERT_EQ(::ftruncate(fd.get(), 1 << 20), 0);
        auto attached = image::attach_loop(disk, image::LoopMode::read_only);
        ASSERT_OK(attached);
        loop = std::move(*attached);
      },
      [&] { loop.fd.reset(); });
  ::unlink(disk.c_str());

  // A connection is a descriptor of the launcher's, once it has answered.
  std::optional<launcher::Client> client;
  auto connect = [&] {
    client = island.try_client();
    ASSERT_TRUE(client && client->info());
  };
  plant(island, "launcher descriptor", connect, [&] { client.reset(); });
}

// A gate is there from the first sandbox on that has rules; from then on what it holds for one is seen.
TEST_F(CensusTest, WhatTheGateHoldsIsSeen) {
  Island island;
  auto client = island.client();
  std::string id;
  auto with_rules = [&] {
    auto sandbox = launch(client, {.digest = island.digest(), .ephemeral = false});
    ASSERT_OK(sandbox);
    id = sandbox->id;
    auto set = client.set_policy({.id = id, .policy = "allow a.example"});
    ASSERT_OK(set);
  };
  with_rules();
  ASSERT_TRUE(client.kill(id));
  plant(island, "gate descriptor", with_rules, [&] { EXPECT_TRUE(client.kill(id)); });
  EXPECT_FALSE(island.census().contains("gate descriptor")) << "one that serves nobody has nothing to show";
}

// What is left in a store that nobody has open is looked for, too.
TEST_F(CensusTest, ALayerLeftWithoutALauncherIsSeen) {
  Island island;
  island.stop();
  ASSERT_TRUE(eventually([&] { return difference({}, island.census()).empty(); })) << difference({}, island.census());
  ASSERT_TRUE(fs::exists(island.data() + "/storage/provider"));
  const std::string id = new_sandbox_id();
  auto with_store = [&](const std::function<bool(image::LayerStore&)>& body) {
    auto child = kernel::spawn(0, [&] {
      if (::unshare(CLONE_NEWNS) < 0) return 2;
      auto store = image::open_layer_store(island.data(), {}, std::nullopt);
      return store && body(**store) ? 0 : 1;
    });
    ASSERT_OK(child);
    int status = 1;
    ::waitpid(child->pid, &status, 0);
    ASSERT_EQ(status, 0);
  };
  plant(
      island, "layer",
      [&] { with_store([&](auto& store) { return store.create(id, {.bytes = 8 << 20}).has_value(); }); },
      [&] { with_store([&](auto& store) { return store.destroy(id).has_value(); }); });
}

}  // namespace
}  // namespace isola::e2e
