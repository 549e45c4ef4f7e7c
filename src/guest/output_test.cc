// Output under pressure, and the link made anew: replay, slow readers, floods, forged requests.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <iterator>

#include "guest/test_guest.h"

namespace isola::guest {
namespace {

// Run inside the guest by ForgedSignals: uses up the queue of pending signals, then asks pid 1 for a new link. What the
// kernel then delivers has lost its sender.
__attribute__((constructor)) void forger() {
  if (!std::getenv("ISOLA_TEST_FORGE")) return;
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  sigval none{};
  while (::sigqueue(::getpid(), SIGRTMIN + 5, none) == 0) {
  }
  bool full = errno == EAGAIN;
  ::kill(1, SIGRTMIN + kReattachSignal);
  ::_exit(full ? 0 : 1);
}

// What belongs to this guest alone: the pages of the program itself are shared by all guests of a machine.
uint64_t private_bytes(pid_t pid) {
  auto text = "/proc/" + std::to_string(pid) + "/smaps_rollup";
  FILE* f = std::fopen(text.c_str(), "re");
  char line[256];
  uint64_t sum = 0, kb = 0;
  while (f && std::fgets(line, sizeof line, f)) {
    if (std::sscanf(line, "Anonymous: %lu kB", &kb) == 1) sum += kb << 10;
  }
  if (f) std::fclose(f);
  return sum;
}

TEST(GuestOutput, ReplayAfterReattach) {
  TestGuest guest;
  std::string before;
  auto run = guest->begin_run(
      {.argv = {"/bin/sh", "-c", "echo one; echo two >&2; read x; echo three; exit 5"}, .stdin_mode = Stdin::pipe},
      {.out = [&](std::string_view s) { before += s; }, .err = [&](std::string_view s) { before += s; }});
  ASSERT_TRUE(guest->pump_until([&] { return before.size() == 8; }));
  uint32_t pid = run->pid();
  guest.reattach();
  EXPECT_TRUE(run->ended());
  EXPECT_EQ(run->result().error().code, Code::unavailable);
  auto hello = guest->hello();
  ASSERT_OK(hello);
  EXPECT_EQ(hello->generation, 2u);

  std::string out, err, tail;
  auto all = guest->begin_attach(
      pid, 0, {.out = [&](std::string_view s) { out += s; }, .err = [&](std::string_view s) { err += s; }});
  auto rest = guest->begin_attach(
      pid, 4, {.out = [&](std::string_view s) { tail += s; }, .err = [&](std::string_view s) { tail += s; }});
  ASSERT_TRUE(guest->write_stdin(rest, "x\n"));
  ASSERT_TRUE(guest->finish(all));
  auto exit = guest->finish(rest);
  ASSERT_OK(exit);
  EXPECT_EQ(exit->code, 5);
  EXPECT_EQ(out, "one\nthree\n");
  EXPECT_EQ(err, "two\n");
  EXPECT_EQ(tail, "two\nthree\n");
  guest.reattach();  // and once more, with nobody attached
  EXPECT_EQ(guest->hello()->generation, 3u);
  EXPECT_EQ(guest->wait(pid)->code, 5);
}

TEST(GuestOutput, HalfAFrameDoesNotSurviveAReattach) {
  TestGuest guest;
  ASSERT_TRUE(guest->hello());
  std::string half;
  put_frame(half, 9, Type::open, std::string(100, '\1'));
  Fd raw(::open(("/proc/" + std::to_string(guest.pid()) + "/fd/3").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::write(raw.get(), half.data(), 50), 50);
  guest.reattach();
  EXPECT_EQ(guest.sh("echo fine").out, "fine\n");
}

TEST(GuestOutput, ALinkThatHoldsUntakenOutputCanBeRenewed) {
  TestGuest guest;
  ASSERT_TRUE(guest->hello());
  // Nobody reads the pipe: it fills. The process goes on, and the new link has the rest.
  auto run = guest->begin_run({.argv = {"/bin/sh", "-c", "head -c 3000000 /dev/zero; echo x >&2"}});
  guest->session();
  {
    Fd raw(::open(("/proc/" + std::to_string(guest.pid()) + "/fd/3").c_str(), O_WRONLY | O_CLOEXEC));
    auto bytes = guest->session().out();
    ASSERT_EQ(::write(raw.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  guest.reattach();
  auto list = guest->processes();
  ASSERT_OK(list);
  if (list->list.empty()) GTEST_SKIP() << "the request was overtaken by the signal";
  uint64_t got = 0;
  auto exit =
      guest->finish(guest->begin_attach(list->list[0].pid, 0, {.out = [&](std::string_view s) { got += s.size(); }}));
  ASSERT_OK(exit);
  EXPECT_EQ(got, 3000000u);
}

// All of them are over before anybody has read a word: what is being read is not yet the past.
TEST(GuestOutput, ManyThatEndAtOnceLoseNothing) {
  TestGuest guest;
  ASSERT_TRUE(guest->hello());
  constexpr size_t kMany = 60, kEach = 50'000;
  std::vector<uint64_t> got(kMany), lost(kMany);
  std::vector<decltype(guest->begin_run({}))> runs;
  for (size_t i = 0; i < kMany; ++i)
    runs.push_back(guest->begin_run({.argv = {"/bin/sh", "-c", "head -c 50000 /dev/zero"}},
                                    {.out = [&got, i](std::string_view s) { got[i] += s.size(); },
                                     .gap = [&lost, i](uint64_t, uint64_t n) { lost[i] += n; }}));
  for (size_t i = kMany; i-- > 0;) {  // the oldest last
    auto exit = guest->finish(runs[i]);
    ASSERT_OK(exit);
    EXPECT_EQ(lost[i], 0u) << i;
    EXPECT_EQ(got[i], kEach) << i;
  }
}

TEST(GuestOutput, FloodWithASlowReaderBesideAFastOne) {
  TestGuest guest;
  constexpr uint64_t kFlood = uint64_t{1} << 30;
  uint64_t fast = 0, lost = 0, next = 0;
  bool ordered = true;
  auto run =
      guest->begin_run({.argv = {"/bin/sh", "-c", "read x; head -c 1073741824 /dev/zero"}, .stdin_mode = Stdin::pipe},
                       {.out = [&](std::string_view s) { fast += s.size(); },
                        .gap = [&](uint64_t, uint64_t n) { lost += n; },
                        .seen = [&](uint64_t seq) { ordered &= seq > next, next = seq; }});
  ASSERT_TRUE(guest->pump_until([&] { return run->pid() != 0; }));
  // The slow one takes a window full and then nothing until the end.
  uint64_t slow = 0, slow_lost = 0, slow_frames = 0;
  bool slow_ended = false;
  uint32_t channel = guest->session().open(Op::attach, encode(Attach{run->pid(), 0}),
                                           {.data =
                                                [&](std::string_view piece) {
                                                  Reader in(piece);
                                                  auto stream = static_cast<Stream>(in.u8());
                                                  in.u64();
                                                  if (stream == Stream::gap)
                                                    slow_lost += in.u64();
                                                  else
                                                    slow += in.rest().size();
                                                  slow_frames += piece.size();
                                                },
                                            .end = [&](Result<std::string_view>) { slow_ended = true; }},
                                           kMaxPayload, true);
  ASSERT_TRUE(guest->write_stdin(run, "\n"));
  auto exit = guest->finish(run);
  ASSERT_OK(exit);
  EXPECT_EQ(exit->code, 0);
  EXPECT_EQ(fast + lost, kFlood);
  EXPECT_EQ(exit->seq, kFlood);
  EXPECT_TRUE(ordered);
  EXPECT_LE(slow, kMaxPayload);
  EXPECT_FALSE(slow_ended);
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(private_bytes(guest.pid()), uint64_t{4} << 20);
#endif
  // Now it reads on: a gap that says what is missing, then the newest 16 MiB, then the end.
  guest->session().grant(channel, 1 << 29);
  ASSERT_TRUE(guest->pump_until([&] { return slow_ended; }));
  EXPECT_EQ(slow + slow_lost, kFlood);
  EXPECT_GT(slow, uint64_t{15} << 20);
  EXPECT_LT(slow, uint64_t{18} << 20);
}

// A reader that asked for it holds the process up, and loses nothing; when it leaves, the process goes on.
TEST(GuestOutput, AHeldProcessWaitsForItsReader) {
  TestGuest guest;
  constexpr uint64_t kFlood = uint64_t{64} << 20;
  uint32_t pid = 0;
  uint64_t got = 0, lost = 0;
  bool ordered = true, ended = false;
  Start start{.argv = {"/bin/sh", "-c", "head -c 67108864 /dev/zero; echo all >&2"}};
  uint32_t channel = guest->session().open(Op::run_held, encode(start),
                                           {.reply = [&](std::string_view bytes) { pid = decode<Started>(bytes)->pid; },
                                            .data =
                                                [&](std::string_view piece) {
                                                  Reader in(piece);
                                                  auto stream = static_cast<Stream>(in.u8());
                                                  ordered &= in.u64() == got;
                                                  if (stream == Stream::gap)
                                                    lost += in.u64();
                                                  else
                                                    got += in.rest().size();
                                                },
                                            .end = [&](Result<std::string_view>) { ended = true; }},
                                           kMaxPayload, true);
  ASSERT_TRUE(guest->pump_until([&] { return pid != 0; }));
  // It writes until its pipe is full, and then no more: what it has written stays the same while it is asked for.
  uint64_t before = 0, now = 1;
  for (int same = 0; same < 20; same = now == before ? same + 1 : 0) {
    before = now;
    auto list = guest->processes();
    ASSERT_OK(list);
    ASSERT_TRUE(list->list.at(0).running);
    now = list->list[0].seq;
  }
  EXPECT_LT(now, uint64_t{16} << 20);
  guest->session().grant(channel, 1 << 30);
  ASSERT_TRUE(guest->pump_until([&] { return ended; }));
  EXPECT_EQ(got, kFlood + 4);
  EXPECT_EQ(lost, 0u);
  EXPECT_TRUE(ordered);
  // The same once more, and the reader leaves.
  pid = 0;
  channel = guest->session().open(
      Op::run_held, encode(start),
      {.reply = [&](std::string_view bytes) { pid = decode<Started>(bytes)->pid; }, .data = [](std::string_view) {}},
      kMaxPayload, true);
  ASSERT_TRUE(guest->pump_until([&] { return pid != 0; }));
  guest->session().cancel(channel);
  auto exit = guest->wait(pid);
  ASSERT_OK(exit);
  EXPECT_EQ(exit->code, 0);
  EXPECT_EQ(exit->seq, kFlood + 4);
}

// What is not read yet has no place but memory, so it waits earlier.
TEST(GuestOutput, AHeldProcessLosesNothingWhereTheDiskIsFull) {
  TestGuest guest;
  ASSERT_TRUE(guest->hello());
  const rlimit nothing{0, 0};
  ASSERT_EQ(::prlimit(guest.pid(), RLIMIT_FSIZE, &nothing, nullptr), 0);
  constexpr uint64_t kFlood = uint64_t{4} << 20;
  uint64_t got = 0, lost = 0;
  auto take = [&](std::string_view bytes) { got += bytes.size(); };
  auto run = guest->begin_held_run({.argv = {"/bin/sh", "-c", "head -c 4194304 /dev/zero; echo all >&2"}},
                                   {.out = take, .err = take, .gap = [&](uint64_t, uint64_t bytes) { lost += bytes; }},
                                   PipeClient::Credit::by_hand);
  ASSERT_TRUE(guest->pump_until([&] { return run->pid() != 0; }));
  uint64_t before = 0, now = 1;
  for (int same = 0; same < 20; same = now == before ? same + 1 : 0) {
    before = now;
    auto list = guest->processes();
    ASSERT_OK(list);
    ASSERT_TRUE(list->list.at(0).running);
    now = list->list[0].seq;
  }
  EXPECT_LT(now, uint64_t{1} << 20);
  EXPECT_LE(got, kHostWindow) << "more than a window was handed out";
  while (!run->ended()) {
    guest->consumed(run);
    ASSERT_TRUE(guest->pump());
  }
  ASSERT_OK(run->result());
  EXPECT_EQ(got, kFlood + 4);
  EXPECT_EQ(lost, 0u);
}

class WholeOutput : public ::testing::Test {
 protected:
  // A child that is left behind, tells its number, waits for a signal and has the last word.
  static constexpr char kLate[] = "(trap 'echo late; exit' USR1; echo $BASHPID; while :; do sleep 0.05; done) & exit 3";
  std::shared_ptr<isola::guest::Run> begin(const char* line, Stdin input = Stdin::null) {
    return guest->begin_whole_run(
        {.argv = {"/bin/bash", "-c", line}, .stdin_mode = input, .timeout_ms = timeout_ms},
        {.out = [this](std::string_view s) { out += s; }, .err = [this](std::string_view s) { err += s; }});
  }
  // The process itself is over: nothing but its child is there.
  void gone(uint32_t pid) {
    ASSERT_TRUE(guest->pump_until([&] { return out.ends_with("\n"); }));
    for (bool there = true; there;) {
      auto asked = guest.sh("test -e /proc/" + std::to_string(pid) + "; echo $?");
      ASSERT_OK(asked.exit);
      there = asked.out == "0\n";
    }
  }
  TestGuest guest;
  std::string out, err;
  uint64_t timeout_ms = 0;
};

TEST_F(WholeOutput, TheEndWaitsForWhoeverHoldsIt) {
  auto run = begin(kLate);
  ASSERT_TRUE(guest->pump_until([&] { return run->pid() != 0; }));
  gone(run->pid());
  EXPECT_FALSE(run->ended());
  auto list = guest->processes();
  ASSERT_OK(list);
  EXPECT_TRUE(list->list.at(0).running) << "it counts as running";
  EXPECT_TRUE(guest->signal(run->pid(), 0));
  EXPECT_TRUE(guest->signal(run->pid(), SIGUSR1)) << "nobody's";
  EXPECT_FALSE(run->ended());
  EXPECT_TRUE(guest->signal(run->pid(), SIGUSR1, Target::group));
  ASSERT_TRUE(guest->pump_until([&] { return run->ended(); }));
  ASSERT_OK(run->result());
  EXPECT_EQ(run->result()->code, 3);
  EXPECT_EQ(run->result()->seq, out.size() + err.size());
  EXPECT_TRUE(out.ends_with("late\n")) << out;
  EXPECT_EQ(guest->signal(run->pid(), 0).error().code, Code::not_found);
}

TEST_F(WholeOutput, WithoutChildrenItEndsAtOnce) {
  auto run = begin("echo one; exit 4");
  ASSERT_TRUE(guest->pump_until([&] { return run->ended(); }));
  ASSERT_OK(run->result());
  EXPECT_EQ(run->result()->code, 4);
  EXPECT_EQ(out, "one\n");
}

TEST_F(WholeOutput, ItIsOnlyTheOnesWhoAskForIt) {
  auto exit = guest.sh("sleep 1000 & echo first");
  ASSERT_OK(exit.exit);
  EXPECT_EQ(exit.out, "first\n");
}

TEST_F(WholeOutput, ASignalThatEndsItEndsTheWait) {
  for (int signal : {SIGTERM, SIGKILL})
    for (auto target : {Target::process, Target::group, Target::session}) {
      out.clear();
      auto run = begin("sleep 1000 & echo $!");
      ASSERT_TRUE(guest->pump_until([&] { return run->pid() != 0; }));
      gone(run->pid());
      EXPECT_FALSE(run->ended());
      EXPECT_TRUE(guest->signal(run->pid(), signal, target));
      ASSERT_TRUE(guest->pump_until([&] { return run->ended(); }));
      ASSERT_OK(run->result());
      EXPECT_EQ(run->result()->code, 0) << "its own end was another";
      if (target == Target::process) (void)guest.sh("kill -9 " + out);
    }
}

TEST_F(WholeOutput, OneThatIsKilledWaitsForNobody) {
  auto run = begin("sleep 1000 & echo $!; wait");
  ASSERT_TRUE(guest->pump_until([&] { return out.ends_with("\n"); }));
  EXPECT_TRUE(guest->signal(run->pid(), SIGKILL));
  ASSERT_TRUE(guest->pump_until([&] { return run->ended(); }));
  EXPECT_EQ(run->result()->signal, SIGKILL);
  EXPECT_EQ(guest.sh("kill " + out).exit->code, 0) << "the child goes on";
}

TEST_F(WholeOutput, ItsTimeEndsTheWaitAndTheChild) {
  timeout_ms = 300;
  auto run = begin("trap '' TERM; sleep 1000 & echo $!");
  ASSERT_TRUE(guest->pump_until([&] { return run->ended(); }));
  ASSERT_OK(run->result());
  EXPECT_TRUE(run->result()->timed_out);
  // Deaf to SIGTERM: after the grace it is killed.
  for (std::string left = "0\n"; left == "0\n";)
    left = guest.sh("test -e /proc/" + out.substr(0, out.size() - 1) + "; echo $?").out;
}

TEST_F(WholeOutput, WhoComesLaterWaitsAsWell) {
  auto run = begin(kLate);
  ASSERT_TRUE(guest->pump_until([&] { return run->pid() != 0; }));
  const uint32_t pid = run->pid();
  gone(pid);
  guest.reattach();
  ASSERT_TRUE(guest->hello());
  std::string again;
  auto attached = guest->begin_attach(pid, 0, {.out = [&](std::string_view s) { again += s; }});
  ASSERT_TRUE(guest->pump_until([&] { return again == out; }));
  EXPECT_FALSE(attached->ended());
  EXPECT_TRUE(guest->signal(pid, SIGUSR1, Target::group));
  ASSERT_TRUE(guest->pump_until([&] { return attached->ended(); }));
  EXPECT_TRUE(again.ends_with("late\n"));
  EXPECT_EQ(guest->wait(pid)->code, 3);
}

TEST(GuestOutput, ManySmallPiecesStayBounded) {
  TestGuest guest;
  uint64_t out = 0, err = 0;
  auto exit = guest->run(
      {.argv = {"/bin/bash", "-c", "for ((i=0;i<20000;i++)); do echo o; echo e >&2; done"}},
      {.out = [&](std::string_view s) { out += s.size(); }, .err = [&](std::string_view s) { err += s.size(); }});
  ASSERT_OK(exit);
  EXPECT_EQ(out, 40000u);
  EXPECT_EQ(err, 40000u);
}

TEST(GuestOutput, IdleGuestIsSmall) {
  TestGuest guest;
  ASSERT_TRUE(guest.sh("head -c 3000000 /dev/zero").exit);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(guest.sh("exit 0").exit);
  RecordProperty("private_kib", static_cast<int>(private_bytes(guest.pid()) >> 10));
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(private_bytes(guest.pid()), 512u << 10);  // 300 to 430, by how the output came
#endif
}

TEST(GuestLink, QuiesceIsFollowedBySilence) {
  TestGuest guest;
  std::string out;
  auto run = guest->begin_run({.argv = {"/bin/sh", "-c", "while :; do echo x; done"}},
                              {.out = [&](std::string_view s) { out += s; }});
  ASSERT_TRUE(guest->pump_until([&] { return out.size() > 100; }));
  ASSERT_TRUE(guest->quiesce());
  auto more = guest->pump(PipeClient::Milliseconds(0));
  ASSERT_TRUE(more.has_value());
  EXPECT_FALSE(*more);
  guest.reattach();
  EXPECT_TRUE(guest->signal(run->pid(), SIGKILL));
  EXPECT_EQ(guest->wait(run->pid())->signal, SIGKILL);
}

// A snapshot is made of a sandbox that goes on: whoever is just reading must not notice.
TEST(GuestLink, AQuiescedLinkGoesOnWithEverythingOnIt) {
  TestGuest guest;
  std::string out;
  auto run = guest->begin_run({.argv = {"/bin/sh", "-c", "read a; echo got $a; exit 3"}, .stdin_mode = Stdin::pipe},
                              {.out = [&](std::string_view s) { out += s; }});
  ASSERT_TRUE(guest->ping("there"));
  TempDir dir;
  std::string door = dir / "door";
  ASSERT_EQ(::mkfifo(door.c_str(), 0600), 0);
  auto waiter = guest->begin_run({.argv = {"/bin/sh", "-c", "read x <" + door + "; exit 7"}}, {});
  ASSERT_TRUE(guest->pump_until([&] { return waiter->pid() != 0; }));
  ASSERT_TRUE(guest->quiesce());
  // Ends while nobody may speak: its end is held back, not lost.
  auto children = [&] {
    std::ifstream list("/proc/" + std::to_string(guest.pid()) + "/task/" + std::to_string(guest.pid()) + "/children");
    return std::distance(std::istream_iterator<pid_t>(list), std::istream_iterator<pid_t>());
  };
  ASSERT_EQ(children(), 2);
  std::ofstream(door) << "go\n";
  while (children() == 2) ::sched_yield();  // until the guest has waited for it
  auto more = guest->pump(PipeClient::Milliseconds(0));
  ASSERT_TRUE(more.has_value());
  EXPECT_FALSE(*more);
  ASSERT_TRUE(guest->go_on());
  ASSERT_TRUE(guest->pump_until([&] { return waiter->ended(); }));
  EXPECT_EQ(waiter->result()->code, 7);
  ASSERT_TRUE(guest->write_stdin(run, "it\n"));
  ASSERT_TRUE(guest->pump_until([&] { return run->ended(); }));
  EXPECT_EQ(out, "got it\n");
  EXPECT_EQ(run->result()->code, 3);
}

TEST(GuestLink, SignalsFromInsideAreNotTheHosts) {
  TestGuest guest;
  ASSERT_TRUE(guest->hello());
  std::string n = std::to_string(SIGRTMIN + kReattachSignal);
  ASSERT_EQ(
      guest.sh("for i in 1 2 3 4 5; do kill -" + n + " 1; done; kill -TERM 1; kill -KILL 1; kill -HUP 1").exit->code,
      0);
  EXPECT_TRUE(guest->ping("same link"));
  EXPECT_FALSE(guest.hung_up());
}

TEST(GuestLink, ForgedSignalsWithoutASender) {
  TempDir dir;  // the build folder may be closed to the namespace's root
  ::chmod(dir.path().c_str(), 0755);
  TestGuest guest(CLONE_NEWUSER);
  auto hello = guest->hello();
  ASSERT_OK(hello);
  ASSERT_EQ(std::system(("cp /proc/self/exe " + dir / "forger").c_str()), 0);
  char self[4096];
  ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  ASSERT_EQ(std::system(("cp " + std::string(self, static_cast<size_t>(n)) + " " + dir / "forger").c_str()), 0);
  rlimit few{64, 64};
  ASSERT_EQ(::prlimit(guest.pid(), RLIMIT_SIGPENDING, &few, nullptr), 0);
  auto exit = guest->run({.argv = {dir / "forger"}, .env = {"ISOLA_TEST_FORGE=1"}});
  ASSERT_OK(exit);
  ASSERT_EQ(exit->code, 0);
  EXPECT_TRUE(guest->ping("same link"));
  EXPECT_FALSE(guest.hung_up());
  guest.reattach();  // while the host's own signal is taken
  EXPECT_EQ(guest->hello()->generation, 2u);
}

TEST(GuestLink, TheLinkCannotBeOpenedFromInside) {
  TestGuest guest(CLONE_NEWUSER);
  ASSERT_TRUE(guest->hello());
  guest.reattach();  // pipes of the guest's own making: their owner is root inside, so only the guest's wall is left
  EXPECT_NE(guest.sh(": >/proc/1/fd/3").exit->code, 0);
  EXPECT_NE(guest.sh(": </proc/1/fd/4").exit->code, 0);
  EXPECT_NE(guest.sh(": </proc/1/mem").exit->code, 0);
  EXPECT_NE(guest.sh("readlink /proc/1/fd/3").exit->code, 0);
  EXPECT_TRUE(guest->ping("untouched"));
}

TEST(GuestLink, NonsenseFromTheHostEndsOnlyThatGeneration) {
  TestGuest guest;
  ASSERT_TRUE(guest->hello());
  Fd raw(::open(("/proc/" + std::to_string(guest.pid()) + "/fd/3").c_str(), O_WRONLY | O_CLOEXEC));
  std::string junk(4096, '\xff');
  ASSERT_EQ(::write(raw.get(), junk.data(), junk.size()), static_cast<ssize_t>(junk.size()));
  guest.reattach();
  EXPECT_EQ(guest.sh("echo fine").out, "fine\n");
}

}  // namespace
}  // namespace isola::guest
