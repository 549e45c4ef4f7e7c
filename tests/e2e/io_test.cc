// Limits of disk traffic reach the disk: what a sandbox reads and writes is charged to its group, on the device that
// the limit names, whether it was born with the limit or got it when it was claimed. The layer lies in a file behind a
// loop device, and the image in a file of the machine's cache, so neither is a matter of course.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>

#include <filesystem>
#include <sstream>

#include "base/file.h"
#include "e2e/images.h"
#include "image/template_cache.h"

namespace isola::e2e {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kRate = 4 * kMiB;

std::string cache_folder() {
  const char* cache = ::getenv("ISOLA_CACHE");
  return cache ? cache : "/var/cache/isola";
}

// The layout as the launcher of a data directory finds it.
kernel::CgroupLayout layout_for(const std::string& data) {
  auto layout = kernel::find_cgroup_layout({.disks = {data, cache_folder() + "/blobs"}});
  return layout ? *layout : kernel::CgroupLayout{};
}

struct Traffic {
  uint64_t read = 0, written = 0;
};

// "254:0 Read 16777216" on v1, "254:0 rbytes=16777216 wbytes=0 …" on v2.
Traffic charged(const kernel::CgroupLayout& layout, const std::string& id, const std::string& device) {
  const bool v2 = layout.version == kernel::CgroupVersion::v2;
  std::istringstream lines(
      read_file(layout.io + "/" + id + (v2 ? "/io.stat" : "/blkio.throttle.io_service_bytes")).value_or(""));
  Traffic traffic;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string disk, word;
    words >> disk;
    if (disk != device) continue;
    while (words >> word) {
      uint64_t bytes = 0;
      if (word == "Read" && words >> bytes) traffic.read = bytes;
      if (word == "Write" && words >> bytes) traffic.written = bytes;
      if (word.starts_with("rbytes=")) traffic.read = std::stoull(word.substr(7));
      if (word.starts_with("wbytes=")) traffic.written = std::stoull(word.substr(7));
    }
  }
  return traffic;
}

class Io : public SharedIsland {
 protected:
  void SetUp() override {
    SharedIsland::SetUp();
    if (IsSkipped()) return;
    layout_ = layout_for(island().data());
    if (!layout_.can_limit_io()) GTEST_SKIP() << layout_.io_note();
  }
  launcher::LaunchRequest limited(bool cold = true) {
    return {.digest = island().digest(), .limits = {.io_bytes_per_second = kRate}, .cold = cold};
  }
  // What the kernel holds back takes its time, however fast the disk and however busy the machine: the first bytes may
  // pass before the rate is known, so not all of it.
  static void expect_held_back(uint64_t bytes, Clock::duration took) {
    EXPECT_GE(std::chrono::duration<double>(took).count(), 0.7 * static_cast<double>(bytes) / kRate);
  }
  // Direct, so that no cache comes in between; `of` is a file of the sandbox's own layer.
  void expect_limited(const std::string& id, guest::PipeClient& guest) {
    const std::string& disk = layout_.disk_devices[0];
    auto begun = Clock::now();
    auto heard = hear(guest, {"dd", "if=/dev/zero", "of=/root/file", "bs=1M", "count=8", "oflag=direct"});
    ASSERT_EQ(heard.exit->code, 0) << heard.err;
    EXPECT_GE(charged(layout_, id, disk).written, 8 * kMiB);
    expect_held_back(8 * kMiB, Clock::now() - begun);
    begun = Clock::now();
    heard = hear(guest, {"dd", "if=/root/file", "of=/dev/null", "bs=1M", "iflag=direct"});
    ASSERT_EQ(heard.exit->code, 0) << heard.err;
    EXPECT_GE(charged(layout_, id, disk).read, 8 * kMiB);
    expect_held_back(8 * kMiB, Clock::now() - begun);
  }
  kernel::CgroupLayout layout_;
};

TEST_F(Io, ColdAndPooled) {
  auto client = island().client();
  ASSERT_TRUE(client.park(island().digest(), 1));
  ASSERT_TRUE(eventually([&] { return client.info()->parked == 1; }));
  for (bool cold : {true, false}) {
    SCOPED_TRACE(cold ? "cold" : "pooled");
    auto sandbox = client.launch(limited(cold));
    ASSERT_OK(sandbox);
    EXPECT_EQ(sandbox->reply.birth, cold ? Birth::cold : Birth::pooled);
    auto talking = talk(sandbox->reply.id, std::move(sandbox->link));
    ASSERT_OK(talking);
    expect_limited(talking->id, *talking->guest);
    EXPECT_TRUE(client.kill(talking->id));
  }
}

