#include "boundary/jail/cell.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace isola::boundary::jail {
namespace {

// A process in the guest's place, with something as its descriptors 3 and 4; ready when it is.
class StandIn {
 public:
  explicit StandIn(int input, int output) {
    int ready[2];
    EXPECT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::signal(SIGRTMIN + 1, SIG_IGN);  // "make a new link"
      int in = ::fcntl(input, F_DUPFD, 100), out = ::fcntl(output, F_DUPFD, 100),
          word = ::fcntl(ready[1], F_DUPFD, 100);
      ::dup2(in, kGuestInput);
      ::dup2(out, kGuestOutput);
      (void)!::write(word, "x", 1);
      for (;;) ::pause();
    }
    char word = 0;
    EXPECT_EQ(::read(ready[0], &word, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~StandIn() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  JailCell cell() const {
    kernel::ProcessName name{pid_, kernel::start_time(pid_).value_or(0)};
    auto pidfd = kernel::open_pidfd(name);
    EXPECT_TRUE(pidfd.has_value());
    return JailCell(name, std::move(*pidfd), false);
  }

 private:
  pid_t pid_;
};

TEST(JailCell, TakesPipesForALink) {
  auto in = kernel::make_pipe(), out = kernel::make_pipe();
  ASSERT_TRUE(in && out);
  StandIn guest(in->first.get(), out->second.get());
  auto cell = guest.cell();
  auto fd = cell.prepare_link();
  ASSERT_TRUE(fd.has_value()) << fd.error().message;
  auto link = cell.take_link();
  ASSERT_TRUE(link.has_value()) << link.error().message;
  ASSERT_EQ(::write(link->to_guest.get(), "hi", 2), 2);
  char text[3] = {};
  EXPECT_EQ(::read(in->first.get(), text, 2), 2);
  EXPECT_STREQ(text, "hi");
}

// A guest that was taken over: whatever it names there, root of the host does not open it.
TEST(JailCell, OpensNothingButPipes) {
  char name[] = "/tmp/isola-cell-XXXXXX";
  Fd file(::mkstemp(name));
  ASSERT_TRUE(file);
  Fd unopened(::open(name, O_PATH | O_CLOEXEC)), zero(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  for (int fd : {file.get(), unopened.get(), zero.get()}) {
    StandIn guest(fd, fd);
    auto cell = guest.cell();
    auto link = cell.prepare_link();
    ASSERT_FALSE(link.has_value()) << fd;
    EXPECT_EQ(link.error().code, Code::corrupt) << link.error().message;
    auto taken = cell.take_link();
    ASSERT_FALSE(taken.has_value()) << fd;
    EXPECT_EQ(taken.error().code, Code::corrupt) << taken.error().message;
  }
  ::unlink(name);
}

}  // namespace
}  // namespace isola::boundary::jail
