// A link that cannot be opened anew: over standard input and output, and through the relay that makes it one that can.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "guest/naming.h"
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

// As after a restore behind another relay: from then on it is another, and listens to another mark.
TEST(GuestStdio, ANamingBeginsAGenerationOfAnother) {
  TestGuest guest(0, Form::stdio);
  ASSERT_TRUE(guest->hello());
  ASSERT_TRUE(guest->quiesce());
  const std::string fresh(kMarkSize, 'm');
  std::string text;
  put_frame(text, 0, kNaming, encode(Naming{.mark = fresh, .id = TestGuest::kFormerId}));
  ASSERT_EQ(::write(guest.raw_in(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(read_until(guest.raw_out(), fresh), fresh);
  auto hello = next_hello(guest.raw_out());
  ASSERT_OK(hello);
  EXPECT_EQ(hello->generation, 2u);
  EXPECT_EQ(hello->id, TestGuest::kFormerId);
  // The old mark is nothing but a broken stream now; the new one mends it.
  text = TestGuest::mark() + fresh;
  ASSERT_EQ(::write(guest.raw_in(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(read_until(guest.raw_out(), fresh), fresh);
  hello = next_hello(guest.raw_out());
  ASSERT_OK(hello);
  EXPECT_EQ(hello->generation, 3u);
  guest->session().reset({Code::unavailable, "begun anew", 0});
}

TEST(GuestStdio, ANamingThatIsNoneIsNotAnswered) {
  TestGuest guest(0, Form::stdio);
  ASSERT_TRUE(guest->hello());
  std::string text;
  put_frame(text, 0, kNaming, encode(Naming{.mark = "short", .id = TestGuest::kFormerId}));
  put_frame(text, 0, kNaming, encode(Naming{.mark = std::string(kMarkSize, 'm'), .id = "../etc"}));
  ASSERT_EQ(::write(guest.raw_in(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(guest->ping("still").value(), "still");
}

// Over pipes nobody is named like that.
// A machine that was restored must not draw the random numbers of its siblings.
TEST(GuestStdio, WithoutFreshRandomnessItDoesNotGoOn) {
  TestGuest guest(0, Form::stdio);
  ASSERT_TRUE(guest->hello());
  ASSERT_TRUE(guest->quiesce());
  std::string text;
  put_frame(
      text, 0, kNaming,
      encode(Naming{.mark = std::string(kMarkSize, 'm'), .id = TestGuest::kFormerId, .time = 1, .randomness = "few"}));
  ASSERT_EQ(::write(guest.raw_in(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(read_until(guest.raw_out(), "?"), " (no more)") << "neither a mark nor a hello";
}

TEST(GuestPipes, ANamingIsNonsense) {
  TestGuest guest;
  ASSERT_TRUE(guest->hello());
  std::string text;
  put_frame(text, 0, kNaming, encode(Naming{.mark = std::string(kMarkSize, 'm'), .id = TestGuest::kFormerId}));
  ASSERT_EQ(::write(guest.raw_in(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  guest.reattach();
  if (HasFatalFailure()) return;
  auto hello = guest->hello(kLong);
  ASSERT_OK(hello);
  EXPECT_EQ(hello->id, TestGuest::kId);
}

TEST(Relay, GivesANameToAGuestWithoutOne) {
  TestGuest guest(0, Form::named);
  auto hello = guest->hello(kLong);
  ASSERT_OK(hello);
  EXPECT_EQ(hello->id, TestGuest::kId);
  EXPECT_EQ(hello->generation, 1u);
  EXPECT_EQ(guest.sh("echo named").out, "named\n");
  guest.reattach();
  if (HasFatalFailure()) return;
  ASSERT_TRUE(guest->hello(kLong));
  EXPECT_EQ(guest.sh("echo again").out, "again\n");
}

TEST(Relay, GivesANewNameToAGuestThatWasRestored) {
  TestGuest guest(0, Form::renamed);
  auto hello = guest->hello(kLong);
  ASSERT_OK(hello);
  EXPECT_EQ(hello->id, TestGuest::kId) << "what it said under its former name is not passed on";
  EXPECT_EQ(hello->generation, 2u);
  EXPECT_EQ(guest.sh("echo renamed").out, "renamed\n");
  guest.reattach();
  if (HasFatalFailure()) return;
  hello = guest->hello(kLong);
  ASSERT_OK(hello);
  EXPECT_EQ(hello->generation, 3u);
}

class Relays : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Each, Relays, ::testing::Values(Form::relay, Form::packets),
                         [](const auto& param) { return param.param == Form::relay ? "streams" : "packets"; });

TEST_P(Relays, IsTheGuestToTheHost) {
  TestGuest guest(0, GetParam());
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

TEST_P(Relays, ANewLinkBeginsCleanAndCutsTheOld) {
  TestGuest guest(0, GetParam());
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
TEST_P(Relays, TwoRequestsInARow) {
  ::signal(SIGPIPE, SIG_IGN);
  TestGuest guest(0, GetParam());
  ASSERT_TRUE(guest->hello());
  for (int i = 0; i < 20; ++i) {
    ::kill(guest.pid(), SIGRTMIN + kReattachSignal);
    guest.reattach();
    if (HasFatalFailure()) return;
    // The second may have come while we opened the first's pipes: then we may have one of each, which no launcher has
    // (it asks once at a time), and what we said on it is answered to whoever opens them next.
    auto there = [&] {
      auto ping = guest->ping("there");
      return ping && *ping == "there";
    };
    bool good = guest->hello(kLong) && there();
    for (int more = 0; more < 10 && !good; ++more) {
      guest.reopen();  // so that the end of these is waited for
      guest.reattach();
      if (HasFatalFailure()) return;
      good = guest->hello(kLong) && there();
    }
    EXPECT_TRUE(good);
  }
}

TEST_P(Relays, EndsWithTheEngineAndItsStatus) {
  TestGuest guest(CLONE_NEWUSER, GetParam());
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

TEST_P(Relays, NobodyInTheBoxPassesForTheHost) {
  TestGuest guest(CLONE_NEWUSER, GetParam());
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
