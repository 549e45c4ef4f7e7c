// The kernel's own seccomp selftests (tools/testing/selftests/seccomp of the distribution's kernel source), built here,
// run outside and inside. What passes outside passes inside, too, but for those that begin with something that the jail
// refuses: each of these is named with its reason, and has to fail.
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "e2e/island.h"

namespace isola::e2e {
namespace {

namespace fs = std::filesystem;

const std::map<std::string, const char*> kRefused = {
    {"global.kcmp", "kcmp is refused"},
    {"global.mode_strict_support", "a filter is installed already, which strict mode cannot replace"},
    {"global.mode_strict_cannot_call_prctl", "the same"},
    {"global.mode_filter_without_nnp", "installing one without no_new_privs needs CAP_SYS_ADMIN"},
    {"global.mode_filter_get_seccomp", "wants to start without a filter"},
    {"global.get_metadata", "needs CAP_SYS_ADMIN"},
    {"global.detect_seccomp_filter_flags", "asks for a listener, too"},
    // Through the jail's own filter, a call that a tracer skips (number -1) is an unknown one: ENOSYS.
    {"TRACE_syscall.ptrace.syscall_errno", "the jail's filter answers a skipped call"},
    {"TRACE_syscall.ptrace.syscall_faked", "the same"},
};

// All of these begin with a filter that has a listener.
const char* refused_for(const std::string& name) {
  if (name.starts_with("global.user_notification_")) return "filters have no listeners inside";
  auto why = kRefused.find(name);
  return why == kRefused.end() ? nullptr : why->second;
}

// "ok 7 global.kcmp" or "not ok 7 global.kcmp" → whether each passed; skipped ones are left out.
std::map<std::string, bool> results(const std::string& tap) {
  std::map<std::string, bool> all;
  std::istringstream lines(tap);
  for (std::string line; std::getline(lines, line);) {
    bool failed = line.starts_with("not ok ");
    if ((!failed && !line.starts_with("ok ")) || line.find("# SKIP") != std::string::npos) continue;
    all[line.substr(line.rfind(' ') + 1)] = !failed;
  }
  return all;
}

class SelftestsTest : public SharedIsland {
 protected:
  void SetUp() override {
    SharedIsland::SetUp();
    if (IsSkipped()) return;
    std::string archive;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator("/usr/src", ignored))
      if (std::string name = entry.path().filename(); name.starts_with("linux-source-") && name.ends_with(".tar.xz"))
        archive = std::max(archive, entry.path().string());
    if (archive.empty())
      GTEST_SKIP() << "no kernel source here (package linux-source): its seccomp selftests are not run";
    char name[] = "/tmp/isl-selftests-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
    ::chmod(name, 0755);
    std::string script = "cd " + folder_ + " && tar xf " + archive +
                         " --strip-components=4 --wildcards '*/tools/testing/selftests/seccomp/seccomp_bpf.c'"
                         " '*/tools/testing/selftests/kselftest*.h' '*/tools/testing/selftests/clone3/*.h'"
                         " && cc -O2 -w -static -I. -o seccomp_bpf seccomp/seccomp_bpf.c -lpthread -lcap";
    auto built = run_program({"sh", "-c", script}, {.limit = std::chrono::seconds(180)});
    if (built.code != 0)
      GTEST_SKIP() << "the kernel's seccomp selftests do not build here: " << built.err.substr(0, 300);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
    SharedIsland::TearDown();
  }
  std::string folder_;
};

TEST_F(SelftestsTest, Seccomp) {
  auto outside = results(run_program({folder_ + "/seccomp_bpf"}, {.limit = std::chrono::seconds(200)}).out);
  ASSERT_GT(outside.size(), 50u) << "they do not run here at all";
  auto done = island().run({"--mount-ro", folder_ + "/seccomp_bpf:/usr/bin/id", "--", "/usr/bin/id"},
                           {.limit = std::chrono::seconds(200)});
  auto inside = results(done.out);
  ASSERT_GT(inside.size(), 50u) << done.text();
  int passed = 0, refused = 0;
  for (const auto& [name, good] : inside) {
    if (!outside[name]) continue;  // of this kernel's making
    const char* why = refused_for(name);
    EXPECT_EQ(good, !why) << name << (good ? " passes, although " : " fails") << (good && why ? why : "") << "\n"
                          << done.err;
    passed += good, refused += !good;
  }
  std::printf("%d of the kernel's seccomp selftests pass inside, %d need what is refused\n", passed, refused);
}

}  // namespace
}  // namespace isola::e2e
