// Volumes through the launcher: several sandboxes share one, read-only means so for root, its limit holds, nothing in
// it leads out of it, and it is there after every sandbox, pause and launcher.
#include <fmt/format.h>

#include <filesystem>

#include "base/ids.h"
#include "e2e/images.h"

namespace isola::e2e {
namespace {

using launcher::LaunchRequest;
using launcher::VolumeMount;

constexpr uint64_t MiB = 1 << 20;

class Volumes : public SharedIsland {
 protected:
  void SetUp() override {
    NEEDS_TEMPLATE("minimal");
    SharedIsland::SetUp();
    client_.emplace(island().client());
    if (auto info = client_->info(); !info || !info->disk_enforced) GTEST_SKIP() << "no disk limits here, no volumes";
    volume_ = make();
  }
  void TearDown() override {
    if (client_) {
      auto live = client_->list();
      if (live)
        for (const auto& one : *live) (void)client_->kill(one.id);
      auto images = client_->images();
      if (images)
        for (const auto& image : *images) (void)client_->drop_image(image.id);
      auto volumes = client_->volumes();
      if (volumes) {
        for (const auto& volume : *volumes) EXPECT_TRUE(client_->drop_volume(volume.id));
      }
      client_.reset();
    }
    SharedIsland::TearDown();
  }
  std::string make(uint64_t bytes = 32 * MiB) {
    std::string id = new_volume_id();
    auto made = client_->make_volume(id, bytes);
    EXPECT_TRUE(made) << made.error().message;
    return id;
  }
  Result<Talking> box(const std::vector<VolumeMount>& volumes) {
    return launch(*client_, {.digest = island().digest(), .ephemeral = false, .volumes = volumes});
  }
  // What a script prints; its exit code if that is not 0.
  std::string sh(Talking& box, const std::string& script, const std::string& user = "") {
    std::string whole = user.empty() ? script : fmt::format("su -s /bin/sh -c '{}' {}", script, user);
    auto heard = hear(*box.guest, {"/bin/sh", "-c", whole});
    if (!heard.exit) return "link: " + heard.exit.error().message;
    return heard.exit->code == 0 ? heard.out : fmt::format("exit {}: {}", heard.exit->code, heard.err);
  }

