// The launcher's socket in front of all sorts of clients.
#include "launcher/protocol.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/ids.h"
#include "e2e/island.h"
#include "kernel/process.h"

namespace isola::e2e {
namespace {

using launcher::Op;

class ProtocolTest : public SharedIsland {};

Fd dial(const std::string& data) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string path = data + "/launcher.sock";
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  timeval patience{20, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) < 0) fd.reset();
  return fd;
}

std::string request(uint32_t tag, Op op, std::string_view arguments) {
  Writer out;
  out.u32(tag);
  out.u8(static_cast<uint8_t>(op));
  out.bytes(arguments);
  return out.take();
}

// The launcher's status byte, or -1 when it hung up.
int ask(int fd, const std::string& bytes) {
  if (!kernel::send_message(fd, bytes)) return -1;
  auto reply = kernel::receive_message(fd);
  if (!reply || reply->bytes.size() < 5) return -1;
  return reply->bytes[4];
}

TEST_F(ProtocolTest, NonsenseEndsTheConnectionOnly) {
  auto parts = std::vector<std::string>{"x",
                                        "abc",
                                        std::string(4, '\0'),
                                        request(0, Op::info, ""),
                                        std::string(60000, '\0'),
                                        std::string(launcher::kMaxMessage + 1000, 'x')};
  for (const auto& bytes : parts) {
    Fd fd = dial(island().data());
    ASSERT_TRUE(fd);
    EXPECT_EQ(ask(fd.get(), bytes), -1) << bytes.size();
    EXPECT_GT(island().launcher_pid(), 1);
  }
}

// Of a server that is newer than the launcher, whatever comes with it; what is asked next is answered.
TEST_F(ProtocolTest, RequestsThatNobodyKnowsAreRefused) {
  Fd fd = dial(island().data());
  ASSERT_TRUE(fd);
  EXPECT_EQ(ask(fd.get(), request(1, static_cast<Op>(200), "")), 1);
  EXPECT_EQ(ask(fd.get(), std::string(60000, '\xff')), 1);
  EXPECT_EQ(ask(fd.get(), request(2, Op::info, "")), 0);
}

TEST_F(ProtocolTest, TruncatedRequestsAreRefused) {
  Writer launch, id, park;
  encode(launch, launcher::LaunchRequest{.digest = island().digest(), .shown_targets = {"/mnt"}});
  id.str("i0123456789abcdefghij");
  park.str(island().digest());
  park.u32(1);
  park.u8(0);
  const std::pair<Op, std::string> whole[] = {
      {Op::launch, launch.data()}, {Op::link, id.data()},   {Op::kill, id.data()},
      {Op::freeze, id.data()},     {Op::thaw, id.data()},   {Op::stats, id.data()},
      {Op::list, id.data()},       {Op::park, park.data()}, {Op::shutdown, std::string(1, '\0')}};
  Fd fd = dial(island().data());
  ASSERT_TRUE(fd);
  uint32_t tag = 0;
  for (const auto& [op, arguments] : whole) {
    for (size_t n = 0; n < arguments.size(); ++n)
      EXPECT_EQ(ask(fd.get(), request(++tag, op, arguments.substr(0, n))), 1)
          << static_cast<int>(op) << " cut to " << n;
    EXPECT_EQ(ask(fd.get(), request(++tag, op, arguments + "x")), 1) << static_cast<int>(op) << " and one more byte";
  }
  EXPECT_EQ(ask(fd.get(), request(++tag, Op::info, "x")), 1);
  EXPECT_EQ(ask(fd.get(), request(++tag, Op::info, "")), 0);
  // A whole launch without the descriptors that it needs, and ids that are none.
  EXPECT_EQ(ask(fd.get(), request(++tag, Op::launch, launch.data())), 1);
  for (const char* bad : {"", "../../etc", "i0123456789abcdefghij", "/"}) {
    Writer name;
    name.str(bad);
    for (Op op : {Op::link, Op::kill, Op::freeze, Op::thaw, Op::stats})
      EXPECT_EQ(ask(fd.get(), request(++tag, op, name.data())), 1);
  }
}

