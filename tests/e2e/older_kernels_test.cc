// Kernels that take the layers of an overlay by name only (Debian 12 and Ubuntu 24.04 have such) get their roots by
// another path than this machine's kernel would choose. Here the launcher is told to choose that one.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "e2e/images.h"
#include "launcher/journal.h"

namespace isola::e2e {
namespace {

namespace fs = std::filesystem;

class OlderKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    NEEDS_TEMPLATE("minimal");
    island_ = std::make_unique<Island>(IslandOptions{.env = {"ISOLA_NO_OVERLAY_FDS=1"}});
  }
  // What was launched is ended, and then everything is as it was.
  void TearDown() override {
    if (!island_) return;
    {
      auto client = island_->client();
      if (auto live = client.list())
        for (const auto& one : *live)
          if (!one.parked) (void)client.kill(one.id);
      if (auto images = client.images())
        for (const auto& image : *images) (void)client.drop_image(image.id);
    }
    island_->expect_unchanged();
  }
  // The first line of a mount table is the root's; a layer that was given by descriptor has no name there.
  static std::string root_of(launcher::Client& client, const std::string& id) {
    if (auto all = client.list())
      for (const auto& one : *all)
        if (one.id == id) {
          std::string table = read_file(fmt::format("/proc/{}/mountinfo", one.pid)).value_or("");
          return table.substr(0, table.find('\n'));
        }
    return "no such sandbox";
  }
  static void expect_by_name(launcher::Client& client, const std::string& id) {
    std::string root = root_of(client, id);
    EXPECT_NE(root.find(",lowerdir="), root.npos) << "the other path was taken: " << root;
  }
  std::unique_ptr<Island> island_;
};

TEST_F(OlderKernels, ColdAndPooled) {
  auto client = island_->client();
  ASSERT_TRUE(client.park(island_->digest(), 1));
  ASSERT_TRUE(eventually([&] { return client.info()->parked == 1; }));
  for (bool cold : {true, false}) {
    auto sandbox = client.launch({.digest = island_->digest(), .cold = cold});
    ASSERT_OK(sandbox);
    EXPECT_EQ(sandbox->reply.birth, cold ? Birth::cold : Birth::pooled);
    const std::string id = sandbox->reply.id;
    expect_by_name(client, id);
    auto talking = talk(id, std::move(sandbox->link));
    ASSERT_OK(talking);
    auto heard = hear(*talking->guest,
                      {"sh", "-c", "echo new >/etc/new && rm /etc/passwd && cat /etc/new && stat -c %u:%g /etc/new"});
    EXPECT_EQ(heard.out, "new\n0:0\n") << heard.err;
  }
}

TEST_F(OlderKernels, AFolderOfTheHostIsShown) {
  char name[] = "/tmp/isl-shown-XXXXXX";
  ASSERT_TRUE(::mkdtemp(name));
  fs::permissions(name, fs::perms(0755));
  std::ofstream(std::string(name) + "/file") << "shown\n";
  auto done = island_->sh("cat /mnt/file; echo x 2>/dev/null >/mnt/file || echo refused",
                          {"--mount-ro", std::string(name) + ":/mnt"});
  EXPECT_EQ(done.out, "shown\nrefused\n") << done.text();
  fs::remove_all(name);
}

TEST_F(OlderKernels, ResumedAndForked) {
  NEEDS_CRIU();
  auto client = island_->client();
  auto box = Counting::start(client, island_->digest());
  ASSERT_OK(box);
  ASSERT_TRUE(box->sh("echo kept >/root/file"));
  auto saved = box->save(client, true, false);
  ASSERT_OK(saved);
  for (bool forked : {false, true}) {
    SCOPED_TRACE(forked ? "forked" : "resumed");
    auto next = Counting::resume(
        client, {.ephemeral = false, .image = saved->image, .forked = forked, .id = forked ? "" : box->id()}, *box);
    ASSERT_OK(next);
    EXPECT_EQ(next->birth(), forked ? Birth::forked : Birth::resumed);
    expect_by_name(client, next->id());
    auto counted = next->next();
    EXPECT_TRUE(counted) << counted.error().message;
    EXPECT_EQ(next->sh("cat /root/file; echo more >>/root/file; cat /root/file").value_or("failed"),
              "kept\nkept\nmore\n");
  }
}

// Each image adds a layer, and all their names have to fit into the one option that such a kernel has for them.
TEST_F(OlderKernels, AsManyLayersAsASandboxCanHave) {
  auto client = island_->client();
  launcher::LaunchRequest request{.digest = island_->digest(), .ephemeral = false};
  for (size_t i = 0; i <= launcher::kMostLowers; ++i) {
    SCOPED_TRACE(fmt::format("{} layers", i));
    auto sandbox = launch(client, request);
    ASSERT_OK(sandbox);
    auto heard = hear(*sandbox->guest, {"sh", "-c", fmt::format("echo {} >>/root/file; wc -l </root/file", i)});
    ASSERT_EQ(heard.out, fmt::format("{}\n", i + 1)) << heard.err;
    launcher::CheckpointRequest pause{.id = sandbox->id, .memory = false, .keep_running = false};
    auto saved = client.checkpoint(pause);
    if (i == launcher::kMostLowers) {
      ASSERT_FALSE(saved);
      EXPECT_EQ(saved.error().code, Code::exhausted) << saved.error().message;
      break;
    }
    ASSERT_OK(saved);
    if (!request.image.empty()) {
      ASSERT_TRUE(client.drop_image(request.image));
    }
    request = {.ephemeral = false, .image = saved->image};
  }
}

}  // namespace
}  // namespace isola::e2e
