// Images that helpers read through, seal, pack and unpack: without a sandbox, on layers that are plain folders.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/file.h"
#include "base/ids.h"
#include "image/packed_image.h"
#include "image/tree.h"
#include "kernel/fault.h"
#include "kernel/mount.h"
#include "launcher/cells.h"
#include "launcher/run_until_test.h"

namespace isola::launcher {
namespace {

using std::chrono::milliseconds;

class CellsPacking : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    static const bool apart = ::unshare(CLONE_NEWNS) == 0 && kernel::make_all_slave();
    ASSERT_TRUE(apart);
    char name[] = "/var/tmp/isola-packing-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
    auto tree = kernel::CgroupTree::detect({});
    ASSERT_TRUE(tree);
    if (!tree->missing().empty() || !tree->prepare()) GTEST_SKIP() << "no cgroups here";
    cgroups_.emplace(*tree);
    auto layers =
        image::open_layer_store(folder_, {.provider = "unquotaed", .reserve_bytes = 1}, image::AllowUnquotaedDisk{});
    ASSERT_TRUE(layers) << layers.error().message;
    layers_ = std::move(*layers);
    loop_.emplace(std::move(*EventLoop::make()));
    ranges_.emplace(std::move(*IdRanges::open(folder_, folder_ + "/ids")));
    journal_.emplace(std::move(*Journal::open(folder_ + "/run")));
    store_.emplace(folder_ + "/kept");
  }
  void TearDown() override {
    if (cells_) {
      EXPECT_TRUE(until([&] { return cells_->cleaning() == 0; }));
    }
    cells_.reset();
    layers_.reset();
    if (!folder_.empty()) (void)image::remove_tree(folder_);
  }
  // Before start(), which finds them.
  image::Image make(bool memory, bool sealed = true, const std::string& layer_name = "") {
    auto draft = store_->begin();
    EXPECT_TRUE(draft);
    image::Image image{.id = draft->id, .verb = "pause", .digest = std::string(64, 'd'), .memory = memory};
    image.layers = {layer_name.empty() ? "layer-" + image.id : layer_name};
    image.limits.disk = 16 << 20;
    auto layer = layers_->create(image.layers.front(), {.bytes = image.limits.disk});
    EXPECT_TRUE(layer);
    EXPECT_TRUE(replace_file(*layer + "/upper/file", "kept"));
    if (memory) {
      EXPECT_TRUE(replace_file(draft->memory + "/pages-1.img", std::string(1 << 20, 'm')));
      image.files = store_->sum_up(image.id).value();
    }
    EXPECT_TRUE(store_->commit(image));
    if (sealed) {
      draft->lock.reset();
      EXPECT_TRUE(store_->seal(image.id));
    }
    return image;
  }
  void start() {
    cells_ = std::make_unique<Cells>(Cells::Parts{.loop = *loop_,
                                                  .boundaries = {},
                                                  .offers = {},
                                                  .cgroups = *cgroups_,
                                                  .layers = *layers_,
                                                  .ranges = *ranges_,
                                                  .journal = *journal_,
                                                  .blobs = folder_,
                                                  .images = folder_ + "/images",
                                                  .no_disk_limit = "",
                                                  .kept = folder_ + "/kept",
                                                  .scratch = folder_ + "/scratch"});
    auto started = cells_->start();
    ASSERT_TRUE(started) << started.error().message;
  }
  bool until(const std::function<bool()>& condition) { return run_until(*loop_, condition); }
  // Dead ones too, while nobody has waited for them.
  static std::set<pid_t> pids() {
    std::ifstream list("/proc/self/task/" + std::to_string(::getpid()) + "/children");
    std::set<pid_t> all;
    for (pid_t pid; list >> pid;) all.insert(pid);
    return all;
  }
  static size_t children() { return pids().size(); }
  using Reply = std::optional<Result<PackReply>>;
  void ask(const image::Image& image, bool pack, Reply& reply) {
    cells_->pack_image(image.id, pack, [&](auto result) { reply.emplace(std::move(result)); });
  }
  Result<PackReply> packed(const image::Image& image, bool pack) {
    Reply reply;
    ask(image, pack, reply);
    if (!until([&] { return reply.has_value(); })) return fail(Code::timeout, "nobody answers");
    return *reply;
  }
  std::string layer(const image::Image& image) { return folder_ + "/storage/layers/" + image.layers.front(); }

