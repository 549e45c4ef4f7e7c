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
    "self-exe",      "shebang-self-exe", "lease-shared",  // other births than cold: nothing can be shown to them
    "tcp6-out",      "ping-out",                          // a machine without IPv6, or without raw sockets
    "leak-hostname",                                      // a machine that is called as every sandbox is
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
  const bool from_image = std::string(GetParam()) == "resumed" || std::string(GetParam()) == "forked";
  if (from_image) {
    if (::access("/var/cache/isola/tools/criu", X_OK) < 0 && ::access("/usr/sbin/criu", X_OK) < 0)
      GTEST_SKIP() << "no criu here; `./dev criu` provides one";
  }
  std::string words = std::string("--birth ") + GetParam();
  std::set<std::string> asked;
  size_t all = 0;
  for (const Program* program : all_programs()) {
    // What an image is made of is the same for all of them: a part of them tells most of it.
    if (all++ % 6 != 0 && from_image && !::getenv("ISOLA_TEST_FULL")) continue;
    asked.insert(std::string(program->name));
    if (from_image) words += " --program " + std::string(program->name);
  }
  if (asked.size() < all)
    std::printf("reduced: %zu of %zu hostile programs on %s sandboxes\n", asked.size(), all, GetParam());
  auto [rows, code] = prove(words);
  ASSERT_TRUE(rows.is_array()) << "isola prove printed no report";
  EXPECT_EQ(code, 0);
  std::map<std::string, std::string> seen;
  for (const auto& row : rows) {
    std::string name = row["program"], verdict = row["verdict"], how = row["how"];
    seen[name] = verdict;
    EXPECT_TRUE(verdict == "held" || (verdict == "untried" && kMayBeUntried.contains(name)))
        << name << ": " << verdict << ": " << how;
  }
  for (const auto& name : asked) EXPECT_TRUE(seen.contains(name)) << name;
}

INSTANTIATE_TEST_SUITE_P(Births, HostileJail, ::testing::Values("cold", "pooled", "resumed", "forked"),
                         [](const auto& info) { return info.param; });

// A jail that shows folders of the host's, as if its root were the host's, has the host's name, its control groups and
// its network (src/cli/prove_leak.h): every road there has to be called a breach, or the canaries prove nothing. The
// second sandbox of a run leaks; the first is the neighbour.
struct Road {
  const char* program;
  const char* sees;  // what the program, or the runner, has to name
};
class LeakingJail : public ::testing::TestWithParam<Road> {};

TEST_P(LeakingJail, IsCalledABreach) {
  std::string words = std::string("--birth cold --program ") + GetParam().program;
  auto [rows, code] = prove(words, "ISOLA_FAULT=prove_leak:2:1");
  ASSERT_TRUE(rows.is_array() && rows.size() == 1);
  if (rows[0]["verdict"] == "untried") GTEST_SKIP() << rows[0]["how"];
  if (rows[0]["verdict"] == "held") {
    auto faults = prove(words, "ISOLA_FAULT=nonsense");
    if (faults.code == 0) GTEST_SKIP() << "this build has no fault injection";
  }
  EXPECT_EQ(rows[0]["verdict"], "BREACH") << rows.dump();
  EXPECT_NE(rows[0]["how"].get<std::string>().find(GetParam().sees), std::string::npos) << rows.dump();
  EXPECT_EQ(code, 1);
}

// Not ping-out: the filter of system calls, which cannot be taken away again, gives nobody inside such a socket.
INSTANTIATE_TEST_SUITE_P(Roads, LeakingJail,
                         ::testing::Values(Road{"host-file-plain", ""}, Road{"host-file-any-root", ""},
                                           Road{"host-file-any-cwd", ""}, Road{"planted-links", ""},
                                           Road{"symlink-race", ""}, Road{"leak-mounts", "/storage"},
                                           Road{"leak-hostname", "uname says"}, Road{"leak-cgroup", "/isola/"},
                                           Road{"tcp-out", "answered"}, Road{"tcp6-out", "answered"},
                                           Road{"udp-out", "answered"}, Road{"metadata-out", "answered"}),
                         [](const auto& info) {
                           std::string name = info.param.program;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace isola::hostile