TEST_F(ProtocolTest, UnaskedDescriptorsAreClosed) {
  Fd fd = dial(island().data());
  ASSERT_TRUE(fd);
  for (uint32_t i = 1; i <= 50; ++i) {
    int fds[8];
    std::fill(std::begin(fds), std::end(fds), 0);
    ASSERT_TRUE(kernel::send_message(fd.get(), request(i, Op::info, ""), fds));
    ASSERT_TRUE(kernel::receive_message(fd.get()));
  }
}

TEST_F(ProtocolTest, SomebodyElseIsRefused) {
  // Let everybody as far as the socket: what refuses them is the check of who they are.
  ::chmod(island().data().c_str(), 0755);
  ::chmod((island().data() + "/launcher.sock").c_str(), 0666);
  pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    if (::setgroups(0, nullptr) < 0 || ::setresgid(65534, 65534, 65534) < 0 || ::setresuid(65534, 65534, 65534) < 0)
      ::_exit(9);
    Fd fd = dial(island().data());
    if (!fd) ::_exit(8);
    ::_exit(ask(fd.get(), request(1, Op::info, "")) == -1 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(ProtocolTest, OneThatNeverReadsHoldsUpNobody) {
  Fd deaf = dial(island().data());
  ASSERT_TRUE(deaf);
  int sent = 0;
  for (uint32_t i = 1; i < 20000; ++i) {
    std::string bytes = request(i, Op::list, std::string(4, '\0'));
    if (::send(deaf.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) break;
    ++sent;
  }
  EXPECT_GT(sent, 10);
  EXPECT_EQ(island().run({"--", "echo", "hi"}).out, "hi\n");
}

// Whoever asks and is gone before the answer, or with answers waiting, harms nobody but himself.
TEST_F(ProtocolTest, ThoseWhoGoBeforeTheirAnswer) {
  Fd other = dial(island().data());
  ASSERT_EQ(ask(other.get(), request(1, Op::info, "")), 0);
  const pid_t before = island().launcher_pid();
  for (int round = 0; round < 40; ++round)
    for (uint8_t op = 0; op < static_cast<uint8_t>(Op::shutdown); ++op) {
      Fd fd = dial(island().data());
      ASSERT_TRUE(fd);
      for (uint32_t i = 1; i <= (round % 2 ? 200u : 1u); ++i) {
        std::string bytes =
            request(i, static_cast<Op>(op), op == static_cast<uint8_t>(Op::list) ? std::string(4, 0) : "");
        if (::send(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) break;
      }
    }
  EXPECT_EQ(ask(other.get(), request(2, Op::info, "")), 0) << "the launcher ended";
  EXPECT_EQ(island().launcher_pid(), before);
}

TEST_F(ProtocolTest, AThousandConnections) {
  int n = count("connections", 300, 1000);
  std::vector<Fd> all;
  for (int i = 0; i < n; ++i) {
    all.push_back(dial(island().data()));
    ASSERT_TRUE(all.back()) << i;
  }
  for (auto& fd : all) ASSERT_EQ(ask(fd.get(), request(1, Op::info, "")), 0);
  EXPECT_EQ(island().run({"--", "echo", "hi"}).out, "hi\n");
}

TEST_F(ProtocolTest, FreezeThawStatsListPark) {
  auto client = island().client();
  auto sandbox = launch(client, {.digest = island().digest(), .limits = {.memory = 64 << 20}});
  ASSERT_OK(sandbox);
  EXPECT_EQ(hear(*sandbox->guest, {"sh", "-c", "dd if=/dev/zero of=/f bs=1M count=4 2>/dev/null; sync /f"}).exit->code,
            0);
  auto stats = client.stats(sandbox->id);
  ASSERT_OK(stats);
  EXPECT_GT(stats->cpu_usec, 0u);
  EXPECT_GT(stats->memory_bytes, 0u);
  EXPECT_GE(stats->processes, 1u);
  ASSERT_TRUE(client.freeze(sandbox->id));
  EXPECT_EQ((*client.list())[0].state, State::frozen);
  auto run = sandbox->guest->begin_run({.argv = {"echo", "thawed"}}, {});
  auto quiet = sandbox->guest->pump_until([&] { return run->ended(); }, std::chrono::milliseconds(300));
  EXPECT_FALSE(quiet) << "a frozen sandbox answered";
  EXPECT_FALSE(client.link(sandbox->id)) << "a frozen one cannot be attached to";
  ASSERT_TRUE(client.thaw(sandbox->id));
  auto answered = sandbox->guest->pump_until([&] { return run->ended(); }, std::chrono::milliseconds(20000));
  EXPECT_TRUE(answered);
  // A frozen one can be killed.
  ASSERT_TRUE(client.freeze(sandbox->id));
  auto ended = client.kill(sandbox->id);
  ASSERT_OK(ended);
  EXPECT_EQ(ended->reason, EndReason::killed);
  EXPECT_FALSE(client.kill(sandbox->id));
  EXPECT_FALSE(client.park("not-a-digest", 1));
  EXPECT_FALSE(client.park(std::string(64, '0'), 1)) << "no such image";
  EXPECT_FALSE(client.park(island().digest(), 100000));
}

TEST_F(ProtocolTest, ParkKeepsThatMany) {
  auto client = island().client();
  for (uint32_t n : {3u, 1u, 2u, 0u}) {
    ASSERT_TRUE(client.park(island().digest(), n));
    EXPECT_TRUE(eventually([&] { return client.info()->parked == n; })) << n;
  }
  // A parked one is nobody's: it cannot be killed, linked or measured by its name… only listed.
  ASSERT_TRUE(client.park(island().digest(), 1));
  ASSERT_TRUE(eventually([&] { return client.info()->parked == 1; }));
  auto all = client.list();
  ASSERT_OK(all);
  ASSERT_EQ(all->size(), 1u);
  EXPECT_TRUE((*all)[0].parked);
  EXPECT_FALSE(client.link((*all)[0].id));
  EXPECT_FALSE(client.kill((*all)[0].id));
}

TEST_F(ProtocolTest, NewLinksCutOldOnes) {
  auto client = island().client();
  auto sandbox = launch(client, {.digest = island().digest()});
  ASSERT_OK(sandbox);
  for (int i = 0; i < 5; ++i) {
    auto link = client.link(sandbox->id);
    ASSERT_OK(link);
    auto next = talk(sandbox->id, std::move(*link));
    ASSERT_OK(next);
    EXPECT_EQ(hear(*next->guest, {"echo", "hi"}).out, "hi\n");
    EXPECT_FALSE(hear(*sandbox->guest, {"true"}).exit) << "the old link still works";
    sandbox = std::move(*next);
  }
  EXPECT_TRUE(client.kill(sandbox->id));
}

// Runs `work` as that user, in a child; its exit code.
int as_user(uid_t user, const std::function<int()>& work) {
  pid_t pid = ::fork();
  if (pid == 0) {
    if (::setgroups(0, nullptr) < 0 || ::setresgid(user, user, user) < 0 || ::setresuid(user, user, user) < 0)
      ::_exit(99);
    ::_exit(work());
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A server without privileges may ask for sandboxes, and for nothing that is root's.
TEST(Launcher, OneUserBesidesRoot) {
  NEEDS_TEMPLATE("minimal");
  constexpr uid_t kServer = 64990, kStranger = 64991;
  Island island({.user = std::to_string(kServer)});
  const std::string socket = island.data() + "/launcher.sock";
  struct stat folder{}, door{};
  ASSERT_EQ(::stat(island.data().c_str(), &folder), 0);
  ASSERT_EQ(::stat(socket.c_str(), &door), 0);
  EXPECT_EQ(folder.st_mode & 07777, 0711u);
  EXPECT_EQ(door.st_mode & 07777, 0600u);
  EXPECT_EQ(door.st_uid, kServer);
  for (const auto& entry : std::filesystem::directory_iterator(island.data())) {
    struct stat st{};
    ASSERT_EQ(::lstat(entry.path().c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 077, 0u) << entry.path() << " is open to everybody who may pass";
  }
  const std::string shutdown = request(2, Op::shutdown, std::string(1, '\1'));
  Writer shown;
  encode(shown, launcher::LaunchRequest{.digest = island.digest(), .shown_targets = {"/mnt"}});
  EXPECT_EQ(as_user(kServer,
                    [&] {
                      auto client = launcher::Client::connect(island.data());
                      if (!client) return 1;
                      auto sandbox = launch(*client, {.digest = island.digest()});
                      if (!sandbox) return 2;
                      if (hear(*sandbox->guest, {"echo", "hi"}).out != "hi\n") return 3;
                      if (!client->freeze(sandbox->id) || !client->thaw(sandbox->id) || !client->stats(sandbox->id))
                        return 4;
                      if (!client->kill(sandbox->id)) return 5;
                      Fd own(::open("/proc/self/root", O_PATH | O_DIRECTORY | O_CLOEXEC));
                      auto denied = client->launch({.digest = island.digest(), .shown_targets = {"/mnt"}}, {own.get()});
                      if (denied || denied.error().code != Code::denied) return 6;
                      Fd raw = dial(island.data());
                      if (ask(raw.get(), request(1, Op::launch, shown.data())) != 1) return 7;
                      if (ask(raw.get(), shutdown) != 1) return 8;
                      return ask(raw.get(), request(3, Op::info, "")) == 0 ? 0 : 9;
                    }),
            0);
  EXPECT_EQ(as_user(kStranger, [&] { return dial(island.data()) ? 1 : 0; }), 0) << "the socket is not theirs";
  ::chmod(socket.c_str(), 0666);
  EXPECT_EQ(as_user(kStranger,
                    [&] {
                      Fd fd = dial(island.data());
                      return fd && ask(fd.get(), request(1, Op::info, "")) == -1 ? 0 : 1;
                    }),
            0)
      << "who they are is looked at as well";
  EXPECT_EQ(island.run({"--", "echo", "root"}).out, "root\n");
  auto nobody = island.isola({"--data", island.data() + "-x", "launcher", "--user", "no-such-user"});
  EXPECT_NE(nobody.err.find("no user 'no-such-user'"), std::string::npos) << nobody.text();
  std::filesystem::remove_all(island.data() + "-x");
}

// What root runs for itself may show folders of the host: the user beside it must not get at them through the sandbox.
TEST(Launcher, RootsOwnSandboxesAreNobodyElses) {
  NEEDS_TEMPLATE("minimal");
  constexpr uid_t kServer = 64990;
  Island island({.user = std::to_string(kServer)});
  auto root = island.client();
  auto own = launch(root, {.digest = island.digest()});  // as `isola run` does
  ASSERT_OK(own);
  const std::string id = own->id;
  EXPECT_EQ(as_user(kServer,
                    [&] {
                      auto client = launcher::Client::connect(island.data());
                      if (!client) return 1;
                      auto all = client->list();
                      if (!all || !all->empty()) return 2;
                      auto refused = [](const auto& result) {
                        return !result && result.error().code == Code::not_found;
                      };
                      if (!refused(client->link(id))) return 3;
                      if (!refused(client->kill(id))) return 4;
                      if (!refused(client->freeze(id))) return 5;
                      if (!refused(client->stats(id))) return 6;
                      if (!refused(client->set_policy({.id = id, .policy = "allow *"}))) return 7;
                      if (!refused(client->gate_report(id))) return 8;
                      Writer name;
                      name.str(id);
                      if (ask(dial(island.data()).get(), request(1, Op::own, name.data())) != 1) return 9;
                      return ask(dial(island.data()).get(), request(1, Op::thaw, name.data())) == 1 ? 0 : 10;
                    }),
            0);
  EXPECT_EQ(hear(*own->guest, {"echo", "still mine"}).out, "still mine\n");
  EXPECT_EQ(root.list()->size(), 1u);
  // What stays for others to find is not root's alone: a server may have been started as root before.
  auto kept = launch(root, {.digest = island.digest(), .ephemeral = false});
  ASSERT_OK(kept);
  const std::string shared = kept->id;
  EXPECT_EQ(as_user(kServer,
                    [&] {
                      auto client = launcher::Client::connect(island.data());
                      return client && client->stats(shared) && client->kill(shared) ? 0 : 1;
                    }),
            0);
  EXPECT_TRUE(root.kill(id));
  // Another user instead: the one before is no longer listened to.
  EXPECT_EQ(as_user(kServer,
                    [&] {
                      auto client = launcher::Client::connect(island.data());
                      return client && client->info() ? 0 : 1;
                    }),
            0);
  Fd before;
  {
    ASSERT_EQ(::setresuid(static_cast<uid_t>(-1), kServer, 0), 0);
    before = dial(island.data());
    ASSERT_EQ(::setresuid(static_cast<uid_t>(-1), 0, 0), 0);
  }
  ASSERT_EQ(ask(before.get(), request(1, Op::info, "")), 0);
  ASSERT_TRUE(root.admit(kServer + 1));
  EXPECT_EQ(ask(before.get(), request(2, Op::info, "")), -1);
}

uint64_t cpu_ticks(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(file)), {}), word;
  std::istringstream words(text.substr(text.rfind(')') + 2));
  uint64_t user = 0, system = 0;
  for (int i = 0; i < 11; ++i) words >> word;
  words >> user >> system;
  return user + system;
}

// Out of descriptors: those who knock wait, the launcher does not go round and round, and later they are let in.
TEST(Launcher, OutOfDescriptors) {
  Island island;
  pid_t pid = island.launcher_pid();
  Fd known = dial(island.data());
  ASSERT_EQ(ask(known.get(), request(1, Op::info, "")), 0);
  size_t open = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid)))
    ++open;
  rlimit old{}, few{};
  ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, nullptr, &old), 0);
  few = old;
  few.rlim_cur = open;
  ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, &few, nullptr), 0);
  std::vector<Fd> knocking;
  for (int i = 0; i < 8; ++i) {
    knocking.push_back(dial(island.data()));
    ASSERT_TRUE(knocking.back());
  }
  uint64_t before = cpu_ticks(pid);
  ::poll(nullptr, 0, 1000);
  EXPECT_LT(cpu_ticks(pid) - before, static_cast<uint64_t>(::sysconf(_SC_CLK_TCK)) / 4) << "it spins";
  EXPECT_EQ(ask(known.get(), request(2, Op::info, "")), 0) << "who is in is still served";
  ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, &old, nullptr), 0);
  for (auto& fd : knocking) EXPECT_EQ(ask(fd.get(), request(1, Op::info, "")), 0);
}

