#include "launcher/id_ranges.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "image/file_lock.h"

namespace isola::launcher {
namespace {

class IdRangesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-ids-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  IdRanges open(const std::string& owner) {
    auto ranges = IdRanges::open(owner, folder_);
    EXPECT_TRUE(ranges);
    return std::move(*ranges);
  }
  std::string folder_;
};

TEST_F(IdRangesTest, TwoLaunchersNeverShareARange) {
  auto a = open("/a"), b = open("/b");  // the same process id: both begin at the same place
  std::set<uint32_t> taken;
  for (int i = 0; i < 200; ++i) {
    auto one = i % 2 ? a.take() : b.take();
    ASSERT_TRUE(one);
    EXPECT_TRUE(taken.insert(*one).second) << *one;
    EXPECT_GE(*one, IdRanges::kFirst);
    EXPECT_EQ(*one % 65536, 0u);
    EXPECT_LE(uint64_t{*one} + 65536, uint64_t{1} << 32);
  }
  auto mine = a.mine();
  ASSERT_TRUE(mine);
  EXPECT_EQ(mine->size(), 100u);
  for (const auto& one : *mine) EXPECT_TRUE(taken.contains(one.base));
}

TEST_F(IdRangesTest, GivenBackAndTakenAgain) {
  auto ranges = open("/a");
  auto first = ranges.take();
  ASSERT_TRUE(first);
  ranges.give_back(*first);
  EXPECT_TRUE(ranges.mine()->empty());
  auto second = ranges.take();
  ASSERT_TRUE(second);
  EXPECT_NE(*second, *first) << "a range rests before it is used again";
  ranges.give_back(*first);  // of nobody: fine
}

TEST_F(IdRangesTest, AllTaken) {
  auto ranges = open("/a");
  for (uint32_t i = 0; i < IdRanges::kCount; ++i) ASSERT_TRUE(ranges.take()) << i;
  auto none = ranges.take();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::exhausted);
  ranges.give_back(IdRanges::kFirst + 77 * 65536);
  auto last = ranges.take();
  ASSERT_TRUE(last);
  EXPECT_EQ(*last, IdRanges::kFirst + 77 * 65536);
}

TEST_F(IdRangesTest, KeepMarksAsTaken) {
  auto a = open("/a"), b = open("/b");
  auto next = b.take();
  ASSERT_TRUE(next);
  ASSERT_TRUE(a.keep(*next + 65536));
  ASSERT_TRUE(a.keep(*next + 65536));
  EXPECT_EQ(*b.take(), *next + 2 * 65536);
  EXPECT_EQ(*a.mine(), (std::vector<IdRanges::Taken>{{*next + 65536, ""}}));
}

TEST_F(IdRangesTest, AnothersRangeIsNeitherKeptNorGivenBack) {
  auto a = open("/a"), b = open("/b");
  auto one = b.take("i1");
  ASSERT_TRUE(one);
  auto kept = a.keep(*one, "i2");
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().code, Code::exists);
  EXPECT_NE(kept.error().message.find("/b"), std::string::npos) << kept.error().message;
  a.give_back(*one);
  EXPECT_EQ(*b.mine(), (std::vector<IdRanges::Taken>{{*one, "i1"}}));
  b.give_back(*one);
  EXPECT_TRUE(b.mine()->empty());
  EXPECT_TRUE(a.keep(*one, "i2"));
}

TEST_F(IdRangesTest, ARangeSaysForWhichSandboxItWasTaken) {
  auto a = open("/a"), b = open("/a/b");
  auto one = a.take("i1"), other = b.take("i2");
  ASSERT_TRUE(one && other);
  EXPECT_EQ(*a.mine(), (std::vector<IdRanges::Taken>{{*one, "i1"}}));
  EXPECT_EQ(*b.mine(), (std::vector<IdRanges::Taken>{{*other, "i2"}}));
  a.give_back(*one);
  ASSERT_TRUE(a.keep(*one, "i3"));
  ASSERT_TRUE(a.keep(*one, "i4")) << "it is there already";
  EXPECT_EQ(*a.mine(), (std::vector<IdRanges::Taken>{{*one, "i3"}}));
}

TEST_F(IdRangesTest, WhatBelongedToALostFolderIsFreedUnlessItLives) {
  auto lost = open("/no/such/folder"), there = open("/"), mine = open("/also/not/there");
  auto dead = lost.take("idead"), alive = lost.take("ialive"), kept = there.take("ikept"), own = mine.take("iown");
  ASSERT_TRUE(dead && alive && kept && own);
  ASSERT_TRUE(mine.sweep([](const std::string& id) { return id == "ialive"; }));
  EXPECT_EQ(*lost.mine(), (std::vector<IdRanges::Taken>{{*alive, "ialive"}}));
  EXPECT_EQ(there.mine()->size(), 1u);
  EXPECT_EQ(mine.mine()->size(), 1u) << "our own is known better from the journal";
}

TEST_F(IdRangesTest, OneLauncherSweepsAtATime) {
  auto lost = open("/no/such/folder"), mine = open("/a");
  ASSERT_TRUE(lost.take("idead"));
  auto nobody = [](const std::string&) { return false; };
  {
    auto other = image::FileLock::try_take(folder_ + "/.sweep");
    ASSERT_TRUE(other);
    EXPECT_TRUE(mine.sweep(nobody)) << "that somebody else is at it is no failure";
    EXPECT_EQ(lost.mine()->size(), 1u);
  }
  EXPECT_TRUE(mine.sweep(nobody));
  EXPECT_TRUE(lost.mine()->empty());
}

TEST_F(IdRangesTest, AFolderByAnotherNameIsTheSame) {
  const std::string place = folder_ + "-data", link = folder_ + "-link";
  std::filesystem::create_directory(place);
  std::filesystem::create_directory_symlink(place, link);
  auto before = open(place);
  auto base = before.take("i1");
  ASSERT_TRUE(base);
  for (const auto& name : {place + "/", link, place + "/./"}) {
    auto now = open(name);
    EXPECT_TRUE(now.keep(*base, "i1")) << name;
    EXPECT_EQ(now.mine()->size(), 1u) << name;
  }
  open(link + "/").give_back(*base);
  EXPECT_TRUE(before.mine()->empty());
  std::filesystem::remove(link);
  std::filesystem::remove(place);
}

TEST_F(IdRangesTest, StrangeFilesAreNobodys) {
  auto a = open("/a");
  for (const char* name : {"x", "12x", "99999999", "-1"}) std::ofstream(folder_ + "/" + name) << "/a";
  std::filesystem::create_directory(folder_ + "/5");
  EXPECT_TRUE(a.mine()->empty());
}

}  // namespace
}  // namespace isola::launcher