TEST_F(Io, Resumed) {
  NEEDS_CRIU();
  auto client = island().client();
  auto box = Counting::start(client, island().digest());
  ASSERT_OK(box);
  auto saved = box->save(client, true, false);
  ASSERT_OK(saved);
  auto next = Counting::resume(
      client, {.limits = {.io_bytes_per_second = kRate}, .ephemeral = false, .image = saved->image, .id = box->id()},
      *box);
  ASSERT_OK(next);
  expect_limited(next->id(), next->guest());
  EXPECT_TRUE(client.kill(next->id()));
  EXPECT_TRUE(client.drop_image(saved->image));
}

// The files of the image are read by many, and mostly from the cache: that of the blob is given up from outside, that
// of the file from inside, and whoever reads ahead meanwhile may be faster, so again.
void expect_image_is_charged(Island& island, const kernel::CgroupLayout& layout, const std::string& disk) {
  auto client = island.client();
  auto sandbox = launch(client, {.digest = island.digest(), .limits = {.io_bytes_per_second = kRate}, .cold = true});
  ASSERT_OK(sandbox);
  Fd blob(::open((cache_folder() + "/blobs/" + island.digest() + ".erofs").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(blob);
  const std::string read_anew =
      "for f in $(find /usr/bin /usr/lib -xdev -type f -size +900k | head -8); do"
      " dd if=$f iflag=nocache count=0; dd if=$f of=/dev/null bs=1M count=1; done 2>/dev/null";
  EXPECT_TRUE(eventually(
      [&] {
        uint64_t before = charged(layout, sandbox->id, disk).read;
        ::posix_fadvise(blob.get(), 0, 0, POSIX_FADV_DONTNEED);
        (void)hear(*sandbox->guest, {"sh", "-c", read_anew});
        return charged(layout, sandbox->id, disk).read > before + kMiB;
      },
      std::chrono::seconds(60)))
      << "nothing that was read of the image is charged to the sandbox";
  EXPECT_TRUE(client.kill(sandbox->id));
}

TEST_F(Io, TheImageIsReadUnderTheLimit) {
  auto disk = kernel::disk_device_of(cache_folder() + "/blobs");
  if (!disk) GTEST_SKIP() << disk.error().message;
  expect_image_is_charged(island(), layout_, *disk);
}

// A data directory on a disk of its own, beside that of the templates.
TEST(IoOfTwoDisks, TheLimitHoldsOnBoth) {
  NEEDS_TEMPLATE("minimal");
  auto templates = kernel::disk_device_of(cache_folder() + "/blobs");
  if (!templates) GTEST_SKIP() << templates.error().message;
  char name[] = "/var/tmp/isl-disk-XXXXXX";
  ASSERT_TRUE(::mkdtemp(name));
  const std::string folder = name, file = folder + "/file", point = folder + "/disk", data = point + "/data";
  fs::create_directory(point);
  auto made = run_program(
      {"sh", "-c", fmt::format("truncate -s 2G {0} && mkfs.ext4 -q {0} && mount -o loop {0} {1}", file, point)});
  if (made.code == 0) {
    fs::create_directory(data);
    Island island({.folder = data});
    auto layout = layout_for(data);
    EXPECT_EQ(layout.disk_devices.size(), 2u);
    if (layout.disk_devices.size() == 2) {
      EXPECT_EQ(layout.disk_devices[1], *templates);
      auto client = island.client();
      auto sandbox = client.launch({.digest = island.digest(), .limits = {.io_bytes_per_second = kRate}});
      EXPECT_TRUE(sandbox) << sandbox.error().message;
      if (sandbox) {
        auto tree = kernel::CgroupTree(layout);
        auto group = tree.adopt(sandbox->reply.id);
        EXPECT_EQ(group->limits()->io_bytes_per_second, kRate);
        group->release();
        EXPECT_TRUE(client.kill(sandbox->reply.id));
      }
      expect_image_is_charged(island, layout, *templates);
    }
  }
  ::umount2(point.c_str(), MNT_DETACH);
  fs::remove_all(folder);
  if (made.code != 0) GTEST_SKIP() << "no second disk can be made here: " << made.err;
}

}  // namespace
}  // namespace isola::e2e
