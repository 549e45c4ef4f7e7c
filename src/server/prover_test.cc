#include "server/prover.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

namespace isola::server {
namespace {

std::string one(const char* verdict, const char* program = "mount") {
  return std::string(R"({"template":"base","boundary":"jail","birth":"cold","program":")") + program +
         R"(","verdict":")" + verdict + R"(","how":"because"})";
}

TEST(Judge, EverythingHeld) {
  auto verdict = judge("[" + one("held") + "," + one("held", "ptrace") + "]");
  EXPECT_TRUE(verdict.passed);
  EXPECT_EQ(verdict.why, "2 programs held, 0 could not be tried");
}

TEST(Judge, ABreachIsToldBeforeAnythingElse) {
  auto verdict = judge("[" + one("ERROR", "first") + "," + one("held") + "," + one("BREACH", "mount") + "," +
                       one("ERROR", "last") + "]");
  EXPECT_FALSE(verdict.passed);
  EXPECT_EQ(verdict.why, "mount of base (cold, BREACH): because");
  EXPECT_EQ(verdict.counts["ERROR"], 2);
  EXPECT_EQ(verdict.counts["BREACH"], 1);
}

TEST(Judge, WhatDidNotHoldDoesNotPass) {
  for (const char* word : {"ERROR", "BREACH", "something new"})
    EXPECT_FALSE(judge("[" + one("held") + "," + one(word) + "]").passed) << word;
  EXPECT_TRUE(judge("[" + one("held") + "," + one("untried") + "]").passed);
  EXPECT_FALSE(judge("[" + one("untried") + "," + one("untried") + "]").passed) << "nothing was tried";
}

TEST(Judge, AReportThatIsCutOffDoesNotPass) {
  std::string whole = "[" + one("held") + "," + one("held") + "]";
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(judge(whole.substr(0, n)).passed) << n;
  for (const char* odd : {"[]", "{}", "null", "[1]", "[null]", R"(["held"])", R"([{"verdict":"held"}] x)"})
    EXPECT_FALSE(judge(odd).passed) << odd;
  EXPECT_TRUE(judge(whole).passed);
}

TEST(ProofDoor, ASettingThatComesLaterFindsTheLastVerdict) {
  std::string why;
  ProofDoor door(false, [&](std::string said) { why = std::move(said); });
  door.heard({.passed = false, .why = "mount of base", .counts = {}});
  EXPECT_EQ(why, "");
  door.set_closes(true);
  EXPECT_NE(why.find("mount of base"), std::string::npos);
  door.set_closes(false);
  EXPECT_EQ(why, "");
  door.set_closes(true);
  EXPECT_NE(why, "");
  door.heard({.passed = true, .why = "2 programs held", .counts = {}});
  EXPECT_EQ(why, "");
  door.set_closes(true);
  EXPECT_EQ(why, "");
}

Result<Fd> says(const std::string& text) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return sys_error("pipe");
  Fd out(ends[0]), in(ends[1]);
  if (::write(in.get(), text.data(), text.size()) < 0) return sys_error("write");
  return out;
}

TEST(Prover, RunsAtTheStartAndThenWhenItIsDue) {
  using std::chrono::minutes;
  std::vector<bool> heard;
  Prover prover(
      {.at_start = true, .every = minutes(10)}, [] { return says("[" + one("held") + "]"); },
      [&](const Verdict& verdict) { heard.push_back(verdict.passed); });
  auto start = std::chrono::steady_clock::now();
  for (int minute : {0, 1, 9, 10, 11, 19, 20, 29}) {
    prover.tick(start + minutes(minute));
    prover.wait();
  }
  EXPECT_EQ(heard, (std::vector<bool>{true, true, true}));
}

TEST(Prover, NotUnlessAsked) {
  int runs = 0;
  Prover prover({}, [&]() -> Result<Fd> { return ++runs, says("[]"); }, [](const Verdict&) {});
  auto start = std::chrono::steady_clock::now();
  for (int hour = 0; hour < 100; ++hour) prover.tick(start + std::chrono::hours(hour));
  prover.wait();
  EXPECT_EQ(runs, 0);
}

TEST(Prover, ARunThatCannotStartIsAFailure) {
  std::string why;
  bool passed = true;
  Prover prover(
      {.at_start = true}, []() -> Result<Fd> { return fail(Code::unavailable, "the keeper is gone"); },
      [&](const Verdict& verdict) { why = verdict.why, passed = verdict.passed; });
  prover.tick();
  prover.wait();
  EXPECT_FALSE(passed);
  EXPECT_EQ(why, "the keeper is gone");
}

}  // namespace
}  // namespace isola::server
