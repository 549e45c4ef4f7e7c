#include "kernel/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>

#include "base/file.h"
#include "kernel/fault.h"

namespace isola::kernel {
namespace {

// A child that waits until it is told to go.
struct Waiting {
  explicit Waiting(uint64_t flags = 0) {
    auto pipe = make_pipe();
    EXPECT_TRUE(pipe);
    auto spawned = spawn(flags, [&] {
      pipe->second.reset();
      char c;
      (void)!::read(pipe->first.get(), &c, 1);
      return 17;
    });
    EXPECT_TRUE(spawned) << spawned.error().message;
    child = std::move(*spawned);
    release = std::move(pipe->second);
  }
  ~Waiting() {
    if (child.pid > 0) finish();
  }
  int finish() {
    release.reset();
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    child.pid = -1;
    return WEXITSTATUS(status);
  }
  Child child;
  Fd release;
};

TEST(Process, SpawnGivesAPidfdAndAnExitCode) {
  Waiting waiting;
  pollfd ended{waiting.child.pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 0), 0);
  EXPECT_TRUE(::fcntl(waiting.child.pidfd.get(), F_GETFD) & FD_CLOEXEC);
  waiting.release.reset();
  EXPECT_EQ(::poll(&ended, 1, 10000), 1);
  EXPECT_EQ(waiting.finish(), 17);
}

// A leader that left somebody behind: the pipe's end tells that nobody holds it any more.
TEST(Process, AGroupIsKilledAfterItsLeader) {
  auto pipe = make_pipe();
  ASSERT_TRUE(pipe);
  auto leader = spawn(0, [&] {
    ::setpgid(0, 0);
    auto left = spawn(0, [&] {
      (void)!::write(pipe->second.get(), "s", 1);
      for (;;) ::pause();
      return 0;
    });
    return left ? 0 : 1;
  });
  ASSERT_TRUE(leader);
  pipe->second.reset();
  char c;
  ASSERT_EQ(::read(pipe->first.get(), &c, 1), 1);
  pollfd ended{leader->pidfd.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&ended, 1, 10000), 1);
  pollfd held{pipe->first.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&held, 1, 0), 0);
  kill_group(leader->pid, leader->pidfd.get());
  EXPECT_EQ(::poll(&held, 1, 10000), 1);
  ::kill(-leader->pid, SIGKILL);  // nobody is left, unless this failed
  wait_for(leader->pid);
}

TEST(Process, ANameOutlivesThePid) {
  ProcessName name;
  {
    Waiting waiting;
    auto started = start_time(waiting.child.pid);
    ASSERT_TRUE(started);
    EXPECT_GT(*started, 0u);
    name = {waiting.child.pid, *started};
    EXPECT_TRUE(open_pidfd(name));
    auto other = open_pidfd(ProcessName{name.pid, name.start_time + 1});
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().code, Code::not_found);
  }
  EXPECT_FALSE(open_pidfd(name));
  EXPECT_FALSE(start_time(name.pid));
}

// The name of a command may hold brackets and spaces: the fields behind it are still found.
TEST(Process, StartTimeOfAnOddName) {
  auto pipe = make_pipe();
  auto child = spawn(0, [&] {
    std::ofstream("/proc/self/comm") << ") R 1 (x";
    (void)!::write(pipe->second.get(), "x", 1);
    ::pause();
    return 0;
  });
  ASSERT_TRUE(child);
  char c;
  ASSERT_EQ(::read(pipe->first.get(), &c, 1), 1);
  auto odd = start_time(child->pid), own = start_time(::getpid());
  ASSERT_TRUE(odd && own);
  EXPECT_GE(*odd, *own);
  EXPECT_TRUE(send_signal(child->pidfd.get(), SIGKILL));
  ::waitpid(child->pid, nullptr, 0);
  auto late = send_signal(child->pidfd.get(), SIGKILL);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().sys_errno, ESRCH);
}

TEST(Process, IdMaps) {
  Waiting waiting(CLONE_NEWUSER);
  auto mapped = write_id_maps(waiting.child.pid, 0x50000000, 65536);
  ASSERT_TRUE(mapped) << mapped.error().message;
  for (const char* file : {"uid_map", "gid_map"}) {
    std::ifstream in("/proc/" + std::to_string(waiting.child.pid) + "/" + file);
    uint64_t inside = 1, outside = 0, n = 0;
    in >> inside >> outside >> n;
    EXPECT_EQ(inside, 0u);
    EXPECT_EQ(outside, 0x50000000u);
    EXPECT_EQ(n, 65536u);
  }
  EXPECT_FALSE(write_id_maps(waiting.child.pid, 0x50000000, 65536)) << "maps are written once";
}

TEST(Process, OpenNamespace) {
  Waiting waiting(CLONE_NEWUTS);
  auto uts = open_namespace(waiting.child.pid, "uts");
  ASSERT_TRUE(uts);
  struct stat its{}, own{};
  ::fstat(uts->get(), &its), ::stat("/proc/self/ns/uts", &own);
  EXPECT_NE(its.st_ino, own.st_ino);
  EXPECT_FALSE(open_namespace(waiting.child.pid, "no-such"));
}

TEST(Process, MessagesCarryDescriptors) {
  auto pair = socket_pair();
  ASSERT_TRUE(pair);
  int fds[] = {0, 1, 2};
  ASSERT_TRUE(send_message(pair->first.get(), "hello", fds));
  auto message = receive_message(pair->second.get());
  ASSERT_TRUE(message);
  EXPECT_EQ(message->bytes, "hello");
  ASSERT_EQ(message->fds.size(), 3u);
  for (const auto& fd : message->fds) EXPECT_TRUE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC);
  // Too large, too many, and the end.
  ASSERT_TRUE(send_message(pair->first.get(), std::string(100, 'x')));
  auto large = receive_message(pair->second.get(), 99);
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, Code::corrupt);
  std::vector<int> many(100, 0);
  EXPECT_FALSE(send_message(pair->first.get(), "x", many));
  pair->first.reset();
  auto end = receive_message(pair->second.get());
  ASSERT_TRUE(end);
  EXPECT_TRUE(end->bytes.empty());
  EXPECT_FALSE(send_message(pair->second.get(), "x")) << "nobody there, and no SIGPIPE";
}

TEST(Process, FaultsAreSeen) {
  if (!fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  ASSERT_TRUE(fault::arm("clone:1:12"));
  auto child = spawn(0, [] { return 0; });
  EXPECT_FALSE(child);
  ASSERT_TRUE(fault::arm("pipe:2:24"));
  EXPECT_TRUE(make_pipe());
  auto second = make_pipe();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().sys_errno, EMFILE);
  EXPECT_TRUE(make_pipe()) << "it strikes once";
  fault::disarm();
  EXPECT_FALSE(fault::arm("nonsense"));
  EXPECT_FALSE(fault::arm("a:0:5"));
  EXPECT_FALSE(fault::arm("a:1:0"));
  EXPECT_FALSE(fault::arm("a:x:5"));
}

}  // namespace
}  // namespace isola::kernel
