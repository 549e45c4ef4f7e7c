#include "cli/prove_judge.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace isola::cli {
namespace {

using Verdict = Proof::Verdict;

ProveRunner::Outcome exited(int code, const std::string& output = "") {
  ProveRunner::Outcome outcome;
  outcome.output = output;
  outcome.exit = guest::Exit{.code = code};
  return outcome;
}
ProveRunner::Outcome killed() {
  ProveRunner::Outcome outcome;
  outcome.exit = guest::Exit{.code = -1, .signal = SIGKILL, .oom_hint = true};
  return outcome;
}
ProveRunner::Outcome sandbox_ended(const std::string& reason) {
  ProveRunner::Outcome outcome;
  outcome.exit = fail(Code::unavailable, "the guest has closed the link");
  outcome.end = reason;
  return outcome;
}
Verdict verdict(const std::string& expect, const ProveRunner::Outcome& outcome) {
  HostileProgram program{.name = "x", .group = "", .tries = "", .expect = expect};
  return judge(program, outcome, "the-secret").verdict;
}
constexpr const char* kAll[] = {"contained", "killed-by-limit", "times-out", "floods", "judged-outside"};

TEST(Judge, ExitCodes) {
  EXPECT_EQ(verdict("contained", exited(10)), Verdict::held);
  EXPECT_EQ(verdict("contained", exited(0)), Verdict::breach);
  EXPECT_EQ(verdict("contained", exited(77)), Verdict::untried);
  EXPECT_EQ(verdict("contained", exited(137)), Verdict::error);
  EXPECT_EQ(verdict("judged-outside", exited(0)), Verdict::breach);
  EXPECT_EQ(verdict("floods", exited(0)), Verdict::held);
}

TEST(Judge, ASecretIsABreachHoweverItEnds) {
  for (const char* expect : kAll) {
    EXPECT_EQ(verdict(expect, exited(10, "…the-secret…")), Verdict::breach) << expect;
    auto outcome = killed();
    outcome.output = "the-secret";
    EXPECT_EQ(verdict(expect, outcome), Verdict::breach) << expect;
  }
}

// Somebody killed it before it could say what it found: that proves nothing, unless a limit is what it is about.
TEST(Judge, AKillIsContainmentOnlyWhereALimitIsExpected) {
  EXPECT_EQ(verdict("killed-by-limit", killed()), Verdict::held);
  for (const char* expect : {"contained", "times-out", "floods", "judged-outside"})
    EXPECT_EQ(verdict(expect, killed()), Verdict::error) << expect;
}

TEST(Judge, TheEndOfTheSandboxCountsOnlyWithALimitAsItsReason) {
  for (const char* reason : {"oom", "limit"})
    EXPECT_EQ(verdict("killed-by-limit", sandbox_ended(reason)), Verdict::held) << reason;
  for (const char* reason : {"", "killed", "exited", "boundary-failure"})
    EXPECT_EQ(verdict("killed-by-limit", sandbox_ended(reason)), Verdict::error) << reason;
  for (const char* expect : {"contained", "times-out", "floods", "judged-outside"})
    EXPECT_EQ(verdict(expect, sandbox_ended("oom")), Verdict::error) << expect;
}

// What a kernel of the sandbox's own allows is no breach there, and one anywhere else; an engine ends with its limits.
TEST(Judge, WhatAnOwnKernelAllows) {
  HostileProgram program{.name = "x", .group = "", .tries = "", .expect = "contained"};
  program.allowed_inside = {"gvisor"};
  auto in = [&](BoundaryKind kind, const ProveRunner::Outcome& outcome) {
    return judge(program, outcome, "the-secret", kind).verdict;
  };
  EXPECT_EQ(in(BoundaryKind::gvisor, exited(0)), Verdict::held);
  EXPECT_EQ(in(BoundaryKind::jail, exited(0)), Verdict::breach);
  EXPECT_EQ(in(BoundaryKind::uml, exited(0)), Verdict::breach);
  EXPECT_EQ(in(BoundaryKind::gvisor, exited(0, "the-secret")), Verdict::breach);
  EXPECT_EQ(in(BoundaryKind::gvisor, sandbox_ended("boundary-failure")), Verdict::held);
  EXPECT_EQ(in(BoundaryKind::gvisor, sandbox_ended("")), Verdict::error) << "it lives, and does not answer";
  ProveRunner::Outcome spoilt = sandbox_ended("");
  spoilt.exit = fail(Code::corrupt, "malformed frame on the link");
  EXPECT_EQ(in(BoundaryKind::gvisor, spoilt), Verdict::held);
  EXPECT_EQ(in(BoundaryKind::jail, spoilt), Verdict::error);
  spoilt.exit = fail(Code::timeout, "no answer");
  EXPECT_EQ(in(BoundaryKind::gvisor, spoilt), Verdict::held);
  EXPECT_EQ(in(BoundaryKind::jail, spoilt), Verdict::error);
  EXPECT_EQ(in(BoundaryKind::jail, sandbox_ended("boundary-failure")), Verdict::error);
  program.allowed_inside.clear();
  EXPECT_EQ(in(BoundaryKind::gvisor, exited(0)), Verdict::breach);
  EXPECT_EQ(in(BoundaryKind::gvisor, sandbox_ended("boundary-failure")), Verdict::error);
  program.expect = "killed-by-limit";
  EXPECT_EQ(in(BoundaryKind::gvisor, sandbox_ended("boundary-failure")), Verdict::held);
  EXPECT_EQ(in(BoundaryKind::jail, sandbox_ended("boundary-failure")), Verdict::error);
}

TEST(Judge, Timeouts) {
  ProveRunner::Outcome late;
  late.exit = guest::Exit{.code = -1, .signal = SIGTERM, .timed_out = true};
  EXPECT_EQ(verdict("times-out", late), Verdict::held);
  EXPECT_EQ(verdict("times-out", exited(10)), Verdict::error);
  EXPECT_EQ(verdict("killed-by-limit", late), Verdict::held);
  EXPECT_EQ(verdict("floods", late), Verdict::held);
  EXPECT_EQ(verdict("contained", late), Verdict::error);
  EXPECT_EQ(verdict("judged-outside", late), Verdict::error);
}

}  // namespace
}  // namespace isola::cli
