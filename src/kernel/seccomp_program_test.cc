#include "kernel/seccomp_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "kernel/bpf_evaluator.h"

namespace isola::kernel {
namespace {

const auto kAllow = SeccompAction::allow();

uint32_t verdict(const SeccompProgram& program, int nr, std::initializer_list<uint64_t> args = {},
                 uint32_t arch = kNativeArch) {
  seccomp_data call{.nr = nr, .arch = arch};
  std::copy(args.begin(), args.end(), call.args);
  auto result = evaluate(program.code(), call);
  EXPECT_TRUE(result) << result.error().text();
  return result.value_or(0);
}

SeccompProgram compiled(const SeccompPolicy& policy) {
  auto program = SeccompProgram::compile(policy);
  EXPECT_TRUE(program) << program.error().text();
  return program ? *program : SeccompProgram{};
}

TEST(SeccompProgram, EachKindOfNumberGetsItsAnswer) {
  auto p =
      compiled({.newest = 10,
                .calls = {{.number = 2}, {.number = 3}, {.number = 7, .otherwise = SeccompAction::kill_process()}}});
  EXPECT_EQ(verdict(p, 2), kAllow.value);
  EXPECT_EQ(verdict(p, 3), kAllow.value);
  EXPECT_EQ(verdict(p, 7), SeccompAction::kill_process().value);
  for (int denied : {0, 1, 4, 6, 8, 10}) EXPECT_EQ(verdict(p, denied), SeccompAction::error(EPERM).value) << denied;
  for (int unknown : {11, 1000, 0x40000002, 0x7fffffff, -1})
    EXPECT_EQ(verdict(p, unknown), SeccompAction::error(ENOSYS).value) << unknown;
  EXPECT_EQ(verdict(p, 2, {}, AUDIT_ARCH_I386), SeccompAction::error(ENOSYS).value);
  EXPECT_EQ(verdict(p, 2, {}, 0), SeccompAction::error(ENOSYS).value);
}

TEST(SeccompProgram, FirstRuleThatHoldsDecides) {
  auto p = compiled({.newest = 5,
                     .calls = {{.number = 1,
                                .rules = {{{ArgumentTest::is(0, 4), ArgumentTest::is(2, 9)}, SeccompAction::error(1)},
                                          {{ArgumentTest::is(0, 4)}, SeccompAction::error(2)},
                                          {{ArgumentTest::masked(1, 0xf0, 0x30)}, SeccompAction::error(3)}},
                                .otherwise = kAllow}}});
  EXPECT_EQ(verdict(p, 1, {4, 0, 9}), SeccompAction::error(1).value);
  EXPECT_EQ(verdict(p, 1, {4, 0x30, 8}), SeccompAction::error(2).value);
  EXPECT_EQ(verdict(p, 1, {5, 0x3f, 9}), SeccompAction::error(3).value);
  EXPECT_EQ(verdict(p, 1, {5, 0x4f, 9}), kAllow.value);
}

TEST(SeccompProgram, HighHalvesCountOnlyWhereAsked) {
  constexpr uint64_t kHigh = 1ULL << 32;
  auto p =
      compiled({.newest = 5,
                .calls = {{.number = 1, .rules = {{{ArgumentTest::is(0, 4)}, SeccompAction::error(1)}}},
                          {.number = 2, .rules = {{{ArgumentTest::masked64(0, ~0ULL, 4)}, SeccompAction::error(1)}}},
                          {.number = 3, .rules = {{{ArgumentTest::masked64(0, ~6ULL, 0)}, SeccompAction::error(1)}}}}});
  EXPECT_EQ(verdict(p, 1, {4 | kHigh}), SeccompAction::error(1).value);
  EXPECT_EQ(verdict(p, 2, {4}), SeccompAction::error(1).value);
  EXPECT_EQ(verdict(p, 2, {4 | kHigh}), kAllow.value);
  EXPECT_EQ(verdict(p, 3, {6}), SeccompAction::error(1).value);
  EXPECT_EQ(verdict(p, 3, {7}), kAllow.value);
  EXPECT_EQ(verdict(p, 3, {6 | kHigh}), kAllow.value);
}

// Every second number has an own errno, and every third rules: thousands of instructions, jumps far beyond 255.
TEST(SeccompProgram, LongJumpsReachTheirTargets) {
  SeccompPolicy policy{.newest = 1199};
  for (uint32_t n = 0; n < 1200; ++n) {
    if (n % 3 == 0)
      policy.calls.push_back({.number = n,
                              .rules = {{{ArgumentTest::is(1, n)}, SeccompAction::error(4001)}},
                              .otherwise = SeccompAction::error(static_cast<int>(n) + 1)});
    else if (n % 2 == 0)
      policy.calls.push_back({.number = n, .otherwise = SeccompAction::error(static_cast<int>(n) + 1)});
  }
  auto p = compiled(policy);
  EXPECT_GT(p.code().size(), 2000U);
  for (uint32_t n = 0; n < 1200 && !HasFailure(); ++n) {
    auto expected =
        n % 3 == 0 || n % 2 == 0 ? SeccompAction::error(static_cast<int>(n) + 1) : SeccompAction::error(EPERM);
    EXPECT_EQ(verdict(p, static_cast<int>(n)), n == 0 ? SeccompAction::error(4001).value : expected.value) << n;
    if (n % 3 == 0) {
      EXPECT_EQ(verdict(p, static_cast<int>(n), {0, n}), SeccompAction::error(4001).value) << n;
    }
  }
  EXPECT_EQ(verdict(p, 1200), SeccompAction::error(ENOSYS).value);
}

TEST(SeccompProgram, SmallestPoliciesCompile) {
  auto nothing = compiled({.newest = 0});
  EXPECT_EQ(verdict(nothing, 0), SeccompAction::error(EPERM).value);
  EXPECT_EQ(verdict(nothing, 1), SeccompAction::error(ENOSYS).value);
  auto all_the_same = compiled({.newest = 3, .denied = kAllow, .unknown = kAllow});
  EXPECT_EQ(verdict(all_the_same, 2), kAllow.value);
  auto only_rules = compiled({.newest = 0,
                              .calls = {{.number = 0, .rules = {{{ArgumentTest::is(0, 1)}, SeccompAction::error(5)}}}},
                              .unknown = kAllow});
  EXPECT_EQ(verdict(only_rules, 0, {1}), SeccompAction::error(5).value);
  EXPECT_EQ(verdict(only_rules, 0, {2}), kAllow.value);
}

TEST(SeccompProgram, NonsenseIsRefused) {
  EXPECT_FALSE(SeccompProgram::compile({.newest = 3, .calls = {{.number = 4}}}));
  EXPECT_FALSE(SeccompProgram::compile({.newest = 3, .calls = {{.number = 1}, {.number = 1}}}));
  EXPECT_FALSE(SeccompProgram::compile(
      {.newest = 3, .calls = {{.number = 1, .rules = {{{ArgumentTest::masked(0, 1, 2)}, kAllow}}}}}));
  EXPECT_FALSE(
      SeccompProgram::compile({.newest = 3, .calls = {{.number = 1, .rules = {{{ArgumentTest::is(6, 2)}, kAllow}}}}}));
}

TEST(SeccompProgram, HashNamesTheCode) {
  SeccompPolicy policy{.newest = 10, .calls = {{.number = 2}}};
  auto one = compiled(policy), same = compiled(policy);
  policy.calls.push_back({.number = 3});
  EXPECT_EQ(one.hash(), same.hash());
  EXPECT_EQ(one.hash().size(), 64U);
  EXPECT_NE(one.hash(), compiled(policy).hash());
}

// Everything but uname, so that the child can go on.
SeccompPolicy no_uname() {
  return {.newest = 4000,
          .calls = {{.number = __NR_uname, .otherwise = SeccompAction::error(EXDEV)}},
          .denied = kAllow,
          .unknown = kAllow};
}

// A child with the filter that blocks in read() until its pipe is written to, then exits with what it read.
struct Blocked {
  pid_t pid = -1;
  Fd to, from;
  ~Blocked() {
    if (pid > 0) ::kill(pid, SIGKILL), ::waitpid(pid, nullptr, 0);
  }
};

void start(Blocked& child, const std::vector<const SeccompProgram*>& filters) {
  int in[2], out[2];
  ASSERT_EQ(::pipe2(in, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(out, O_CLOEXEC), 0);
  child.pid = ::fork();
  if (child.pid == 0) {
    char c = ::unshare(CLONE_NEWUSER) == 0 ? 'r' : 'u';
    for (const auto* filter : filters)
      if (!filter->install()) c = 'f';
    if (::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 0) c = 'n';
    if (::write(out[1], &c, 1) != 1) ::_exit(90);
    utsname name;
    bool refused = ::uname(&name) < 0 && errno == EXDEV;
    if (::read(in[0], &c, 1) != 1) ::_exit(91);  // a disturbed read would give EINTR
    ::_exit(refused == !filters.empty() ? c : 92);
  }
  ::close(in[0]), ::close(out[1]);
  child.to = Fd(in[1]), child.from = Fd(out[0]);
  char c = 0;
  ASSERT_EQ(::read(child.from.get(), &c, 1), 1);
  if (c == 'u') GTEST_SKIP() << "no user namespaces here";
  ASSERT_EQ(c, 'r');
}

TEST(SeccompReadBack, InstalledFilterIsTheOneThatWasMeant) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  auto program = compiled(no_uname());
  Blocked child;
  start(child, {&program});
  if (::testing::Test::IsSkipped() || HasFatalFailure()) return;
  for (int i = 0; i < 3; ++i) {
    auto hash = installed_filter_hash(child.pid);
    ASSERT_TRUE(hash) << hash.error().text();
    EXPECT_EQ(*hash, program.hash());
  }
  ASSERT_EQ(::write(child.to.get(), "7", 1), 1);
  int status;
  ASSERT_EQ(::waitpid(child.pid, &status, 0), child.pid);
  child.pid = -1;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == '7') << "the child was disturbed: " << status;
}

TEST(SeccompReadBack, NoFilterAndTwoFiltersAreErrors) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  auto program = compiled(no_uname());
  Blocked none, two;
  start(none, {});
  start(two, {&program, &program});
  if (::testing::Test::IsSkipped() || HasFatalFailure()) return;
  EXPECT_FALSE(installed_filter_hash(none.pid));
  auto more = installed_filter_hash(two.pid);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Code::corrupt) << more.error().text();
  EXPECT_FALSE(installed_filter_hash(::getpid())) << "nobody can look into himself";
}

}  // namespace
}  // namespace isola::kernel
