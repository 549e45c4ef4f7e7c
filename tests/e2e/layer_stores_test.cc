// Parked jails on each kind of layer store that works here: they take the disk limit of their caller where the store
// can, and where it cannot they wait for another caller.
#include <fmt/format.h>

#include "e2e/island.h"
#include "image/layer_store_probe.h"

namespace isola::e2e {
namespace {

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

class LayerStores : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    NEEDS_TEMPLATE("minimal");
    static const auto report = image::probe_layer_stores("/tmp");
    ASSERT_TRUE(report) << report.error().message;
    for (const auto& provider : report->providers)
      if (provider.name == GetParam() && !provider.works) GTEST_SKIP() << provider.name << ": " << provider.why;
    island_ = std::make_unique<Island>(IslandOptions{.layer_store = GetParam()});
  }
  void TearDown() override {
    if (island_) island_->expect_unchanged();
  }
  std::string parked_one(launcher::Client& client) {
    std::string id;
    EXPECT_TRUE(eventually([&] { return client.info()->parked == 1; }));
    if (auto all = client.list())
      for (const auto& one : *all)
        if (one.parked) id = one.id;
    return id;
  }
  std::unique_ptr<Island> island_;
};

TEST_P(LayerStores, AParkedJailIsClaimedOrStays) {
  auto client = island_->client();
  ASSERT_TRUE(client.park(island_->digest(), 1));
  const boundary::Limits usual;
  for (uint64_t disk : {usual.disk, 48 * kMiB, 1 * kGiB, 5 * kGiB, usual.disk}) {
    SCOPED_TRACE(fmt::format("{} MiB", disk / kMiB));
    std::string parked = parked_one(client);
    ASSERT_FALSE(parked.empty());
    auto sandbox = client.launch({.digest = island_->digest(), .limits = {.disk = disk}});
    ASSERT_OK(sandbox);
    const std::string id = sandbox->reply.id;
    EXPECT_EQ(sandbox->reply.birth == Birth::pooled, id == parked);
    if (disk == usual.disk || std::string_view(GetParam()) != "ext4-file") {
      EXPECT_EQ(sandbox->reply.birth, Birth::pooled);
    } else if (id != parked) {
      EXPECT_EQ(parked_one(client), parked) << "one that could not be used was thrown away";
    }
    auto talking = talk(id, std::move(sandbox->link));
    ASSERT_OK(talking);
    auto heard = hear(*talking->guest, {"dd", "if=/dev/zero", "of=/root/file", "bs=1M", "count=64"});
    EXPECT_EQ(heard.exit->code == 0, disk > 64 * kMiB) << heard.err;
    EXPECT_TRUE(client.kill(id));
  }
}

INSTANTIATE_TEST_SUITE_P(Providers, LayerStores, ::testing::Values("project-quota", "btrfs", "ext4-file"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace isola::e2e
