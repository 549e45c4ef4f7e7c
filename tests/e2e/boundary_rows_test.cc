// What differs between boundaries by nature: tried on each, and written down for the table of docs/boundaries.md
// (scripts/dev/boundaries.py) as the property `cell`. A refusal is a sentence, and the sandbox goes on.
#include <unistd.h>

#include "boundary/choice.h"
#include "e2e/island.h"

namespace isola::e2e {
namespace {

class BoundaryRows : public ::testing::TestWithParam<BoundaryKind> {
 protected:
  void SetUp() override {
    NEEDS_TEMPLATE("minimal");
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    island_ = std::make_unique<Island>();
    auto client = island_->client();
    auto info = client.info();
    ASSERT_OK(info);
    for (const auto& offer : info->boundaries)
      if (offer.kind == GetParam() && !offer.offered)
        GTEST_SKIP() << "boundary " << to_string(offer.kind) << ": " << offer.missing;
  }
  launcher::LaunchRequest request() const {
    launcher::LaunchRequest request{.digest = island_->digest(), .ephemeral = false};
    request.boundary.wish = wish_for(GetParam());
    return request;
  }
  // Makes an image, and a sandbox of it that has the file and, with memory, the process; or says why not.
  void keeps(bool memory) {
    auto client = island_->client();
    auto box = launch(client, request());
    ASSERT_OK(box);
    auto process = box->guest->start({.argv = {"sleep", "1000"}});
    ASSERT_OK(process);
    const std::string script =
        "grep -q sleep /proc/" + std::to_string(process->pid) + "/comm 2>/dev/null && echo lives; cat /root/file";
    ASSERT_EQ(hear(*box->guest, {"/bin/sh", "-c", "echo kept >/root/file; " + script}).out, "lives\nkept\n");
    if (memory) {
      auto quiet = box->guest->quiesce();
      ASSERT_OK(quiet);
    }
    auto saved = client.checkpoint({.id = box->id, .memory = memory, .keep_running = true});
    if (memory) {
      auto went_on = box->guest->go_on();
      ASSERT_OK(went_on);
    }
    EXPECT_EQ(hear(*box->guest, {"/bin/sh", "-c", script}).out, "lives\nkept\n") << "it does not go on";
    if (!saved) {
      EXPECT_EQ(saved.error().code, Code::unsupported);
      EXPECT_GT(saved.error().message.size(), 30u) << "that is no sentence";
      RecordProperty("cell", "refused: " + saved.error().message);
    } else {
      auto again = launch(client, {.ephemeral = false, .image = saved->image, .forked = true});
      ASSERT_OK(again);
      EXPECT_EQ(hear(*again->guest, {"/bin/sh", "-c", script}).out, memory ? "lives\nkept\n" : "kept\n");
      ASSERT_TRUE(client.kill(again->id));
      ASSERT_TRUE(client.drop_image(saved->image));
    }
    ASSERT_TRUE(client.kill(box->id));
  }

  std::unique_ptr<Island> island_;
};

TEST_P(BoundaryRows, KeepsFiles) { keeps(false); }

TEST_P(BoundaryRows, KeepsMemory) { keeps(true); }

TEST_P(BoundaryRows, SeveralProcessors) {
  const long here = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (here < 2) GTEST_SKIP() << "this machine has one processor";
  auto client = island_->client();
  auto ask = request();
  ask.limits.cpus = 2;
  auto box = launch(client, ask);
  ASSERT_OK(box);
  const int inside = std::atoi(hear(*box->guest, {"nproc"}).out.c_str());
  EXPECT_GE(inside, 1);
  if (inside < 2) RecordProperty("cell", "no: one");
  ASSERT_TRUE(client.kill(box->id));
}

// A kernel of its own has modules, mounts and devices of its own; the jail's root has none of that.
TEST_P(BoundaryRows, MountsAndDevicesOfItsOwn) {
  auto client = island_->client();
  auto box = launch(client, request());
  ASSERT_OK(box);
  const std::string out = hear(*box->guest, {"/bin/sh", "-c",
                                             "unshare -mpf --mount-proc true 2>/dev/null && echo mounts; "
                                             "mknod /tmp/node c 1 3 2>/dev/null && echo devices; true"})
                              .out;
  if (out != "mounts\ndevices\n") {
    std::string some = out;
    for (char& c : some)
      if (c == '\n') c = ' ';
    RecordProperty("cell", out.empty() ? std::string("no") : "only " + some);
  }
  EXPECT_EQ(out == "", GetParam() == BoundaryKind::jail) << out;
  ASSERT_TRUE(client.kill(box->id));
}

INSTANTIATE_TEST_SUITE_P(Each, BoundaryRows,
                         ::testing::Values(BoundaryKind::jail, BoundaryKind::gvisor, BoundaryKind::uml,
                                           BoundaryKind::microvm),
                         [](const auto& param) { return std::string(to_string(param.param)); });

}  // namespace
}  // namespace isola::e2e
