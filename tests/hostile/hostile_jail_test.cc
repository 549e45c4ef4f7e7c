// The hostile programs inside real jails of every birth, judged by `isola prove` as an operator would run it.
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
    "self-exe", "shebang-self-exe", "lease-shared"  // other births than cold: nothing can be shown to them
};

struct Proved {
  nlohmann::json rows;
  int code = -1;
};

// `isola --json prove …` on a data directory of its own, with this in its environment.
Proved prove(const std::string& words, const std::string& environment = "") {
  char data[] = "/tmp/islh-XXXXXX";
  if (!::mkdtemp(data)) return {};
  std::string isola = std::string(ISOLA_BINARY) + " --data " + data;
  int status = 0, ignored = 0;
  auto text = output_of(environment + " " + isola + " --json prove --template minimal " + words, status);
  output_of(isola + " launcher stop --all", ignored);
  output_of(std::string("rm -rf ") + data, ignored);
  return {nlohmann::json::parse(text, nullptr, false), WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

class HostileJail : public ::testing::TestWithParam<const char*> {};

TEST_P(HostileJail, EveryProgramIsContained) {
  if (std::string(GetParam()) == "resumed" || std::string(GetParam()) == "forked") {
    if (::access("/var/cache/isola/tools/criu", X_OK) < 0 && ::access("/usr/sbin/criu", X_OK) < 0)
      GTEST_SKIP() << "no criu here; `./dev criu` provides one";
  }
  auto [rows, code] = prove(std::string("--birth ") + GetParam());
  ASSERT_TRUE(rows.is_array()) << "isola prove printed no report";
  EXPECT_EQ(code, 0);
  std::map<std::string, std::string> seen;
  for (const auto& row : rows) {
    std::string name = row["program"], verdict = row["verdict"], how = row["how"];
    seen[name] = verdict;
    EXPECT_TRUE(verdict == "held" || (verdict == "untried" && kMayBeUntried.contains(name)))
        << name << ": " << verdict << ": " << how;
  }
  for (const Program* program : all_programs()) EXPECT_TRUE(seen.contains(std::string(program->name))) << program->name;
}

INSTANTIATE_TEST_SUITE_P(Births, HostileJail, ::testing::Values("cold", "pooled", "resumed", "forked"),
                         [](const auto& info) { return info.param; });

// A jail that shows a folder of the host's, as if its root were the host's: every road there has to be called a breach,
// or the canary proves nothing. The second sandbox of a run leaks; the first is the neighbour.
class LeakingJail : public ::testing::TestWithParam<const char*> {};

TEST_P(LeakingJail, IsCalledABreach) {
  std::string words = std::string("--birth cold --program ") + GetParam();
  auto [rows, code] = prove(words, "ISOLA_FAULT=prove_leak:2:1");
  ASSERT_TRUE(rows.is_array() && rows.size() == 1);
  if (rows[0]["verdict"] == "held") {
    auto faults = prove(words, "ISOLA_FAULT=nonsense");
    if (faults.code == 0) GTEST_SKIP() << "this build has no fault injection";
  }
  EXPECT_EQ(rows[0]["verdict"], "BREACH") << rows.dump();
  EXPECT_EQ(code, 1);
}

INSTANTIATE_TEST_SUITE_P(Roads, LeakingJail,
                         ::testing::Values("host-file-plain", "host-file-any-root", "host-file-any-cwd",
                                           "planted-links", "symlink-race", "leak-mounts"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace isola::hostile
