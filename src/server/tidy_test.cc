#include "server/tidy.h"

#include "store/test_store.h"

namespace isola::server {
namespace {

constexpr store::Millis kDay = 24 * 3600 * 1000;

using TidyTest = store::StoreTest;

TEST_F(TidyTest, ABusyDayIsForgottenAsAWhole) {
  const store::Millis now = 100 * kDay;
  for (int i = 0; i < 2500; ++i) {
    auto s = store::example("default", kDay);
    s.state = State::ended;
    s.ended = i < 2400 ? 60 * kDay : 90 * kDay;
    ASSERT_TRUE(store_->insert_sandbox(s));
  }
  auto left = [&] {
    size_t count = 0;
    std::string cursor;
    do {
      auto page = store_->list_sandboxes({.project = "default"}, cursor, 1000);
      if (!page) return size_t{0};
      count += page->sandboxes.size();
      cursor = page->next;
    } while (!cursor.empty());
    return count;
  };
  EXPECT_EQ(forget_ended(*store_, 30, now, 1).value(), 1000u);  // not more than it may in one go
  EXPECT_EQ(forget_ended(*store_, 30, now).value(), 1400u);
  EXPECT_EQ(left(), 100u);
  EXPECT_EQ(forget_ended(*store_, UINT64_MAX, now).value(), 0u);
  EXPECT_EQ(forget_ended(*store_, 5, now).value(), 100u);
}

}  // namespace
}  // namespace isola::server
