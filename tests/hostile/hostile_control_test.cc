// Every hostile program must be able to succeed where nothing contains it; those that cannot say why. See control.h.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "control.h"

#ifndef ISOLA_HOSTILE_BINARY
#error "the build names isola-hostile"
#endif

namespace isola::hostile {
namespace {

std::string test_name(const testing::TestParamInfo<const Program*>& info) {
  std::string name(info.param->name);
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

// Every refusal in the line is of the kind that says "no such thing", none of the kind that says "not you".
bool kernel_lacks_it(const std::string& output) {
  for (const char* refusal : {"EPERM", "EACCES", "EROFS", "killed by SIGKILL", "killed by SIGSYS"}) {
    if (output.find(refusal) != std::string::npos) return false;
  }
  return true;
}

class HostileControl : public testing::TestWithParam<const Program*> {};

TEST_P(HostileControl, SucceedsWithoutTheJail) {
  const Program& program = *GetParam();
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  auto run = run_control(program, ISOLA_HOSTILE_BINARY);
  ASSERT_TRUE(run) << run.error().text();
  EXPECT_FALSE(run->timed_out);
  if (run->exit_code == Outcome::contained && (program.flags & kControlMayLack) && kernel_lacks_it(run->output))
    GTEST_SKIP() << "this kernel lacks it: " << run->output;
  if (run->exit_code == Outcome::contained && (program.flags & kControlSysResource) &&
      ::prctl(PR_CAPBSET_READ, CAP_SYS_RESOURCE) == 0)
    GTEST_SKIP() << "the root of this machine has no CAP_SYS_RESOURCE";
  std::string end = run->output.substr(run->output.size() > 2000 ? run->output.size() - 2000 : 0);
  EXPECT_EQ(run->exit_code, Outcome::breach) << program.name << " was stopped though nothing should stop it:\n" << end;
}

std::vector<const Program*> with_control() {
  std::vector<const Program*> programs;
  for (const Program* program : all_programs()) {
    // Evasions have theirs beside the gate: src/gate/evasion_test.cc, and in every `isola prove`.
    if (program->no_control.empty() && !(program->flags & kNeedsOutside)) programs.push_back(program);
  }
  return programs;
}

INSTANTIATE_TEST_SUITE_P(All, HostileControl, testing::ValuesIn(with_control()), test_name);

// The canary works both ways: a program that reads it shows the secret.
TEST(HostileCanary, IsFoundInTheOutputOfAProgramThatReadsIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  auto run = run_control(*find_program("host-file-init-root"), ISOLA_HOSTILE_BINARY);
  ASSERT_TRUE(run) << run.error().text();
  EXPECT_TRUE(run->secret_seen) << run->output;
}

TEST(HostileTable, NamesAreUniqueAndEveryFieldIsFilled) {
  std::set<std::string_view> names;
  for (const Program* program : all_programs()) {
    EXPECT_TRUE(names.insert(program->name).second) << program->name;
    EXPECT_FALSE(program->group.empty() || program->tries.empty() || program->containment.empty()) << program->name;
  }
  EXPECT_GE(names.size(), 45u);
}

// The page is made by `isola-hostile list --markdown`: a program that is not on it was forgotten there.
TEST(HostileTable, EveryProgramIsInTheDocument) {
  std::ifstream file(ISOLA_HOSTILE_DOCUMENT);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  ASSERT_FALSE(text.empty()) << ISOLA_HOSTILE_DOCUMENT;
  for (const Program* program : all_programs()) {
    EXPECT_NE(text.find(fmt::format("| `{}` | {} | {} |", program->name, program->group, program->tries)),
              std::string::npos)
        << program->name;
  }
}

TEST(HostileTable, AtLeastNineteenOfTwentyHaveAControl) {
  size_t without = 0;
  for (const Program* program : all_programs()) {
    if (program->no_control.empty()) continue;
    ++without;
    std::printf("no control: %s: %s\n", std::string(program->name).c_str(), std::string(program->no_control).c_str());
  }
  std::printf("%zu of %zu hostile programs have no control\n", without, all_programs().size());
  EXPECT_LE(without * 20, all_programs().size());
}

}  // namespace
}  // namespace isola::hostile
