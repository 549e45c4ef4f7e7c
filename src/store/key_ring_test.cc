#include "store/key_ring.h"

#include <thread>

#include "store/test_store.h"

namespace isola::store {
namespace {

class KeyRingTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    ring_ = std::make_unique<KeyRing>(*store_);
  }
  std::unique_ptr<KeyRing> ring_;
};

TEST_F(KeyRingTest, IssuedRecalledRevoked) {
  auto made = ring_->issue("default", "laptop", Scope::use, 10);
  ASSERT_TRUE(made);
  for (int i = 0; i < 3; ++i) {
    auto who = ring_->authenticate(made->secret, 20 + i);
    ASSERT_TRUE(who);
    EXPECT_EQ((*who)->id, made->record.id);
    EXPECT_EQ((*who)->scope, Scope::use);
  }
  ASSERT_TRUE(ring_->revoke(made->record.id, 30));
  EXPECT_EQ(ring_->authenticate(made->secret, 40).error().code, Code::denied);
  EXPECT_EQ(ring_->authenticate("", 40).error().code, Code::denied);
  EXPECT_EQ(ring_->authenticate("e2b_" + std::string(40, '0'), 40).error().code, Code::denied);
  EXPECT_EQ(ring_->issue("nobody", "x", Scope::use, 10).error().code, Code::not_found);
  EXPECT_EQ(ring_->revoke("knope", 10).error().code, Code::not_found);
}

TEST_F(KeyRingTest, RemembersWithoutTheStoreAndForgetsOnReload) {
  auto made = ring_->issue("default", "laptop", Scope::use, 10);
  ASSERT_TRUE(made);
  ASSERT_TRUE(ring_->authenticate(made->secret, 1));
  ASSERT_TRUE(store_->revoke_key(made->record.id, 5));  // behind the ring's back
  EXPECT_TRUE(ring_->authenticate(made->secret, 1));    // from memory
  ring_->reload();
  EXPECT_EQ(ring_->authenticate(made->secret, 1).error().code, Code::denied);
}

TEST_F(KeyRingTest, UsesAreSavedTogether) {
  auto made = ring_->issue("default", "laptop", Scope::use, 10);
  ASSERT_TRUE(made);
  ASSERT_TRUE(ring_->authenticate(made->secret, 50));
  ASSERT_TRUE(ring_->authenticate(made->secret, 60));
  EXPECT_EQ(store_->find_key_by_hash(made->record.hash)->last_used, 0);
  ASSERT_TRUE(ring_->save_uses());
  EXPECT_EQ(store_->find_key_by_hash(made->record.hash)->last_used, 60);
  ASSERT_TRUE(ring_->save_uses());
}

TEST_F(KeyRingTest, NobodyGetsInAfterARevocationHasReturned) {
  for (int round = 0; round < 30; ++round) {
    auto made = ring_->issue("default", "n", Scope::use, 1);
    ASSERT_TRUE(made);
    std::atomic<bool> revoked = false, wrong = false;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (bool after = false; !after;) {
          after = revoked;  // read before: what begins now must be refused
          bool in = ring_->authenticate(made->secret, 2).has_value();
          if (after && in) wrong = true;
        }
      });
    if (round % 2) ring_->reload();
    ASSERT_TRUE(ring_->revoke(made->record.id, 3));
    revoked = true;
    for (auto& thread : threads) thread.join();
    EXPECT_FALSE(wrong);
    EXPECT_FALSE(ring_->authenticate(made->secret, 4));
  }
}

TEST_F(KeyRingTest, TheFirstUseOfEachHourIsTold) {
  KeyRing ring(*store_);
  std::vector<std::pair<std::string, uint64_t>> heard;
  ring.on_hour([&](const KeyRecord& key, uint64_t before) { heard.emplace_back(key.id, before); });
  auto made = ring.issue("default", "a", Scope::use, 1);
  ASSERT_TRUE(made);
  constexpr Millis kHour = 3600 * 1000;
  for (Millis now : {kHour, kHour + 1, kHour + 2, 2 * kHour, 2 * kHour + 5, 5 * kHour})
    ASSERT_TRUE(ring.authenticate(made->secret, now));
  EXPECT_FALSE(ring.authenticate("e2b_" + std::string(40, '0'), 9 * kHour));
  using Pairs = std::vector<std::pair<std::string, uint64_t>>;
  const std::string& id = made->record.id;
  EXPECT_EQ(heard, (Pairs{{id, 0}, {id, 3}, {id, 2}}));
}

}  // namespace
}  // namespace isola::store
