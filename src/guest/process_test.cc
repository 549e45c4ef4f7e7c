// Processes of a real guest, driven through the client.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "guest/test_guest.h"

namespace isola::guest {
namespace {

TEST(GuestProcess, HelloAndRun) {
  TestGuest guest;
  auto hello = guest->hello();
  ASSERT_OK(hello);
  EXPECT_EQ(hello->id, TestGuest::kId);
  EXPECT_EQ(hello->generation, 1u);
  auto o = guest.sh("echo out; echo err >&2; exit 7");
  ASSERT_OK(o.exit);
  EXPECT_EQ(o.out, "out\n");
  EXPECT_EQ(o.err, "err\n");
  EXPECT_EQ(o.exit->code, 7);
  EXPECT_EQ(o.exit->seq, 8u);
  EXPECT_EQ(guest->ping("x").value(), "x");
}

TEST(GuestProcess, LinkOverStdio) {
  TestGuest guest(0, TestGuest::Form::stdio);
  EXPECT_EQ(guest.sh("echo hi; cat").out, "hi\n");  // cat has a /dev/null of its own, not the link
}

TEST(GuestProcess, EnvironmentUserAndFolder) {
  TestGuest guest;
  EXPECT_EQ(guest.sh("pwd; id -u; echo $HOME $USER $LANG $A", {.env = {"A=1"}, .cwd = "/usr"}).out,
            "/usr\n0\n/root root C.UTF-8 1\n");
  EXPECT_EQ(guest.sh("/usr/bin/env", {.env = {"A=1", "B="}, .replace_env = true}).out.find("HOME="), std::string::npos);
  EXPECT_EQ(guest.sh("id -u; id -g; id -G; umask; ulimit -c >/dev/null", {.user = "1234:77"}).out,
            "1234\n77\n77\n0022\n");
  EXPECT_EQ(guest.sh("grep -E 'Cap(Eff|Prm)' /proc/self/status", {.user = "1234"}).out,
            "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n");
  EXPECT_EQ(guest.sh("id -un", {.user = "nobody"}).out, "nobody\n");
  const char* shell =
      "[ \"$(env | sed -n s/^SHELL=//p)\" = \"$(sed -n 's/^nobody:.*://p' /etc/passwd)\" ] && echo same";
  EXPECT_EQ(guest.sh(shell, {.user = "nobody"}).out, "same\n");
  EXPECT_EQ(guest.sh("env | grep ^SHELL=", {.env = {"SHELL=/mine"}, .user = "nobody"}).out, "SHELL=/mine\n");
  ASSERT_TRUE(guest->configure({.env = {"TASK=7", "HOME=/tmp"}}));
  EXPECT_EQ(guest.sh("echo $TASK $HOME $PATH", {.env = {"HOME=/usr"}}).out,
            "7 /usr /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n");
}

TEST(GuestProcess, ChildrenInheritNothingOfOurs) {
  TestGuest guest;
  EXPECT_EQ(guest.sh("ls /proc/self/fd | wc -l").out, "4\n");  // 0 1 2 and the folder that ls reads
  EXPECT_EQ(guest.sh("grep -E 'Sig(Blk|Ign)' /proc/self/status").out,
            "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  EXPECT_EQ(guest.sh("ls /proc/1/fd", {.user = "nobody"}).exit->code, 2);
  int ours = std::atoi(guest.sh("cat /proc/1/oom_score_adj").out.c_str());
  // The guest raises it right after the start: done by the time it passes on standard input.
  std::string theirs;
  auto run =
      guest->begin_run({.argv = {"/bin/sh", "-c", "read x; cat /proc/self/oom_score_adj"}, .stdin_mode = Stdin::pipe},
                       {.out = [&](std::string_view s) { theirs += s; }});
  ASSERT_TRUE(guest->write_stdin(run, "go\n"));
  ASSERT_TRUE(guest->finish(run));
  EXPECT_GT(std::atoi(theirs.c_str()), ours);
  // A session of its own: the group is the process.
  EXPECT_EQ(guest.sh("set -- $(cat /proc/$$/stat); [ $1 = $5 ] && [ $1 = $6 ] && echo own").out, "own\n");
}

TEST(GuestProcess, ExecErrorsAreExact) {
  TestGuest guest;
  auto error = [&](const Start& start) {
    auto r = guest->run(start);
    return r ? Error{Code::internal, "it ran", 0} : r.error();
  };
  auto e = error({.argv = {"no-such-command"}});
  EXPECT_EQ(e.code, Code::not_found);
  EXPECT_EQ(e.message, "no such command: no-such-command");
  EXPECT_EQ(e.sys_errno, ENOENT);
  EXPECT_EQ(error({.argv = {"/etc/passwd"}}).sys_errno, EACCES);
  EXPECT_EQ(error({.argv = {"true"}, .cwd = "/nowhere"}).message,
            "cannot enter the working directory /nowhere: No such file or directory");
  EXPECT_EQ(error({.argv = {"true"}, .user = "stranger"}).message, "no such user: stranger");
  EXPECT_EQ(error({.argv = {}}).code, Code::invalid);
  EXPECT_EQ(error({.argv = {"true", std::string("a\0b", 3)}}).code, Code::invalid);
  // A 10 MB argument arrives whole and the kernel's own limit answers; beyond 16 MiB the guest does.
  e = error({.argv = {"/bin/true", std::string(10'000'000, 'x')}});
  EXPECT_EQ(e.sys_errno, E2BIG);
  EXPECT_EQ(e.message, "the arguments and environment are too long for one command");
  e = error({.argv = {"/bin/true", std::string(17 << 20, 'x')}});
  EXPECT_EQ(e.message, "the arguments are larger than 16 MiB");
  EXPECT_EQ(guest.sh("echo fine").out, "fine\n");
  auto many = Start{.argv = {"/bin/sh", "-c", "echo $#", "sh"}};
  for (int i = 0; i < 10000; ++i) many.argv.push_back("argument");
  std::string out;
  ASSERT_TRUE(guest->run(many, {.out = [&](std::string_view s) { out += s; }}));
  EXPECT_EQ(out, "10000\n");
}

TEST(GuestProcess, ScriptWithoutInterpreterLine) {
  TestGuest guest;
  TempDir dir;
  ASSERT_EQ(guest.sh("echo 'echo script $1' >" + dir / "s" + "; chmod +x " + dir / "s").exit->code, 0);
  std::string out;
  ASSERT_TRUE(guest->run({.argv = {dir / "s", "one"}}, {.out = [&](std::string_view s) { out += s; }}));
  EXPECT_EQ(out, "script one\n");
}

TEST(GuestProcess, StdinWithBackPressure) {
  TestGuest guest;
  uint64_t got = 0;
  auto run = guest->begin_run({.argv = {"cat"}, .stdin_mode = Stdin::pipe},
                              {.out = [&](std::string_view s) { got += s.size(); }});
  std::string block(1 << 20, 'x');
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(guest->write_stdin(run, block));
  guest->close_stdin(run);
  auto exit = guest->finish(run);
  ASSERT_OK(exit);
  EXPECT_EQ(got, 8u << 20);

  // Nobody reads it: the window fills, the guest goes on working, and killing it frees everything.
  run = guest->begin_run({.argv = {"sleep", "1000"}, .stdin_mode = Stdin::pipe});
  while (guest->session().send(run->channel(), block) > 0) {
  }
  ASSERT_TRUE(guest->ping("alive"));
  ASSERT_TRUE(guest->pump_until([&] { return run->pid() != 0; }));
  ASSERT_TRUE(guest->signal(run->pid(), SIGKILL));
  EXPECT_EQ(guest->finish(run)->signal, SIGKILL);
  // A reader that closed its end: what is written is dropped, as with any pipe.
  run = guest->begin_run({.argv = {"/bin/sh", "-c", "exec <&-; sleep 1000"}, .stdin_mode = Stdin::pipe});
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(guest->write_stdin(run, block));
  EXPECT_TRUE(guest->signal(run->pid(), SIGKILL, Target::group));
  EXPECT_FALSE(guest->finish(run)->oom_hint);
  EXPECT_EQ(guest.sh("cat; echo over", {.stdin_mode = Stdin::closed}).out, "over\n");
}

TEST(GuestProcess, Terminal) {
  TestGuest guest;
  std::string out;
  auto run = guest->begin_run({.argv = {"/bin/sh", "-c", "tty >/dev/null && stty size; read x; stty size; cat"},
                               .pty = true,
                               .rows = 30,
                               .cols = 90},
                              {.out = [&](std::string_view s) { out += s; }});
  ASSERT_TRUE(guest->pump_until([&] { return out.find("30 90\r\n") != out.npos; }));
  ASSERT_TRUE(guest->resize(run->pid(), 50, 132));
  ASSERT_TRUE(guest->write_stdin(run, "go\n"));
  ASSERT_TRUE(guest->pump_until([&] { return out.find("50 132\r\n") != out.npos; }));
  guest->close_stdin(run);
  auto exit = guest->finish(run);
  ASSERT_OK(exit);
  EXPECT_EQ(exit->code, 0);
  EXPECT_EQ(guest->resize(exit->pid, 1, 1).error().code, Code::invalid);
  // ^C on the terminal reaches the foreground group.
  run = guest->begin_run({.argv = {"sleep", "1000"}, .user = "nobody", .pty = true});
  ASSERT_TRUE(guest->write_stdin(run, "\3"));
  EXPECT_EQ(guest->finish(run)->signal, SIGINT);
}

TEST(GuestProcess, GroupsAndSessionsAreKilledWhole) {
  TestGuest guest;
  std::string out;
  auto run = guest->begin_run({.argv = {"/bin/bash", "-c", "set -m; sleep 1001 & set +m; sleep 1001 & echo up; wait"}},
                              {.out = [&](std::string_view s) { out += s; }});
  ASSERT_TRUE(guest->pump_until([&] { return out == "up\n"; }));
  // Both have been forked, but need not have become `sleep` yet.
  EXPECT_EQ(guest.sh("until [ $(grep -l sleep /proc/[0-9]*/comm | wc -l) = 2 ]; do :; done; echo both").out, "both\n");
  ASSERT_TRUE(guest->signal(run->pid(), SIGKILL, Target::session));
  EXPECT_EQ(guest->finish(run)->signal, SIGKILL);
  // Dead or dying: nobody of them runs on.
  EXPECT_EQ(guest.sh("while cat /proc/[0-9]*/cmdline 2>/dev/null | grep -qa 'sleep.[1]001'; do :; done; echo none").out,
            "none\n");
  EXPECT_EQ(guest->signal(run->pid(), SIGTERM).error().sys_errno, ESRCH);
  EXPECT_EQ(guest->signal(99999, SIGTERM).error().code, Code::not_found);
}

// Signals of real time are queued, so that one that was sent twice is there twice.
TEST(GuestProcess, ASessionIsSignalledOnce) {
  TestGuest guest;
  std::string out;
  auto run = guest->begin_run({.argv = {"python3", "-c",
                                        "import signal, sys\n"
                                        "one = {signal.SIGRTMIN}\n"
                                        "signal.pthread_sigmask(signal.SIG_BLOCK, one)\n"
                                        "print('up', flush=True)\n"
                                        "sys.stdin.readline()\n"
                                        "print(sum(signal.sigtimedwait(one, 0) is not None for _ in range(3)))\n"},
                               .stdin_mode = Stdin::pipe},
                              {.out = [&](std::string_view s) { out += s; }});
  ASSERT_TRUE(guest->pump_until([&] { return out == "up\n"; }));
  ASSERT_TRUE(guest->signal(run->pid(), SIGRTMIN, Target::session));
  ASSERT_TRUE(guest->write_stdin(run, "count\n"));
  guest->close_stdin(run);
  auto exit = guest->finish(run);
  ASSERT_OK(exit);
  EXPECT_EQ(out, "up\n1\n");
}

TEST(GuestProcess, BackgroundProcessSurvivesAndDelaysNothing) {
  TestGuest guest;
  TempDir dir;
  ASSERT_EQ(guest.sh("mkfifo " + dir / "go").exit->code, 0);
  // The grandchild keeps the pipe; the end comes all the same, and what it writes later is in the log.
  auto o = guest.sh("echo now; (read x <" + dir / "go; echo later; echo done >" + dir / "go2) &");
  ASSERT_OK(o.exit);
  EXPECT_EQ(o.out, "now\n");
  ASSERT_EQ(guest.sh("mkfifo " + dir / "go2; echo >" + dir / "go; cat " + dir / "go2").out, "done\n");
  std::string late;
  auto again =
      guest->finish(guest->begin_attach(o.exit->pid, o.exit->seq, {.out = [&](std::string_view s) { late += s; }}));
  ASSERT_OK(again);
  EXPECT_EQ(late, "later\n");
}

TEST(GuestProcess, ZombieFloodIsReaped) {
  TestGuest guest;
  // Three thousand orphans, each the guest's to reap.
  auto o = guest.sh("i=0; while [ $i -lt 3000 ]; do (true &) ; i=$((i+1)); done; echo ok");
  EXPECT_EQ(o.out, "ok\n");
  EXPECT_EQ(guest.sh("while grep -qs '^State:.Z' /proc/[0-9]*/status; do :; done; echo none").out, "none\n");
}

// The first process of the group dies of SIGTERM at once; what it started is deaf to it, and must be killed all the
// same.
TEST(GuestProcess, ATimeoutReachesThoseWhoOutliveTheFirst) {
  TestGuest guest;
  auto o = guest.sh("sh -c 'trap \"\" TERM; echo $$; sleep 1000' & wait", {.timeout_ms = 500, .grace_ms = 50});
  ASSERT_OK(o.exit);
  EXPECT_TRUE(o.exit->timed_out);
  int left = std::atoi(o.out.c_str());
  ASSERT_GT(left, 1) << o.out;
  auto gone =
      guest.sh("while kill -0 " + std::to_string(left) + " 2>/dev/null; do sleep 0.02; done", {.timeout_ms = 20000});
  ASSERT_OK(gone.exit);
  EXPECT_FALSE(gone.exit->timed_out) << "process " << left << " lives on";
}

TEST(GuestProcess, TimeoutTermsThenKills) {
  TestGuest guest;
  auto o = guest.sh("sleep 1000", {.timeout_ms = 50});
  EXPECT_EQ(o.exit->signal, SIGTERM);
  EXPECT_TRUE(o.exit->timed_out);
  o = guest.sh("trap '' TERM; sleep 1000 & while :; do wait; done", {.timeout_ms = 50, .grace_ms = 50});
  EXPECT_EQ(o.exit->signal, SIGKILL);
  EXPECT_TRUE(o.exit->timed_out);
  EXPECT_FALSE(o.exit->oom_hint);
  EXPECT_TRUE(guest.sh("kill -KILL $$").exit->oom_hint);
}

TEST(GuestProcess, ListAndWait) {
  TestGuest guest;
  auto started = guest->start({.argv = {"sleep", "1000"}, .cwd = "/usr", .tag = "job"});
  ASSERT_OK(started);
  auto list = guest->processes();
  ASSERT_OK(list);
  ASSERT_EQ(list->list.size(), 1u);
  EXPECT_EQ(list->list[0].tag, "job");
  EXPECT_EQ(list->list[0].command, "sleep 1000");
  EXPECT_TRUE(list->list[0].running);
  ASSERT_TRUE(guest->signal(started->pid, SIGTERM));
  auto exit = guest->wait(started->pid);
  ASSERT_OK(exit);
  EXPECT_EQ(exit->signal, SIGTERM);
  EXPECT_FALSE(guest->processes()->list[0].running);
  EXPECT_EQ(guest->wait(started->pid)->signal, SIGTERM);  // kept
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(guest.sh("exit 3").exit);
  EXPECT_EQ(guest->processes()->list.size(), 256u);
  EXPECT_EQ(guest->wait(started->pid).error().code, Code::not_found);
}

// The host's pid of the guest's child that has this number inside, or -1.
pid_t outside(pid_t guest, uint32_t inside) {
  std::ifstream children("/proc/" + std::to_string(guest) + "/task/" + std::to_string(guest) + "/children");
  for (pid_t child; children >> child;) {
    std::ifstream status("/proc/" + std::to_string(child) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("NSpid:") && line.ends_with("\t" + std::to_string(inside))) return child;
  }
  return -1;
}

bool becomes_zombie(pid_t pid) {
  for (int i = 0; i < 20000; ++i, ::poll(nullptr, 0, 1)) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string text((std::istreambuf_iterator<char>(stat)), {});
    if (size_t at = text.rfind(')'); at != std::string::npos && text.substr(at + 2, 1) == "Z") return true;
  }
  return false;
}

// Run inside by the test below: says more, in one go, than the guest reads at once, and ends.
constexpr size_t kLastWords = 1 << 20;
__attribute__((constructor)) void speaker() {
  const char* fifo = std::getenv("ISOLA_TEST_SPEAK");
  if (!fifo) return;
  char c;
  Fd wait(::open(fifo, O_RDONLY | O_CLOEXEC));
  (void)!::read(wait.get(), &c, 1);
  if (::fcntl(1, F_SETPIPE_SZ, kLastWords) < static_cast<int>(kLastWords)) ::_exit(77);
  std::string words(kLastWords, 'w');
  bool said =
      ::write(1, words.data(), words.size()) == static_cast<ssize_t>(words.size()) && ::write(2, "more", 4) == 4;
  ::_exit(said ? 3 : 4);
}

// The guest stands still while a process says its last words and ends: it then hears of the end before it has read
// them.
TEST(GuestProcess, LastWordsAreReadBeforeTheEndIsTold) {
  TestGuest guest;
  TempDir dir;
  const std::string fifo = dir / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  char self[4096];
  ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  ASSERT_GT(n, 0);
  size_t out = 0;
  std::string err;
  auto run = guest->begin_run(
      {.argv = {std::string(self, static_cast<size_t>(n))}, .env = {"ISOLA_TEST_SPEAK=" + fifo}},
      {.out = [&](std::string_view s) { out += s.size(); }, .err = [&](std::string_view s) { err += s; }});
  ASSERT_TRUE(guest->pump_until([&] { return run->pid() != 0; }));
  Fd go(::open(fifo.c_str(), O_WRONLY | O_CLOEXEC));  // waits for its reader
  pid_t speaker = outside(guest.pid(), run->pid());
  ASSERT_GT(speaker, 0);
  ASSERT_EQ(::kill(guest.pid(), SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(guest.pid(), &status, WUNTRACED), guest.pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  go.reset();
  ASSERT_TRUE(becomes_zombie(speaker));
  ASSERT_EQ(::kill(guest.pid(), SIGCONT), 0);
  auto exit = guest->finish(run);
  ASSERT_OK(exit);
  if (exit->code == 77) GTEST_SKIP() << "pipes cannot be made large here";
  EXPECT_EQ(exit->code, 3);
  EXPECT_EQ(out, kLastWords);
  EXPECT_EQ(err, "more");
}

}  // namespace
}  // namespace isola::guest