TEST(Launcher, OnePerDataDirectory) {
  Island island;
  auto second = island.isola({"launcher"}, {.limit = std::chrono::seconds(20)});
  EXPECT_EQ(second.code, 125) << second.text();
  EXPECT_NE(second.err.find("already"), std::string::npos) << second.text();
  island.expect_unchanged();
}

TEST(Launcher, StaleSocketAndRestart) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  auto waiting = island.client();
  island.kill_launcher();
  EXPECT_TRUE(std::filesystem::exists(island.data() + "/launcher.sock")) << "a killed one leaves its socket";
  EXPECT_FALSE(waiting.info()) << "whoever was connected is told";
  // The next run starts another.
  EXPECT_EQ(island.run({"--", "echo", "hi"}).out, "hi\n");
  EXPECT_EQ(island.isola({"launcher", "status"}).code, 0);
  EXPECT_EQ(island.isola({"launcher", "stop", "--all"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(island.data() + "/launcher.sock"));
  expect_complaint(island.isola({"launcher", "status"}), 125, "no launcher");
  EXPECT_EQ(island.isola({"launcher", "stop"}).code, 0) << "nothing to stop is fine";
}

TEST(Launcher, StopLeavesSandboxesAlive) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  std::string id;
  {
    auto client = island.client();
    auto sandbox = launch(client, {.digest = island.digest(), .ephemeral = false});
    ASSERT_OK(sandbox);
    id = sandbox->id;
    ASSERT_TRUE(client.park(island.digest(), 2));
    ASSERT_TRUE(eventually([&] { return client.info()->parked == 2; }));
    auto launcher = kernel::open_pidfd(island.launcher_pid());
    ASSERT_OK(launcher);
    EXPECT_TRUE(client.shutdown(false));
    pollfd over{launcher->get(), POLLIN, 0};
    ASSERT_EQ(::poll(&over, 1, 20000), 1);
  }
  // Parked ones are nobody's: they are gone, with all that was theirs.
  std::set<std::string> known;
  for (const auto& entry : std::filesystem::directory_iterator(island.data() + "/run"))
    if (std::string name = entry.path().filename(); is_sandbox_id(name)) known.insert(name);
  EXPECT_EQ(known, std::set<std::string>{id});
  auto started = island.start();
  ASSERT_OK(started);
  {
    auto client = island.client();
    auto link = client.link(id);
    ASSERT_OK(link);
    auto again = talk(id, std::move(*link));
    ASSERT_OK(again);
    EXPECT_EQ(hear(*again->guest, {"echo", "alive"}).out, "alive\n");
    EXPECT_TRUE(client.kill(id));
  }
  island.expect_unchanged();
}

