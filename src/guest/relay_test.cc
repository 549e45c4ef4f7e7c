// A link that cannot be opened anew: over standard input and output, and through the relay that makes it one that can.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "guest/test_guest.h"

namespace isola::guest {
namespace {

using Form = TestGuest::Form;
using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kLong{30000};  // only a hang takes that long

// Everything that comes until `text` ends with `end`, or nothing more comes.
std::string read_until(int fd, const std::string& end) {
  std::string text;
  while (!text.ends_with(end)) {
    pollfd ready{fd, POLLIN, 0};
    char c;
    if (::poll(&ready, 1, static_cast<int>(kLong.count())) != 1 || ::read(fd, &c, 1) != 1) return text + " (no more)";
    text += c;
  }
  return text;
}

Result<Hello> next_hello(int fd) {
  FrameParser parser;
  for (;;) {
    pollfd ready{fd, POLLIN, 0};
    char c;
    if (::poll(&ready, 1, static_cast<int>(kLong.count())) != 1 || ::read(fd, &c, 1) != 1)
      return fail(Code::timeout, "no hello");
    std::string_view input(&c, 1);
    Frame frame;
    auto more = parser.next(input, frame);
    if (!more) return std::unexpected(more.error());
    if (*more) return decode<Hello>(frame.payload);
  }
}

TEST(GuestStdio, AMarkBeginsAGeneration) {
  TestGuest guest(0, Form::stdio);
  auto hello = guest->hello();
  ASSERT_OK(hello);
  EXPECT_EQ(hello->generation, 1u);
  auto run = guest->begin_run({.argv = {"/bin/sh", "-c", "exec sleep 1000"}});
  auto started = guest->pump_until([&] { return run->pid() != 0; }, kLong);
  ASSERT_OK(started);
  // In the middle of a frame of whoever spoke before.
  std::string half;
  put_frame(half, 77, Type::open, std::string(500, 'x'));
  half.resize(100);
  const std::string text = half + TestGuest::mark();
  ASSERT_EQ(::write(guest.raw_in(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(read_until(guest.raw_out(), TestGuest::mark()), TestGuest::mark());
  hello = next_hello(guest.raw_out());
  ASSERT_OK(hello);
  EXPECT_EQ(hello->generation, 2u);
  EXPECT_EQ(hello->id, TestGuest::kId);
  // Processes go on, and can be asked for.
  guest->session().reset({Code::unavailable, "begun anew", 0});
}

// A stream that the guest has stopped to believe begins anew like any other.
TEST(GuestStdio, AMarkMendsABrokenStream) {
  TestGuest guest(0, Form::stdio);
  ASSERT_TRUE(guest->hello());
  const std::string text = std::string(64, '\xff') + TestGuest::mark();
  ASSERT_EQ(::write(guest.raw_in(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(read_until(guest.raw_out(), TestGuest::mark()), TestGuest::mark());
  auto hello = next_hello(guest.raw_out());
  ASSERT_OK(hello);
  EXPECT_EQ(hello->generation, 2u);
}

TEST(GuestStdio, TheSignalOfPipesIsNothingToIt) {
  TestGuest guest(0, Form::stdio);
  ASSERT_TRUE(guest->hello());
  ::kill(guest.pid(), SIGRTMIN + kReattachSignal);
  EXPECT_EQ(guest->ping("still").value(), "still");
}

TEST(Relay, IsTheGuestToTheHost) {
  TestGuest guest(0, Form::relay);
  auto hello = guest->hello();
  ASSERT_OK(hello);
  EXPECT_EQ(hello->id, TestGuest::kId);
  auto o = guest.sh("echo out; echo err >&2; exit 7");
  ASSERT_OK(o.exit);
  EXPECT_EQ(o.out, "out\n");
  EXPECT_EQ(o.err, "err\n");
  EXPECT_EQ(o.exit->code, 7);
  std::string large(3 << 20, 'x');
  std::string back;
  auto run = guest->begin_run({.argv = {"/bin/cat"}, .stdin_mode = Stdin::pipe},
                              {.out = [&](std::string_view s) { back += s; }});
  ASSERT_TRUE(guest->write_stdin(run, large));
  guest->close_stdin(run);
  ASSERT_TRUE(guest->finish(run));
  EXPECT_EQ(back, large);
}

TEST(Relay, ANewLinkBeginsCleanAndCutsTheOld) {
  TestGuest guest(0, Form::relay);
  ASSERT_TRUE(guest->hello());
  for (uint32_t i = 2; i < 12; ++i) {
    // Much output that nobody reads to its end, and input that nobody takes.
    size_t got = 0;
    auto noisy = guest->begin_run({.argv = {"/bin/sh", "-c", "exec yes much output"}},
                                  {.out = [&](std::string_view s) { got += s.size(); }});
    auto heard = guest->pump_until([&] { return got > 100000; }, kLong);
    ASSERT_OK(heard);
    std::string half;
    put_frame(half, 4000 + i, Type::open, std::string(60000, 'x'));
    half.resize(50000);
    if (i % 2) (void)!::write(guest.raw_in(), half.data(), 4000);
    guest.reattach();
    if (HasFatalFailure()) return;
    auto hello = guest->hello(kLong);
    ASSERT_OK(hello);
    EXPECT_EQ(hello->generation, i);
    EXPECT_EQ(guest.sh("pkill yes; echo clean").out, "clean\n");
  }
}

// Asked twice before the first was answered: one link, the newest.
TEST(Relay, TwoRequestsInARow) {
  ::signal(SIGPIPE, SIG_IGN);
  TestGuest guest(0, Form::relay);
  ASSERT_TRUE(guest->hello());
  for (int i = 0; i < 20; ++i) {
    ::kill(guest.pid(), SIGRTMIN + kReattachSignal);
    guest.reattach();
    if (HasFatalFailure()) return;
    // The second may have come after we opened the first's pipes: then those hung up, and there are others.
    auto there = [&] {
      auto ping = guest->ping("there");
      return ping && *ping == "there";
    };
    if (guest->hello(kLong) && there()) continue;
    guest.reopen();
    auto hello = guest->hello(kLong);
    ASSERT_OK(hello);
    EXPECT_TRUE(there());
  }
}

TEST(Relay, EndsWithTheEngineAndItsStatus) {
  TestGuest guest(CLONE_NEWUSER, Form::relay);
  ASSERT_TRUE(guest->hello());
  // The "engine" is killed from inside the box.
  auto run = guest->begin_run({.argv = {"/bin/sh", "-c", "kill -9 $PPID"}});
  (void)guest->finish(run);
  int status = 0;
  ASSERT_EQ(::waitpid(guest.pid(), &status, 0), guest.pid());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGKILL);
  guest.forget();
}

TEST(Relay, NobodyInTheBoxPassesForTheHost) {
  TestGuest guest(CLONE_NEWUSER, Form::relay);
  ASSERT_TRUE(guest->hello());
  // A signal from inside makes no new link, and the relay's descriptors are closed to others.
  EXPECT_EQ(guest.sh("kill -35 1; echo done").out, "done\n");
  EXPECT_EQ(
      guest
          .sh("ls /proc/1/fd >/dev/null 2>&1 && echo open; cat /proc/1/mem >/dev/null 2>&1 && echo read; echo done",
              {.user = "nobody"})
          .out,
      "done\n");
  EXPECT_FALSE(guest.hung_up());
  EXPECT_EQ(guest->ping("same").value(), "same");
}

}  // namespace
}  // namespace isola::guest
