#include "cli/waiting_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "base/fd.h"

namespace isola::cli {
namespace {

struct OutputPipe {
  OutputPipe() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) < 0) std::abort();
    read = Fd(fds[0]), write = Fd(fds[1]);
  }
  std::string take() {
    std::string bytes(1 << 20, '\0');
    ssize_t n = ::read(read.get(), bytes.data(), bytes.size());
    bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return bytes;
  }
  Fd read, write;
};

// Its writing end blocks: one write too much, and this test would not end.
TEST(WaitingOutput, WritesWhatIsTakenAndKeepsTheRest) {
  OutputPipe pipe;
  std::string all;
  for (int i = 0; all.size() < 300'000; ++i) all += std::to_string(i) + " ";
  WaitingOutput output;
  output.add(pipe.write.get(), std::string_view(all).substr(0, 200'001));
  output.add(pipe.write.get(), std::string_view(all).substr(200'001));
  std::string taken;
  while (!output.empty()) {
    auto some = output.write_some();
    ASSERT_TRUE(some);
    EXPECT_TRUE(*some);
    if (!output.empty()) {
      EXPECT_EQ(output.fd(), pipe.write.get());
      auto none = output.write_some();
      ASSERT_TRUE(none);
      EXPECT_FALSE(*none) << "somebody took what nobody read";
    }
    taken += pipe.take();
  }
  EXPECT_EQ(taken, all);
}

TEST(WaitingOutput, SaysThatTheReaderLeft) {
  ::signal(SIGPIPE, SIG_IGN);
  OutputPipe pipe;
  pipe.read.reset();
  WaitingOutput output;
  output.add(pipe.write.get(), "x");
  auto written = output.write_some();
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().sys_errno, EPIPE);
}

}  // namespace
}  // namespace isola::cli
