// Which provider is opened, and what is told of each.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/ids.h"
#include "image/layer_store.h"
#include "image/layer_store_probe.h"
#include "image/layer_test.h"
#include "image/spawn.h"

namespace isola::image {
namespace {

class OpenStoreTest : public testing::Test {
 protected:
  void SetUp() override { dir_ = "/var/tmp/isola-open-" + new_sandbox_id(); }
  void TearDown() override { EXPECT_TRUE(remove_tree(dir_)); }
  std::string dir_;
};

TEST_F(OpenStoreTest, TheRiskMustBeNamed) {
  auto store = open_layer_store(dir_, {.provider = "unquotaed"}, std::nullopt);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Code::denied);
  EXPECT_TRUE(open_layer_store(dir_, {.provider = "unquotaed"}, AllowUnquotaedDisk()));
}

TEST_F(OpenStoreTest, UnknownProviderAndOddPath) {
  EXPECT_EQ(open_layer_store(dir_, {.provider = "tape"}, std::nullopt).error().code, Code::invalid);
  EXPECT_EQ(open_layer_store("relative", {}, std::nullopt).error().code, Code::invalid);
}

TEST_F(OpenStoreTest, TheFirstChoiceIsKept) {
  ASSERT_TRUE(open_layer_store(dir_, {.provider = "ext4-file", .reserve_bytes = 1}, std::nullopt));
  auto again = open_layer_store(dir_, {.store_bytes = 512 * MiB, .reserve_bytes = 1}, std::nullopt);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ((*again)->name(), "ext4-file");
}

TEST_F(OpenStoreTest, ADamagedStoreIsNotShadowedByAnEmptyOne) {
  ASSERT_TRUE(
      open_layer_store(dir_, {.provider = "btrfs", .store_bytes = 512 * MiB, .reserve_bytes = 1}, std::nullopt));
  Fd fd(::open((dir_ + "/storage/store.btrfs").c_str(), O_WRONLY | O_CLOEXEC));
  std::string zeros(MiB, '\0');
  ASSERT_EQ(::pwrite(fd.get(), zeros.data(), zeros.size(), 0), static_cast<ssize_t>(zeros.size()));
  EXPECT_FALSE(open_layer_store(dir_, {}, std::nullopt));
  EXPECT_FALSE(open_layer_store(dir_, {}, AllowUnquotaedDisk()));
  EXPECT_EQ(loops_below(dir_), 0u);
}

// Where simple quotas are unknown (before Linux 6.7), full ones charge a snapshot for what it shares.
TEST_F(OpenStoreTest, LayersBelowCountAgainstNoLimitUnderFullQuotasEither) {
  std::string storage = dir_ + "/storage", file = storage + "/store.btrfs";
  ASSERT_TRUE(make_dirs(storage + "/layers"));
  const std::vector<std::vector<std::string>> commands = {{"truncate", "-s", "512M", file},
                                                          {"mkfs.btrfs", "-q", "-K", "-m", "single", file},
                                                          {"mount", "-o", "loop", file, storage + "/layers"},
                                                          {"btrfs", "quota", "enable", storage + "/layers"},
                                                          {"umount", storage + "/layers"}};
  for (const auto& argv : commands) ASSERT_TRUE(run({.argv = argv, .what = argv[0]})) << argv[0];
  auto opened = open_layer_store(dir_, {.provider = "btrfs", .reserve_bytes = 1}, std::nullopt);
  ASSERT_TRUE(opened) << opened.error().message;
  LayerStore& store = **opened;
  auto one = store.create("one", {.bytes = 64 * MiB});
  ASSERT_TRUE(one) << one.error().message;
  ASSERT_EQ(fill_bytes(*one + "/upper/f", 40 * MiB).error, 0);
  ASSERT_TRUE(store.sync("one"));
  auto two = store.create("two", {.bytes = 16 * MiB}, {"one"});
  ASSERT_TRUE(two) << two.error().message;
  EXPECT_TRUE(verify_limit(store, "two", 16 * MiB));
  EXPECT_LT(store.usage("two").value().bytes, 1 * MiB);
  EXPECT_EQ(fill_bytes(*two + "/upper/f", 10 * MiB).error, 0);
  EXPECT_TRUE(out_of_space(fill_bytes(*two + "/upper/g", 10 * MiB).error));
  // One that is full can lie below all the same.
  ASSERT_TRUE(store.sync("two"));
  auto three = store.create("three", {.bytes = 16 * MiB}, {"two", "one"});
  ASSERT_TRUE(three) << three.error().message;
  EXPECT_EQ(fill_bytes(*three + "/upper/f", 10 * MiB).error, 0);
}

// Layers of images that were made when each lay in a subvolume of its own.
TEST_F(OpenStoreTest, LayersThatWereStackedBeforeCanBeUsed) {
  auto opened =
      open_layer_store(dir_, {.provider = "btrfs", .store_bytes = 512 * MiB, .reserve_bytes = 1}, std::nullopt);
  ASSERT_TRUE(opened) << opened.error().message;
  LayerStore& store = **opened;
  for (std::string id : {"old1", "old2"}) {
    auto layer = store.create(id, {.bytes = 16 * MiB});
    ASSERT_TRUE(layer);
    ASSERT_TRUE(replace_file(*layer + "/upper/who", id));
  }
  ASSERT_TRUE(store.create("new", {.bytes = 16 * MiB}, {"old2", "old1"}));
  auto lowers = store.lowers("new", {"old2", "old1"});
  ASSERT_TRUE(lowers) << lowers.error().message;
  EXPECT_EQ(read_file(lowers->at(0) + "/who").value_or(""), "old2");
  EXPECT_EQ(read_file(lowers->at(1) + "/who").value_or(""), "old1");
}

TEST_F(OpenStoreTest, ProbeSaysWhatWorksAndLeavesNothing) {
  ASSERT_TRUE(make_dirs(dir_));
  auto report = probe_layer_stores(dir_);
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->providers.size(), 3u);
  for (const auto& p : report->providers) {
    EXPECT_FALSE(p.why.empty());
    EXPECT_EQ(p.advice.empty(), p.works) << p.name;
    if (p.works && report->chosen.empty()) ADD_FAILURE() << "nothing chosen although " << p.name << " works";
  }
  EXPECT_TRUE(list_dir(dir_).value().empty());
  EXPECT_EQ(loops_below(dir_), 0u);
}

}  // namespace
}  // namespace isola::image
