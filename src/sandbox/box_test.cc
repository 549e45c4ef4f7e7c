#include "sandbox/box.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <latch>
#include <thread>

namespace isola::sandbox {

namespace {

class BoxText : public ::testing::Test {
 protected:
  std::string look(size_t slot = 0) {
    return *box_->text(slot, [this](const store::SandboxRecord& record) {
      ++made_;
      return record.end_detail + "/" + std::to_string(record.last_active);
    });
  }
  static store::SandboxRecord named() {
    store::SandboxRecord record;
    record.id = "i0123456789abcdefghij";
    record.last_active = 7;
    return record;
  }
  boost::asio::io_context io_;
  BoxPtr box_ = std::make_shared<Box>(io_, named());
  int made_ = 0;
};

TEST_F(BoxText, IsMadeOnce) {
  EXPECT_EQ(look(), "/7");
  EXPECT_EQ(look(), "/7");
  EXPECT_EQ(made_, 1);
}

TEST_F(BoxText, IsMadeAnewWhenTheRecordChanges) {
  look();
  box_->change([](store::SandboxRecord& record) { record.end_detail = "why"; });
  EXPECT_EQ(look(), "why/7");
}

TEST_F(BoxText, IsMadeAnewAfterActivity) {
  look();
  {
    auto use = box_->use();
  }
  EXPECT_EQ(look(), "/" + std::to_string(box_->last_active()));
  EXPECT_NE(look(), "/7");
}

TEST_F(BoxText, SlotsAreApart) {
  look(0);
  EXPECT_EQ(*box_->text(1, [](const store::SandboxRecord&) { return std::string("other"); }), "other");
  EXPECT_EQ(look(0), "/7");
  EXPECT_EQ(made_, 1);
}

TEST_F(BoxText, WhatIsToldLaterIsToldInItsOrder) {
  std::string told;
  box_->tell_later([&] { told += "birth "; });
  box_->tell_later([&] { told += "end "; });
  EXPECT_EQ(told, "");
  box_->tell_birth();
  box_->tell_later([&] { told += "another"; });
  box_->tell_birth();
  box_->tell_birth();
  EXPECT_EQ(told, "birth end another");
}

TEST_F(BoxText, ABirthIsToldOnceAndBeforeAnythingElse) {
  std::latch telling(1), go(1);
  std::atomic<int> told = 0;
  box_->tell_birth();  // there is none yet
  box_->tell_later([&] {
    telling.count_down();
    go.wait();
    ++told;
  });
  std::jthread first([&] { box_->tell_birth(); });
  telling.wait();
  int seen = -1;
  std::jthread second([&] {
    box_->tell_birth();
    seen = told;
  });
  go.count_down();
  first.join();
  second.join();
  EXPECT_EQ(seen, 1);
  box_->tell_birth();
  EXPECT_EQ(told, 1);
}

}  // namespace

}  // namespace isola::sandbox
