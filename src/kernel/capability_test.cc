#include "kernel/capability.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "kernel/process.h"

namespace isola::kernel {
namespace {

// Runs `body` in a child, since nothing here can be taken back; 0 means that all went as it should.
int in_child(const std::function<int()>& body) {
  auto child = spawn(0, body);
  EXPECT_TRUE(child);
  int status = 0;
  ::waitpid(child->pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

bool status_says(const std::string& line) {
  auto status = read_file("/proc/self/status");
  return status && status->find(line) != std::string::npos;
}

TEST(Capability, BoundingSetIsExactlyWhatIsKept) {
  EXPECT_EQ(in_child([] {
              if (!limit_bounding_set(capability(CAP_CHOWN) | capability(CAP_SETUID))) return 1;
              return status_says("CapBnd:\t0000000000000081") ? 0 : 2;
            }),
            0);
}

TEST(Capability, SetsAreExactlyThese) {
  EXPECT_EQ(in_child([] {
              uint64_t some = capability(CAP_CHOWN) | capability(CAP_KILL);
              if (!set_capabilities(some, capability(CAP_KILL), 0)) return 1;
              if (!status_says("CapPrm:\t0000000000000021")) return 2;
              if (!status_says("CapEff:\t0000000000000020")) return 3;
              if (!status_says("CapInh:\t0000000000000000")) return 4;
              // Gone is gone.
              return set_capabilities(~0ull >> 23, 0, 0) ? 5 : 0;
            }),
            0);
}

TEST(Capability, HighOnesToo) {
  EXPECT_EQ(in_child([] {
              if (!set_capabilities(capability(CAP_BPF), 0, 0)) return 1;
              return status_says("CapPrm:\t0000008000000000") ? 0 : 2;
            }),
            0);
}

TEST(Capability, WithoutOneForAWhile) {
  EXPECT_EQ(in_child([] {
              uint64_t some = capability(CAP_KILL) | capability(CAP_BPF);
              if (!set_capabilities(some, some, 0)) return 1;
              {
                auto without = Without::begin(CAP_KILL);
                if (!without) return 2;
                if (!status_says("CapEff:\t0000008000000000")) return 3;
                auto never_there = Without::begin(CAP_CHOWN);
                if (!never_there) return 4;
              }
              return status_says("CapEff:\t0000008000000020") ? 0 : 5;
            }),
            0);
}

TEST(Capability, KeptAcrossAChangeOfUser) {
  EXPECT_EQ(in_child([] {
              if (::setresuid(-1, 1000, -1) < 0) return 1;
              if (!status_says("CapEff:\t0000000000000000")) return 2;  // what the kernel does by itself
              if (::setresuid(-1, 0, -1) < 0) return 3;
              if (!keep_capabilities_across_setuid()) return 4;
              if (::setresuid(-1, 1000, -1) < 0) return 5;
              return status_says("CapEff:\t0000000000000000") ? 6 : 0;
            }),
            0);
}

}  // namespace
}  // namespace isola::kernel
