#include "dialect/e2b/watchers.h"

#include <gtest/gtest.h>

namespace isola::e2b {
namespace {

sandbox::BoxPtr box(boost::asio::io_context& io, const std::string& id) {
  store::SandboxRecord record;
  record.id = id;
  record.state = State::running;
  return std::make_shared<sandbox::Box>(io, record);
}

Watchers::WatcherPtr watcher() { return std::make_shared<Watchers::Watcher>(nullptr); }

const std::string kEvent(1000, 'x');

TEST(Watchers, HoldOnlySoMuchThatNobodyFetches) {
  boost::asio::io_context io;
  Watchers all;
  auto one = box(io, "i1"), other = box(io, "i2");
  auto first = watcher();
  ASSERT_TRUE(all.add(one, first));
  size_t held = 0;
  while (first->put(kEvent)) ++held;
  EXPECT_EQ(held, Watchers::kMostBytes / 1001);
  // Four of them are as much as a sandbox may have; another one has its own.
  std::vector<Watchers::WatcherPtr> more;
  for (int i = 0; i < 4; ++i) {
    more.push_back(watcher());
    ASSERT_TRUE(all.add(one, more.back()));
    while (more.back()->put(kEvent)) ++held;
  }
  EXPECT_LE(held, Watchers::kMostBytesOfBox / 1000);
  EXPECT_GT(held, Watchers::kMostBytesOfBox / 1100);
  auto free = watcher();
  ASSERT_TRUE(all.add(other, free));
  EXPECT_TRUE(free->put(kEvent));
  // Who fetches makes room, and so does who fails.
  EXPECT_FALSE(more[3]->put(kEvent));
  EXPECT_EQ(first->take()->size(), Watchers::kMostBytes / 1001 * 1001 - 1);
  EXPECT_EQ(*first->take(), "");
  EXPECT_TRUE(more[3]->put(kEvent));
  more[0]->fail({Code::internal, "too many"});
  EXPECT_EQ(more[0]->take().error().message, "too many");
  EXPECT_FALSE(more[0]->put(kEvent));
  while (first->put(kEvent)) {
  }
  EXPECT_GT(first->take()->size(), Watchers::kMostBytes - 1100);
}

TEST(Watchers, AreFoundByTheirSandboxAlone) {
  boost::asio::io_context io;
  Watchers all;
  auto one = box(io, "i1"), other = box(io, "i2");
  auto id = all.add(one, watcher());
  ASSERT_TRUE(id);
  EXPECT_TRUE(all.find("i1", *id));
  EXPECT_FALSE(all.find("i2", *id));
  all.remove("i2", *id);
  EXPECT_TRUE(all.find("i1", *id));
  all.remove("i1", *id);
  EXPECT_FALSE(all.find("i1", *id));
  for (size_t i = 0; i < Watchers::kMostPerSandbox; ++i) ASSERT_TRUE(all.add(one, watcher()));
  EXPECT_EQ(all.add(one, watcher()).error().code, Code::exhausted);
  EXPECT_TRUE(all.add(other, watcher()));
}

TEST(Watchers, GoWithTheirSandboxes) {
  boost::asio::io_context io;
  Watchers all;
  for (int i = 0; i < 1000; ++i) {
    auto ended = box(io, "i" + std::to_string(i));
    auto failed = watcher();
    ASSERT_TRUE(all.add(ended, failed));
    failed->fail({Code::internal, "too many"});  // nobody comes to hear it
  }
  EXPECT_LE(all.size(), 64u);
}

}  // namespace
}  // namespace isola::e2b