// One that somebody else started has the folder before it listens, for as long as it adopts what lives.
TEST(Launcher, OneThatIsStartingIsWaitedFor) {
  NEEDS_TEMPLATE("minimal");
  Island island({.start = false});
  std::filesystem::create_directories(island.data());
  Fd lock(::open((island.data() + "/launcher.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(lock);
  ASSERT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  std::jthread other([&] {
    EXPECT_TRUE(eventually([&] {
      std::ifstream log(island.data() + "/launcher.log");
      int tries = 0;
      for (std::string line; std::getline(log, line);) tries += line.contains("already");
      return tries > 6;
    }));
    lock.reset();
  });
  auto started = island.start();
  ASSERT_OK(started);
}

TEST(Launcher, LingersOnlyWhenIdle) {
  NEEDS_TEMPLATE("minimal");
  Island island({.start = false});
  auto client = launcher::Client::connect_or_start(
      {.data_dir = island.data(), .program = kIsola, .linger = std::chrono::seconds(1)});
  ASSERT_OK(client);
  pid_t pid = client->info()->pid;
  ASSERT_TRUE(client->park(island.digest(), 1));
  // Far longer than it would linger: a connection keeps it, whether or not it says anything.
  ::poll(nullptr, 0, 2500);
  auto info = client->info();
  ASSERT_OK(info);
  EXPECT_EQ(info->pid, pid);
  auto pidfd = kernel::open_pidfd(pid);
  ASSERT_OK(pidfd);
  {
    auto gone = std::move(*client);
  }
  pollfd ended{pidfd->get(), POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 30000), 1) << "it never leaves";
}

}  // namespace
}  // namespace isola::e2e