  std::optional<launcher::Client> client_;
  std::string volume_;
};

TEST_F(Volumes, SeveralShareOneAndItOutlivesThem) {
  auto writer = box({{.id = volume_, .target = "/data"}});
  ASSERT_OK(writer);
  auto reader = box({{.id = volume_, .target = "/mnt/shared", .read_only = true}});
  ASSERT_OK(reader);
  EXPECT_EQ(sh(*writer, "echo hello >/data/file && stat -c %u /data/file"), "0\n");
  EXPECT_EQ(sh(*reader, "cat /mnt/shared/file; stat -c %u /mnt/shared/file"), "hello\n0\n");
  // Whom programs run as can write without being made root.
  EXPECT_EQ(sh(*writer, "stat -c %u:%a /data"), "1000:755\n");
  for (const char* attempt : {"echo x >/mnt/shared/x", "rm /mnt/shared/file", "chmod 777 /mnt/shared",
                              "mount -o remount,rw /mnt/shared", "touch /mnt/shared/file"})
    EXPECT_EQ(sh(*reader, attempt).substr(0, 4), "exit") << attempt;
  ASSERT_TRUE(client_->kill(writer->id));
  ASSERT_TRUE(client_->kill(reader->id));
  auto later = box({{.id = volume_, .target = "/data"}});
  ASSERT_OK(later);
  EXPECT_EQ(sh(*later, "cat /data/file"), "hello\n");
}

TEST_F(Volumes, ItsLimitHoldsAndCanGrow) {
  auto one = box({{.id = volume_, .target = "/data"}});
  ASSERT_OK(one);
  auto full = sh(*one, "dd if=/dev/zero of=/data/big bs=1M count=64 conv=fsync 2>&1");
  EXPECT_EQ(full.substr(0, 4), "exit") << full;
  EXPECT_EQ(sh(*one, "echo still >/root/works && cat /root/works"), "still\n")
      << "its own layer has a limit of its own";
  auto all = client_->volumes();
  ASSERT_OK(all);
  ASSERT_EQ(all->size(), 1u);
  EXPECT_EQ(all->front().id, volume_);
  EXPECT_EQ(all->front().limit, 32 * MiB);
  EXPECT_EQ(all->front().users, 1u);
  EXPECT_LE(all->front().used, 33 * MiB);
  if (auto grown = client_->resize_volume(volume_, 128 * MiB); !grown) GTEST_SKIP() << grown.error().message;
  EXPECT_EQ(sh(*one, "dd if=/dev/zero of=/data/more bs=1M count=64 conv=fsync 2>/dev/null && echo fits"), "fits\n");
}

// Its folder is the sandbox's own: who closes it to everybody else keeps nobody from another limit.
TEST_F(Volumes, OneThatIsClosedToOthersIsResized) {
  auto one = box({{.id = volume_, .target = "/data"}});
  ASSERT_OK(one);
  EXPECT_EQ(sh(*one, "chown 1000:1000 /data && chmod 700 /data && echo closed"), "closed\n");
  auto grown = client_->resize_volume(volume_, 64 * MiB);
  if (!grown && grown.error().code == Code::unsupported) GTEST_SKIP() << grown.error().message;
  ASSERT_TRUE(grown) << grown.error().message;
  auto all = client_->volumes();
  ASSERT_OK(all);
  EXPECT_EQ(all->front().limit, 64 * MiB);
}

// Whoever is told that it failed has the limit from before.
TEST_F(Volumes, ALimitThatCannotBePutOnDiskIsNotInForce) {
  namespace fs = std::filesystem;
  const std::string layer =
      fmt::format("/proc/{}/root{}/storage/layers/{}", island().launcher_pid(), island().data(), volume_);
  if (!fs::exists(layer + "/upper")) GTEST_SKIP() << "layers lie elsewhere here";
  fs::rename(layer + "/upper", layer + "/aside");
  auto grown = client_->resize_volume(volume_, 64 * MiB);
  auto all = client_->volumes();
  fs::rename(layer + "/aside", layer + "/upper");
  if (grown) GTEST_SKIP() << "layers of this kind are put on disk without looking into their folder";
  if (grown.error().code == Code::unsupported) GTEST_SKIP() << grown.error().message;
  ASSERT_OK(all);
  EXPECT_EQ(all->front().limit, 32 * MiB) << grown.error().message;
}

// btrfs lets anybody make a subvolume, which would have no limit.
TEST_F(Volumes, NoSubvolumesAreMadeInside) {
  auto one = box({{.id = volume_, .target = "/data"}});
  ASSERT_OK(one);
  // BTRFS_IOC_SUBVOL_CREATE with the name "more".
  EXPECT_EQ(sh(*one, R"(python3 -c '
import fcntl, os
d = os.open("/data", os.O_RDONLY)
try:
    fcntl.ioctl(d, 0x5000940e, bytearray(b"\0" * 8 + b"more" + b"\0" * 4084))
    print("made")
except OSError as e:
    print(e.errno)
')"),
            "25\n");
}

// What one wrote and the other shares would count against the first alone, however little room the other has.
TEST_F(Volumes, NoDataIsSharedBetweenThem) {
  auto one = box({{.id = volume_, .target = "/a"}, {.id = make(), .target = "/b"}});
  ASSERT_OK(one);
  EXPECT_EQ(
      sh(*one, "dd if=/dev/urandom of=/a/f bs=1M count=4 2>/dev/null && cp /a/f /b/f && cmp /a/f /b/f && echo copied"),
      "copied\n");
  EXPECT_EQ(sh(*one, "cp --reflink=always /a/f /b/g").substr(0, 4), "exit");
  EXPECT_EQ(sh(*one, R"(python3 -c '
import os
try:
    print(os.copy_file_range(os.open("/a/f", os.O_RDONLY), os.open("/b/h", os.O_RDWR | os.O_CREAT), 1 << 20))
except OSError as e:
    print(os.strerror(e.errno))')"),
            "Function not implemented\n");
  auto all = client_->volumes();
  ASSERT_OK(all);
  for (const auto& volume : *all) EXPECT_GT(volume.used, 3 * MiB) << volume.id << " has no data of its own";
}

TEST_F(Volumes, APartOfOneAndNothingLeadsOut) {
  auto whole = box({{.id = volume_, .target = "/data"}});
  ASSERT_OK(whole);
  auto part = box({{.id = volume_, .target = "/mine", .part = "teams/a"}});
  ASSERT_OK(part);
  EXPECT_EQ(sh(*part, "echo a >/mine/file; ls /mine/.. | grep -c mine"), "1\n");
  EXPECT_EQ(sh(*whole, "cat /data/teams/a/file; stat -c %u /data/teams/a"), "a\n1000\n");
  // Who may only read finds what is there, and makes nothing.
  auto reader = box({{.id = volume_, .target = "/mine", .read_only = true, .part = "teams/a"}});
  ASSERT_OK(reader);
  EXPECT_EQ(sh(*reader, "cat /mine/file"), "a\n");
  auto missing = box({{.id = volume_, .target = "/mine", .read_only = true, .part = "teams/b"}});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::not_found) << missing.error().message;
  EXPECT_EQ(sh(*whole, "ls /data/teams"), "a\n");
  EXPECT_EQ(sh(*whole, "ln -s / /data/out; ln -s ../../.. /data/up; mkdir /data/a"), "");
  for (const char* bad : {"out/etc", "up", "out", "../x", "a/../..", "a//b", "./a"}) {
    auto led = box({{.id = volume_, .target = "/mine", .part = bad}});
    EXPECT_FALSE(led) << bad;
  }
}

TEST_F(Volumes, BadRequestsAreRefused) {
  EXPECT_FALSE(client_->make_volume("../../etc", 32 * MiB));
  EXPECT_FALSE(client_->make_volume(volume_, 32 * MiB)) << "taken";
  EXPECT_FALSE(client_->make_volume(new_volume_id(), 1)) << "too small";
  EXPECT_FALSE(client_->drop_volume(new_volume_id())) << "not there";
  for (const char* bad : {"data", "/", "/proc/x", "/dev", "/sys/fs", "/a b", "/a]:x", "/a,b", "/a/../b"})
    EXPECT_FALSE(box({{.id = volume_, .target = bad}})) << bad;
  EXPECT_FALSE(box({{.id = new_volume_id(), .target = "/data"}})) << "not there";
  EXPECT_FALSE(box({{.id = volume_, .target = "/data"}, {.id = volume_, .target = "/data"}})) << "twice";
  std::vector<VolumeMount> many;
  for (int i = 0; i < 9; ++i) many.push_back({.id = volume_, .target = fmt::format("/d{}", i)});
  EXPECT_FALSE(box(many)) << "too many";
  // Layers of sandboxes and images are nobody's volumes.
  auto one = box({{.id = volume_, .target = "/data"}});
  ASSERT_OK(one);
  EXPECT_FALSE(box({{.id = one->id, .target = "/data"}}));
  auto dropped = client_->drop_volume(volume_);
  ASSERT_FALSE(dropped);
  EXPECT_EQ(dropped.error().code, Code::unavailable);
  EXPECT_NE(dropped.error().message.find("in use by 1"), std::string::npos) << dropped.error().message;
}

TEST_F(Volumes, ALauncherThatTakesOverKnowsThem) {
  auto one = box({{.id = volume_, .target = "/data"}});
  ASSERT_OK(one);
  EXPECT_EQ(sh(*one, "echo kept >/data/file"), "");
  client_.reset();
  island().kill_launcher();
  auto started = island().start();
  ASSERT_OK(started);
  client_.emplace(island().client());
  EXPECT_FALSE(client_->drop_volume(volume_)) << "it is still in use";
  ASSERT_TRUE(client_->kill(one->id));
  auto two = box({{.id = volume_, .target = "/data"}});
  ASSERT_OK(two);
  EXPECT_EQ(sh(*two, "cat /data/file"), "kept\n");
}

// Pause and fork with a volume: the processes go on with the files that they had open in it.
TEST_F(Volumes, ThroughPauseAndFork) {
  NEEDS_CRIU();
  LaunchRequest request{
      .digest = island().digest(), .ephemeral = false, .volumes = {{.id = volume_, .target = "/data"}}};
  auto box = Counting::start(*client_, request);
  ASSERT_OK(box);
  ASSERT_TRUE(box->sh("(while sleep 0.05; do echo tick; done) >/data/log & echo kept >/data/file"));
  auto saved = box->save(*client_, true, false);
  ASSERT_OK(saved);
  auto without = Counting::resume(*client_, {.ephemeral = false, .image = saved->image}, *box);
  ASSERT_FALSE(without);
  EXPECT_NE(without.error().message.find("/data"), std::string::npos) << without.error().message;
  auto next = Counting::resume(
      *client_, {.ephemeral = false, .volumes = request.volumes, .image = saved->image, .id = box->id()}, *box);
  ASSERT_OK(next);
  auto counted = next->next();
  ASSERT_OK(counted);
  EXPECT_EQ(next->sh("cat /data/file; a=$(wc -l </data/log); while [ $(wc -l </data/log) = $a ]; do sleep 0.05; done; "
                     "echo goes on")
                .value_or("failed"),
            "kept\ngoes on\n");
  // A volume that is read-only stays so after a fork.
  EXPECT_FALSE(client_->drop_volume(volume_));
}

TEST_F(Volumes, ReadOnlyStaysReadOnlyThroughAPause) {
  NEEDS_CRIU();
  std::vector<VolumeMount> volumes = {{.id = volume_, .target = "/data", .read_only = true}};
  auto box = Counting::start(*client_, {.digest = island().digest(), .ephemeral = false, .volumes = volumes});
  ASSERT_OK(box);
  EXPECT_FALSE(box->sh("echo x >/data/x"));
  auto saved = box->save(*client_, true, false);
  ASSERT_OK(saved);
  auto next =
      Counting::resume(*client_, {.ephemeral = false, .volumes = volumes, .image = saved->image, .forked = true}, *box);
  ASSERT_OK(next);
  EXPECT_FALSE(next->sh("echo x >/data/x"));
  EXPECT_TRUE(next->sh("ls /data"));
}

}  // namespace
}  // namespace isola::e2e
