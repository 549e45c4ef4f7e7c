// The hostile programs inside real jails, cold and pooled, judged by `isola prove` as an operator would run it.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "program.h"

namespace isola::hostile {
namespace {

std::string output_of(const std::string& command, int& status) {
  std::string out;
  FILE* pipe = ::popen(command.c_str(), "r");
  char buffer[8192];
  for (size_t n; (n = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  status = ::pclose(pipe);
  return out;
}

// What cannot be tried, and why: nothing else may say so.
const std::set<std::string> kMayBeUntried = {
    "gate-port",                                    // nobody listens there before there is a gate
    "self-exe", "shebang-self-exe", "lease-shared"  // pooled births: nothing can be shown read-only to them
};

class HostileJail : public ::testing::TestWithParam<const char*> {};

TEST_P(HostileJail, EveryProgramIsContained) {
  char data[] = "/tmp/islh-XXXXXX";
  ASSERT_TRUE(::mkdtemp(data));
  std::string isola = std::string(ISOLA_BINARY) + " --data " + data;
  int status = 0;
  auto rows = nlohmann::json::parse(output_of(isola + " --json prove --template minimal --birth " + GetParam(), status),
                                    nullptr, false);
  output_of(isola + " launcher stop --all", status);
  output_of(std::string("rm -rf ") + data, status);
  ASSERT_TRUE(rows.is_array()) << "isola prove printed no report";
  std::map<std::string, std::string> seen;
  for (const auto& row : rows) {
    std::string name = row["program"], verdict = row["verdict"], how = row["how"];
    seen[name] = verdict;
    EXPECT_TRUE(verdict == "held" || (verdict == "untried" && kMayBeUntried.contains(name)))
        << name << ": " << verdict << ": " << how;
  }
  for (const Program* program : all_programs()) EXPECT_TRUE(seen.contains(std::string(program->name))) << program->name;
}

INSTANTIATE_TEST_SUITE_P(Births, HostileJail, ::testing::Values("cold", "pooled"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace isola::hostile
