#include "launcher/event_spool.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace isola::launcher {
namespace {

class EventSpoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-spool-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    options_.folder = folder_ + "/events";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  EventSpool spool(bool create = true) {
    EventSpool out(options_);
    auto opened = out.open(create);
    EXPECT_TRUE(opened) << opened.error().message;
    return out;
  }
  static gate::Event event(const std::string& name, const std::string& sandbox = "one") {
    return {.sandbox = sandbox, .kind = gate::Event::Kind::injected, .name = name, .secret = "token"};
  }
  static std::vector<std::string> names_in(EventSpool& spool) {
    std::vector<std::string> out;
    while (auto next = spool.next()) out.push_back(next->event.name);
    return out;
  }
  size_t files() {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(options_.folder))
      count += entry.path().filename() != "acknowledged";
    return count;
  }

  using Names = std::vector<std::string>;
  std::string folder_;
  EventSpool::Options options_;
};

TEST_F(EventSpoolTest, WhatWasNotAcknowledgedIsToldToTheNextListener) {
  auto spool = this->spool();
  for (const char* name : {"a", "b", "c"}) spool.append(event(name));
  auto first = spool.next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->event.name, "a");
  EXPECT_EQ(first->event.secret, "token");
  EXPECT_EQ(names_in(spool), (Names{"b", "c"}));
  spool.append(event("d"));
  EXPECT_EQ(names_in(spool), Names{"d"}) << "each once to one listener";
  spool.acknowledge(first->number);
  spool.rewind();
  EXPECT_EQ(names_in(spool), (Names{"b", "c", "d"}));
}

TEST_F(EventSpoolTest, TheNextLauncherFindsItAndGoesOnCounting) {
  uint64_t last = 0;
  {
    auto spool = this->spool();
    for (const char* name : {"a", "b", "c"}) spool.append(event(name));
    auto first = spool.next();
    ASSERT_TRUE(first);
    spool.acknowledge(first->number);
    while (auto next = spool.next()) last = next->number;
  }
  auto spool = this->spool(false);
  EXPECT_TRUE(spool.begun());
  spool.append(event("d"));
  Names names;
  while (auto next = spool.next()) {
    names.push_back(next->event.name);
    if (next->event.name == "d") {
      EXPECT_GT(next->number, last);
    }
  }
  EXPECT_EQ(names, (Names{"b", "c", "d"}));
}

TEST_F(EventSpoolTest, UntilThereIsAServerNothingIsKept) {
  auto spool = this->spool(false);
  EXPECT_FALSE(spool.begun());
  spool.append(event("a"));
  EXPECT_FALSE(spool.next());
  EXPECT_FALSE(std::filesystem::exists(options_.folder));
  ASSERT_TRUE(spool.open(true));
  spool.append(event("b"));
  EXPECT_EQ(names_in(spool), Names{"b"});
}

TEST_F(EventSpoolTest, ARecordThatAKilledOneDidNotFinishIsNone) {
  {
    auto spool = this->spool();
    spool.append(event("a"));
    spool.append(event("b"));
  }
  for (const auto& entry : std::filesystem::directory_iterator(options_.folder))
    if (entry.path().filename() != "acknowledged")
      std::filesystem::resize_file(entry.path(), std::filesystem::file_size(entry.path()) - 3);
  auto spool = this->spool(false);
  spool.append(event("c"));
  EXPECT_EQ(names_in(spool), (Names{"a", "c"}));
}

TEST_F(EventSpoolTest, WhatIsAcknowledgedIsNotKept) {
  options_.segment = 200;
  auto spool = this->spool();
  uint64_t last = 0;
  for (int i = 0; i < 100; ++i) {
    spool.append(event("a" + std::to_string(i)));
    while (auto next = spool.next()) last = next->number;
    spool.acknowledge(last);
    ASSERT_LE(files(), 2u);
  }
  spool.rewind();
  EXPECT_FALSE(spool.next());
}

TEST_F(EventSpoolTest, WhatFindsNoRoomIsCountedAndTheCountIsToldLater) {
  options_.segment = 200, options_.most = 2000, options_.of_one = 1000;
  auto spool = this->spool();
  for (int i = 0; i < 100; ++i) spool.append(event("a" + std::to_string(i), "greedy"));
  spool.append(event("b", "modest"));
  uint32_t told = 0, lost = 0;
  bool word = false, modest = false;
  auto hear = [&] {
    while (auto next = spool.next()) {
      if (next->event.kind == gate::Event::Kind::lost && next->event.sandbox.empty()) word = true;
      if (next->event.kind == gate::Event::Kind::lost && next->event.sandbox == "greedy") lost += next->event.count;
      if (next->event.kind == gate::Event::Kind::injected) ++(next->event.sandbox == "greedy" ? told : lost);
      if (next->event.sandbox == "modest") modest = true, --lost;
      spool.acknowledge(next->number);
    }
  };
  hear();
  hear();
  EXPECT_TRUE(word) << "a launcher that dies now leaves at least that";
  EXPECT_TRUE(modest) << "one sandbox does not take all of the room";
  EXPECT_GT(told, 3u);
  EXPECT_LT(told, 30u);
  EXPECT_EQ(told + lost, 100u);
}

TEST_F(EventSpoolTest, NumbersThatAServerHasAlreadyAreNotGivenOutAgain) {
  auto spool = this->spool();
  const uint64_t ahead = spool.next_number() + 1000;
  spool.skip_to(ahead);
  auto next = spool.next();
  ASSERT_TRUE(next);
  EXPECT_GT(next->number, ahead);
  EXPECT_EQ(next->event.kind, gate::Event::Kind::restarted) << "something may be missing";
}

}  // namespace
}  // namespace isola::launcher