  std::string folder_;
  std::optional<kernel::CgroupTree> cgroups_;
  std::unique_ptr<image::LayerStore> layers_;
  std::optional<EventLoop> loop_;
  std::optional<IdRanges> ranges_;
  std::optional<Journal> journal_;
  std::optional<image::ImageStore> store_;
  std::unique_ptr<Cells> cells_;
};

TEST_F(CellsPacking, ThereAndBackAndNothingElseStays) {
  auto image = make(false);
  start();
  auto there = packed(image, true);
  ASSERT_TRUE(there) << there.error().message;
  EXPECT_TRUE(until([&] { return layers_->list()->empty(); })) << "neither its layer nor that of the trial";
  auto back = packed(image, false);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(read_file(layer(image) + "/upper/file").value(), "kept");
}

TEST_F(CellsPacking, WhatWouldNotComeBackStays) {
  auto image = make(false);
  start();
  Fd at(::open((layer(image) + "/upper").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string name(200, 'n');
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(::mkdirat(at.get(), name.c_str(), 0700), 0);
    at = Fd(::openat(at.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  auto there = packed(image, true);
  ASSERT_FALSE(there);
  EXPECT_EQ(there.error().code, Code::unsupported);
  EXPECT_TRUE(until([&] { return cells_->cleaning() == 0; }));
  EXPECT_EQ(layers_->list().value(), image.layers) << "its layer, and none of the trial";
  EXPECT_EQ(read_file(layer(image) + "/upper/file").value(), "kept");
  EXPECT_FALSE(store_->find(image.id)->packed());
}

// Thousands of requests are no thousands of processes.
TEST_F(CellsPacking, AFewAtATimeInTheOrderInWhichTheyCame) {
  std::vector<image::Image> images;
  for (int i = 0; i < 12; ++i) images.push_back(make(true));
  start();
  const size_t before = children();
  size_t answers = 0;
  for (const auto& image : images)
    cells_->verify_image(image.id, true, {}, [&](const Result<void>& good) {
      EXPECT_TRUE(good) << good.error().message;
      ++answers;
    });
  EXPECT_LE(children(), before + 4);
  Reply reply;
  ask(images[3], true, reply);
  EXPECT_LE(children(), before + 4);
  ASSERT_TRUE(until([&] { return reply.has_value(); }));
  EXPECT_TRUE(*reply);
  EXPECT_GE(answers, 9u) << "at most three others were under way with it";
  EXPECT_TRUE(until([&] { return answers == images.size(); }));
}

TEST_F(CellsPacking, WhatIsJustBeingPackedIsNotReadThrough) {
  auto image = make(true);
  start();
  Reply reply;
  ask(image, true, reply);
  std::optional<Result<void>> checked;
  cells_->verify_image(image.id, true, {}, [&](const Result<void>& result) { checked.emplace(result); });
  ASSERT_TRUE(checked) << "told at once";
  ASSERT_FALSE(*checked);
  EXPECT_EQ(checked->error().code, Code::unavailable);
  ASSERT_TRUE(until([&] { return reply.has_value(); }));
  EXPECT_TRUE(*reply);
}

// Resumed and so used up, or removed, while its turn had not come or its files were being read: nothing is damaged.
TEST_F(CellsPacking, WhatIsDroppedMeanwhileIsNotSaidToBeDamaged) {
  std::vector<image::Image> images;
  for (int i = 0; i < 5; ++i) images.push_back(make(true));
  start();
  for (bool dropped : {true, false}) {
    const auto& image = images[dropped ? 4 : 3];
    for (int i = 0; i < 4; ++i) cells_->verify_image(images[0].id, true, {}, [](const auto&) {});  // it has to wait
    std::optional<Result<void>> checked;
    cells_->verify_image(image.id, true, {}, [&](const Result<void>& result) { checked.emplace(result); });
    ASSERT_FALSE(checked);
    if (dropped) {
      ASSERT_TRUE(cells_->drop_image(image.id));
    }
    std::filesystem::remove_all(store_->memory_folder(image.id));
    ASSERT_TRUE(until([&] { return checked.has_value(); }));
    ASSERT_FALSE(*checked);
    EXPECT_EQ(checked->error().code, dropped ? Code::not_found : Code::corrupt) << checked->error().message;
  }
}

TEST_F(CellsPacking, WhatIsDroppedIsNotSealedToItsEnd) {
  auto image = make(true, false);
  Fd lock(::open((store_->root() + "/" + image.id + "/lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);  // the sealer's last step waits for that
  start();
  const auto before = pids();
  ASSERT_TRUE(until([&] { return pids().size() == before.size() + 1; }));
  auto sealer = pids();
  for (pid_t pid : before) sealer.erase(pid);
  ASSERT_EQ(sealer.size(), 1u);
  ASSERT_TRUE(cells_->drop_image(image.id));
  EXPECT_TRUE(until([&] { return !pids().contains(*sealer.begin()); })) << "it goes on";
  lock.reset();
}

TEST_F(CellsPacking, WhatNobodyCouldBeginToSealIsSealedLater) {
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  std::vector<image::Image> images = {make(true, false), make(true, false)};
  std::ranges::sort(images, {}, &image::Image::id);  // in which order they are sealed
  Fd lock(::open((store_->root() + "/" + images[1].id + "/lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);  // the sealer's last step waits for that
  start();
  const size_t before = children();
  ASSERT_TRUE(kernel::fault::arm("clone:1:" + std::to_string(EAGAIN)));
  EXPECT_TRUE(until([&] { return !store_->find(images[0].id)->files.front().sha256.empty(); })) << "it was given up";
  kernel::fault::disarm();
  // And whoever seals the next one can be stopped.
  ASSERT_TRUE(until([&] { return children() == before + 1; })) << "the sealer";
  ASSERT_TRUE(cells_->drop_image(images[1].id));
  EXPECT_TRUE(until([&] { return children() == before; })) << "it goes on";
}

// To look for a layer is to attach a device and to mount it, with this store.
TEST_F(CellsPacking, AStartMountsNothingOfThoseThatSleep) {
  layers_.reset();
  image::StoreOptions options{.provider = "ext4-file", .reserve_bytes = 1};
  auto open = [&] {
    auto layers = image::open_layer_store(folder_, options, std::nullopt);
    if (layers) layers_ = std::move(*layers);
    return layers ? Result<void>() : std::unexpected(layers.error());
  };
  if (auto there = open(); !there) GTEST_SKIP() << there.error().message;
  auto image = make(true);
  layers_.reset();
  ASSERT_TRUE(open());
  struct stat here{}, above{};
  start();
  ASSERT_EQ(cells_->images("", 10).size(), 1u);
  ASSERT_EQ(::stat((folder_ + "/storage/layers").c_str(), &above), 0);
  if (::stat(layer(image).c_str(), &here) == 0) {
    EXPECT_EQ(here.st_dev, above.st_dev) << "it is mounted";
  }
}

// Both write its manifest.
TEST_F(CellsPacking, WhatIsJustBeingSealedIsPackedAfterwards) {
  auto image = make(true, false);
  Fd lock(::open((store_->root() + "/" + image.id + "/lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);  // the sealer's last step waits for that
  start();
  const size_t before = children();
  ASSERT_TRUE(until([&] { return children() == before + 1; })) << "the sealer";
  Reply reply;
  ask(image, true, reply);
  EXPECT_EQ(children(), before + 1) << "nobody packs meanwhile";
  lock.reset();
  ASSERT_TRUE(until([&] { return reply.has_value(); }));
  ASSERT_TRUE(*reply) << reply->error().message;
  EXPECT_TRUE(store_->find(image.id)->packed());
  auto back = packed(image, false);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_TRUE(store_->verify(*store_->find(image.id), true));
}

// A launcher was killed while it packed or unpacked the first pause of a sandbox, whose layer has the sandbox's name.
// What is left is removed again and again until it is gone; not after the files came back, and nothing of theirs.
TEST_F(CellsPacking, WhatAKilledLauncherLeftIsRemovedBeforeTheFilesComeBack) {
  const std::string sandbox = new_sandbox_id();
  auto image = make(false, true, sandbox);
  start();
  ASSERT_TRUE(packed(image, true));
  ASSERT_TRUE(until([&] { return cells_->cleaning() == 0; }));
  const std::string held = layer(image) + "/held";
  ASSERT_TRUE(make_dirs(held, 0700));
  ASSERT_EQ(::mount("tmpfs", held.c_str(), "tmpfs", 0, nullptr), 0);
  cells_.reset();
  loop_.emplace(std::move(*EventLoop::make()));
  start();  // cannot remove it, and will try again
  ASSERT_TRUE(until([&] { return cells_->cleaning() == 0; }));
  EXPECT_EQ(::umount(held.c_str()), 0);
  auto back = packed(image, false);
  ASSERT_TRUE(back) << back.error().message;
  bool later = false;  // than the next try would have been
  loop_->after(milliseconds(2500), [&] { later = true; });
  ASSERT_TRUE(until([&] { return later; }));
  EXPECT_EQ(read_file(layer(image) + "/upper/file").value_or("gone"), "kept");
}

// Where the files are to go lies something that cannot be removed.
TEST_F(CellsPacking, WhoeverWaitsForARemovalHearsThatItFailed) {
  auto image = make(false);
  start();
  ASSERT_TRUE(packed(image, true));
  ASSERT_TRUE(until([&] { return cells_->cleaning() == 0; }));
  const std::string held = layer(image) + "/held";
  ASSERT_TRUE(make_dirs(held, 0700));
  ASSERT_EQ(::mount("tmpfs", held.c_str(), "tmpfs", 0, nullptr), 0);
  auto back = packed(image, false);
  EXPECT_EQ(::umount(held.c_str()), 0);
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, Code::unavailable) << back.error().message;
  EXPECT_TRUE(store_->find(image.id)->packed()) << "nothing is lost";
  back = packed(image, false);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(read_file(layer(image) + "/upper/file").value(), "kept");
}

// What an image whose manifest cannot be read is made of nobody knows: so nothing is removed that could be a part of
// it.
TEST_F(CellsPacking, AManifestThatCannotBeReadCostsNoLayer) {
  auto image = make(false, true, new_sandbox_id());
  auto other = make(false);
  const std::string manifest = folder_ + "/kept/" + image.id + "/manifest.json";
  const std::string whole = read_file(manifest).value();
  ASSERT_TRUE(replace_file(manifest, "not " + whole));
  ASSERT_TRUE(layers_->create("unknown", {.bytes = 16 << 20}));
  start();
  ASSERT_TRUE(cells_->drop_image(other.id));  // its layer may be below the broken one
  ASSERT_TRUE(until([&] { return cells_->cleaning() == 0; }));
  EXPECT_EQ(layers_->list()->size(), 3u);
  EXPECT_EQ(read_file(layer(image) + "/upper/file").value_or("gone"), "kept");
  EXPECT_EQ(packed(image, true).error().code, Code::corrupt);
  // Mended, it is an image like any other, and the next start clears up.
  ASSERT_TRUE(replace_file(manifest, whole));
  EXPECT_TRUE(cells_->image_open_to_user(image.id));
  EXPECT_EQ(cells_->images("", 10).size(), 1u);
  cells_.reset();
  loop_.emplace(std::move(*EventLoop::make()));
  start();
  ASSERT_TRUE(until([&] { return cells_->cleaning() == 0; }));
  EXPECT_EQ(layers_->list().value(), image.layers);
}

TEST_F(CellsPacking, AnImageThatCannotBeReadCanBeDropped) {
  auto image = make(false);
  ASSERT_TRUE(replace_file(folder_ + "/kept/" + image.id + "/manifest.json", "{}"));
  start();
  // By root: whose it is cannot be said.
  auto open = cells_->image_open_to_user(image.id);
  ASSERT_FALSE(open);
  EXPECT_EQ(open.error().code, Code::corrupt) << open.error().message;
  ASSERT_TRUE(cells_->drop_image(image.id));
  EXPECT_EQ(cells_->drop_image(image.id).error().code, Code::not_found);
  ASSERT_TRUE(until([&] { return cells_->cleaning() == 0; }));
  cells_.reset();
  loop_.emplace(std::move(*EventLoop::make()));
  start();
  ASSERT_TRUE(until([&] { return cells_->cleaning() == 0; }));
  EXPECT_TRUE(layers_->list()->empty());
}

// The manifest says whose it is, also when it is read a second time.
TEST_F(CellsPacking, WhatIsRootsOwnIsNoUsersToLaunch) {
  auto image = make(false);
  image.roots_own = true;
  ASSERT_TRUE(store_->commit(image));
  start();
  EXPECT_EQ(cells_->image_open_to_user(image.id).error().code, Code::not_found);
  std::optional<Code> refused;
  cells_->launch({.image = image.id, .by_user = true}, {}, 1, [&](const auto& reply) { refused = reply.error().code; });
  EXPECT_EQ(refused, Code::not_found);
}

}  // namespace
}  // namespace isola::launcher
