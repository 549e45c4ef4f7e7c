// What every boundary must be able to do, tried on each that this machine has. One that it lacks is skipped, with the
// reason.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/file.h"
#include "base/ids.h"
#include "boundary/choice.h"
#include "e2e/island.h"
#include "gate/outside.h"
#include "kernel/fault.h"

namespace isola::e2e {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLong{60000};  // only a hang takes that long

class Boundaries : public ::testing::TestWithParam<BoundaryKind> {
 protected:
  void SetUp() override {
    NEEDS_TEMPLATE("minimal");
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    begin();
  }
  void begin(IslandOptions options = {}) {
    island_ = std::make_unique<Island>(options);
    auto client = island_->client();
    auto info = client.info();
    ASSERT_OK(info);
    for (const auto& offer : info->boundaries) {
      if (offer.kind != GetParam()) continue;
      if (!offer.offered) GTEST_SKIP() << "boundary " << to_string(offer.kind) << ": " << offer.missing;
      if (auto why = too_slow(offer); !why.empty()) GTEST_SKIP() << why;
    }
  }
  // A machine whose instructions are translated takes seconds for everything: then one case is enough, unless all of it
  // is wanted.
  static std::string too_slow(const boundary::Offer& offer) {
    if (offer.kind != BoundaryKind::microvm || offer.engine.accelerated || count("cases on microvm", 1, 30) > 1)
      return "";
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    if (test.starts_with("ACommandRunsAndNothingIsLeft")) return "";
    return "boundary microvm without KVM: only in the full run (ISOLA_TEST_FULL)";
  }
  // A Linux kernel of its own, of which root inside is root.
  static bool has_kernel() { return GetParam() == BoundaryKind::uml || GetParam() == BoundaryKind::microvm; }
  std::string name() const { return std::string(to_string(GetParam())); }
  launcher::LaunchRequest request(bool ephemeral = false) const {
    launcher::LaunchRequest request{.digest = island_->digest(), .ephemeral = ephemeral};
    request.boundary.wish = wish_for(GetParam());
    return request;
  }
  Done run(Argv words) {
    words.insert(words.begin(), {"--boundary", name()});
    return island_->run(words, {.limit = std::chrono::seconds(120)});
  }
  Done sh(const std::string& script, Argv flags = {}) {
    flags.insert(flags.end(), {"--", "/bin/sh", "-c", script});
    return run(std::move(flags));
  }
  // Output of a shell line in a living one.
  static std::string inside(Talking& box, const std::string& script) {
    auto heard = hear(*box.guest, {"/bin/sh", "-c", script});
    if (!heard.exit) return "link: " + heard.exit.error().message;
    return heard.out + heard.err;
  }
  // How a sandbox that this connection owns ended.
  static Result<launcher::Ended> end_of(launcher::Client& client) {
    pollfd ready{client.fd(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(kLong.count())) != 1) return fail(Code::timeout, "it lives on");
    ISOLA_TRY(auto event, client.next_event());
    if (!event) return fail(Code::internal, "no event");
    return *event;
  }

  std::unique_ptr<Island> island_;
};

TEST_P(Boundaries, ACommandRunsAndNothingIsLeft) {
  auto done = sh("echo out; echo err >&2; id -u; exit 7");
  EXPECT_EQ(done.code, 7) << done.text();
  EXPECT_EQ(done.out, "out\n0\n") << done.text();
  EXPECT_EQ(done.err, "err\n");
  EXPECT_EQ(run({"--", "/no/such/program"}).code, 127);
  auto fed = island_->run({"--boundary", name(), "--", "cat"}, {.input = std::string(300000, 'x') + "end"});
  EXPECT_EQ(fed.out.size(), 300003u) << fed.text().substr(0, 500);
  EXPECT_TRUE(fed.out.ends_with("end"));
}

TEST_P(Boundaries, EachSaysWhichOneItIs) {
  auto client = island_->client();
  auto box = client.launch(request());
  ASSERT_OK(box);
  EXPECT_EQ(box->reply.kind, GetParam());
  EXPECT_FALSE(box->reply.engine.name.empty());
  EXPECT_FALSE(box->reply.engine.version.empty());
  auto all = client.list();
  ASSERT_OK(all);
  for (const auto& one : *all) {
    if (one.id != box->reply.id) continue;
    EXPECT_EQ(one.kind, GetParam());
  }
  auto done = run({"--latency", "--", "true"});
  EXPECT_NE(done.err.find("boundary: " + name()), std::string::npos) << done.text();
}

TEST_P(Boundaries, FilesPortsAndWatches) {
  auto client = island_->client();
  auto box = launch(client, request());
  ASSERT_OK(box);
  auto& guest = *box->guest;
  std::string text(200000, 'y');
  auto wrote = guest.write_file({.path = "/tmp/a/b", .parents = true}, text);
  ASSERT_OK(wrote);
  auto read = guest.read_file({.path = "/tmp/a/b"});
  ASSERT_OK(read);
  EXPECT_EQ(*read, text);
  EXPECT_EQ(inside(*box, "wc -c < /tmp/a/b"), "200000\n");

  std::vector<std::string> seen;
  auto watch = guest.watch({.path = "/tmp/a"}, [&](const guest::WatchEvent& event) { seen.push_back(event.path); });
  ASSERT_OK(watch);
  EXPECT_EQ(inside(*box, "touch /tmp/a/fresh"), "");
  auto noticed = guest.pump_until([&] { return !seen.empty(); }, kLong);
  ASSERT_OK(noticed);
  EXPECT_NE(seen[0].find("fresh"), std::string::npos) << seen[0];

  auto server =
      guest.start({.argv = {"python3", "-c",
                            "import socket\ns = socket.create_server(('127.0.0.1', 8123))\n"
                            "while True:\n c, _ = s.accept()\n c.sendall(b'hello ' + c.recv(100))\n c.close()"}});
  ASSERT_OK(server);
  std::shared_ptr<guest::Connection> connection;
  ASSERT_TRUE(eventually([&] {
    auto dialled = guest.dial(8123, milliseconds(20000));
    if (dialled) connection = *dialled;
    return dialled.has_value();
  }));
  ASSERT_TRUE(guest.write(connection, "port", milliseconds(20000)));
  auto answer = guest.read(connection, 100, milliseconds(20000));
  ASSERT_OK(answer);
  EXPECT_EQ(*answer, "hello port");
  auto metrics = guest.metrics();
  ASSERT_OK(metrics);
}

TEST_P(Boundaries, ATerminal) {
  auto client = island_->client();
  auto box = launch(client, request());
  ASSERT_OK(box);
  std::string screen;
  auto run = box->guest->begin_run(
      {.argv = {"/bin/sh"}, .stdin_mode = guest::Stdin::pipe, .pty = true, .rows = 33, .cols = 77},
      {.out = [&](std::string_view s) { screen += s; }});
  ASSERT_TRUE(box->guest->write_stdin(run, "stty size; tty; test -t 1 && echo is-a-terminal; exit\n"));
  auto ended = box->guest->finish(run);
  ASSERT_OK(ended);
  EXPECT_NE(screen.find("33 77"), std::string::npos) << screen;
  EXPECT_NE(screen.find("\nis-a-terminal"), std::string::npos) << screen;
}

TEST_P(Boundaries, FilesStayInTheSandboxAndSetuidWorks) {
  auto client = island_->client();
  auto box = launch(client, request()), other = launch(client, request());
  ASSERT_OK(box);
  ASSERT_OK(other);
  EXPECT_EQ(inside(*box, "echo mine > /root/file; cat /root/file"), "mine\n");
  EXPECT_NE(inside(*other, "cat /root/file").find("No such file"), std::string::npos);
  // Another user sees the same ids and modes as everywhere.
  EXPECT_EQ(inside(*box,
                   "touch /tmp/x; chown 1234:99 /tmp/x; chmod 640 /tmp/x; "
                   "python3 -c 'import os; s = os.stat(\"/tmp/x\"); print(s.st_uid, s.st_gid, oct(s.st_mode))'"),
            "1234 99 0o100640\n");
  EXPECT_EQ(inside(*box, "su -s /bin/sh -c 'id -u; cat /tmp/x' nobody 2>&1 | head -1"), "65534\n");
}

TEST_P(Boundaries, TheDiskLimitHolds) {
  auto done = sh("dd if=/dev/zero of=/big bs=1M count=100 2>&1; sync; echo over; wc -c < /big", {"--disk", "32M"});
  EXPECT_EQ(done.code, 0) << done.text();
  EXPECT_NE(done.out.find("over"), std::string::npos);
  std::string last = done.out.substr(done.out.rfind("over\n") + 5);
  EXPECT_LT(std::atol(last.c_str()), 40 << 20) << done.text();
}

TEST_P(Boundaries, TooMuchMemoryEndsAProgramOrTheSandbox) {
  auto client = island_->client();
  auto ask = request();
  ask.limits.memory = GetParam() == BoundaryKind::microvm ? 256 << 20 : 128 << 20;
  auto box = launch(client, ask);
  ASSERT_OK(box);
  auto run = box->guest->begin_run({.argv = {"python3", "-c", "x = bytearray(400 << 20); print(len(x))"}},
                                   {.out = [](std::string_view) {}});
  auto ended = box->guest->finish(run);
  if (ended) {  // the program alone
    EXPECT_NE(ended->code, 0);
    RecordProperty("cell", "ends the program");  // for the table of docs/boundaries.md
    return;
  }
  RecordProperty("cell", "ends the sandbox (`oom`)");
  auto event = end_of(client);
  ASSERT_OK(event);
  EXPECT_EQ(event->id, box->id);
  EXPECT_EQ(event->reason, EndReason::oom);
}

TEST_P(Boundaries, AMachineAsLargeAsItsLimit) {
  if (GetParam() == BoundaryKind::jail) GTEST_SKIP() << "the jail shows the machine's own /proc/meminfo";
  auto done = sh("grep MemTotal /proc/meminfo", {"--memory", "300M"});
  EXPECT_EQ(done.code, 0) << done.text();
  std::istringstream words(done.out);
  std::string label;
  long kib = 0;
  words >> label >> kib;
  EXPECT_LE(kib, 300 << 10) << done.out;
  EXPECT_GT(kib, (GetParam() == BoundaryKind::microvm ? 180 : 200) << 10) << done.out;
}

TEST_P(Boundaries, ATimeLimitEndsIt) {
  auto done = sh("sleep 1000", {"--timeout", "3s"});
  EXPECT_EQ(done.code, 124) << done.text();
}

TEST_P(Boundaries, ManyProcessesEndAtTheLimit) {
  auto client = island_->client();
  auto ask = request();
  ask.limits.pids = 128;
  auto box = launch(client, ask);
  ASSERT_OK(box);
  // Either the next process is refused, or the sandbox ends as a whole; the host does not feel it.
  auto heard =
      hear(*box->guest, {"/bin/sh", "-c", "i=0; while [ $i -lt 400 ]; do sleep 100 & i=$((i+1)); done 2>&1; echo all"});
  auto stats = client.stats(box->id);
  if (stats) {
    EXPECT_LE(stats->processes, 128u);
  }
  RecordProperty("cell", stats ? "`fork` is refused" : "ends the sandbox (`boundary-failure`)");
}

TEST_P(Boundaries, FreezingAndGoingOn) {
  auto client = island_->client();
  auto box = launch(client, request());
  ASSERT_OK(box);
  ASSERT_TRUE(client.freeze(box->id));
  EXPECT_FALSE(client.link(box->id)) << "it is frozen";
  ASSERT_TRUE(client.thaw(box->id));
  EXPECT_EQ(inside(*box, "echo on"), "on\n");
}

TEST_P(Boundaries, KilledItIsGoneWithAllItsProcesses) {
  auto client = island_->client();
  auto box = launch(client, request());
  ASSERT_OK(box);
  auto run = box->guest->start({.argv = {"/bin/sh", "-c", "while :; do :; done"}});
  ASSERT_OK(run);
  auto ended = client.kill(box->id);
  ASSERT_OK(ended);
  EXPECT_EQ(ended->reason, EndReason::killed);
  EXPECT_FALSE(client.stats(box->id));
}

TEST_P(Boundaries, ASecondLinkCutsTheFirst) {
  auto client = island_->client();
  auto box = launch(client, request());
  ASSERT_OK(box);
  std::string early;
  auto run = box->guest->begin_run({.argv = {"/bin/sh", "-c", "echo before; exec sleep 1000"}},
                                   {.out = [&](std::string_view s) { early += s; }});
  auto heard = box->guest->pump_until([&] { return early == "before\n" && run->pid() != 0; }, kLong);
  ASSERT_OK(heard);
  uint32_t pid = run->pid();
  for (int i = 0; i < 3; ++i) {
    auto link = client.link(box->id);
    ASSERT_OK(link);
    auto again = talk(box->id, std::move(*link));
    ASSERT_OK(again);
    auto ping = again->guest->ping("there");
    ASSERT_OK(ping);
    EXPECT_EQ(*ping, "there");
    std::string replayed;
    auto attached = again->guest->begin_attach(pid, 0, {.out = [&](std::string_view s) { replayed += s; }});
    heard = again->guest->pump_until([&] { return replayed == "before\n"; }, kLong);
    ASSERT_OK(heard);
    EXPECT_FALSE(box->guest->ping("old")) << "whoever had it before has it no longer";
    box = std::move(again);
  }
}

// In the middle of much output, and with input half sent: the new generation begins clean.
TEST_P(Boundaries, ALinkIsMadeAnewInTheMiddleOfEverything) {
  auto client = island_->client();
  auto box = launch(client, request());
  ASSERT_OK(box);
  for (int i = 0; i < 3; ++i) {
    size_t got = 0;
    auto noisy = box->guest->begin_run({.argv = {"/bin/sh", "-c", "yes this is much output"}},
                                       {.out = [&](std::string_view s) { got += s.size(); }});
    auto heard = box->guest->pump_until([&] { return got > 100000; }, kLong);
    ASSERT_OK(heard);
    auto sink = box->guest->begin_run({.argv = {"sleep", "1000"}, .stdin_mode = guest::Stdin::pipe}, {});
    box->guest->session().send(sink->channel(), std::string(100000, 'z'));
    (void)box->guest->pump(milliseconds(0));
    auto link = client.link(box->id);
    ASSERT_OK(link);
    auto again = talk(box->id, std::move(*link));
    ASSERT_OK(again);
    EXPECT_EQ(inside(*again, "pkill yes; pkill sleep; echo clean"), "clean\n");
    box = std::move(again);
  }
}

TEST_P(Boundaries, ItOutlivesALauncherThatIsKilled) {
  std::string id;
  uint32_t pid = 0;
  {
    auto client = island_->client();
    auto box = launch(client, request());
    ASSERT_OK(box);
    id = box->id;
    auto started = box->guest->start({.argv = {"/bin/sh", "-c", "echo kept; exec sleep 1000"}});
    ASSERT_OK(started);
    pid = started->pid;
    island_->kill_launcher();
  }
  auto started = island_->start();
  ASSERT_OK(started);
  {
    auto client = island_->client();
    auto all = client.list();
    ASSERT_OK(all);
    ASSERT_EQ(all->size(), 1u);
    EXPECT_EQ((*all)[0].id, id);
    EXPECT_EQ((*all)[0].kind, GetParam());
    auto link = client.link(id);
    ASSERT_OK(link);
    auto again = talk(id, std::move(*link));
    ASSERT_OK(again);
    std::string replayed;
    auto attached = again->guest->begin_attach(pid, 0, {.out = [&](std::string_view s) { replayed += s; }});
    auto heard = again->guest->pump_until([&] { return replayed == "kept\n"; }, kLong);
    ASSERT_OK(heard);
    auto ended = client.kill(id);
    ASSERT_OK(ended);
  }
  island_->expect_unchanged();
}

// Root inside can restart, halt or crash a kernel of its own: that is the end of the sandbox, and of nothing else.
TEST_P(Boundaries, AKernelThatStopsIsTheEndOfItsSandbox) {
  if (!has_kernel()) GTEST_SKIP() << "only uml and microvm have a kernel that root inside can stop";
  auto client = island_->client();
  const bool machine = GetParam() == BoundaryKind::microvm;
  auto call = [](const char* how) { return std::string("syscall(169, 0xfee1dead, 672274793, ") + how + ")"; };
  const std::string restart = call("0x01234567"), halt = call("0xcdef0123"), power_off = call("0x4321fedc");
  const std::string crash = "open(F, '>', '/proc/sysrq-trigger'); syswrite(F, 'c')";
  for (const std::string& how : {restart, machine ? crash : halt, power_off}) {
    auto box = launch(client, request());
    ASSERT_OK(box);
    if (machine) {  // nobody could tell a halted one from one that has nothing to do
      EXPECT_EQ(inside(*box, "perl -e '" + halt + "; print $!'"), "Operation not permitted");
    }
    auto run = box->guest->begin_run({.argv = {"perl", "-e", how}}, {});
    EXPECT_FALSE(box->guest->finish(run));
    auto event = end_of(client);
    ASSERT_OK(event);
    EXPECT_EQ(event->id, box->id);
    EXPECT_EQ(event->reason, EndReason::boundary_failure) << how;
  }
}

// Root inside may do there what root does: namespaces with mounts in them, devices, tunnels.
TEST_P(Boundaries, RootIsRootOfAKernel) {
  if (!has_kernel()) GTEST_SKIP() << "other tests say what the others refuse";
  // netfilter's, which the kernel of a machine has as a module
  const std::string netfilter =
      GetParam() == BoundaryKind::uml ? "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)\n" : "";
  auto done =
      sh("unshare -Urmpf --mount-proc sh -c 'echo user $(id -u) $$'\n"
         "unshare -n true && echo network\n"
         "mknod /tmp/node c 1 3 && echo thrown-away > /tmp/node && echo device\n"
         "exec python3 -c '\n"
         "import fcntl, os, socket, struct\n"
         "tunnel = os.open(\"/dev/net/tun\", os.O_RDWR)\n"
         "fcntl.ioctl(tunnel, 0x400454ca, struct.pack(\"16sH22x\", b\"t0\", 2))\n" +  // TUNSETIFF
         netfilter +
         "print(\"tunnel\")'");
  EXPECT_EQ(done.out, "user 0 1\nnetwork\ndevice\ntunnel\n") << done.text();
}

// A part of the box that cannot be made, or is not as it should be: no sandbox, one sentence, and nothing left.
TEST_P(Boundaries, WithoutAProtectionThereIsNoKernel) {
  if (!has_kernel()) GTEST_SKIP() << "other tests walk through the faults of the others";
  if (!kernel::fault::kCompiledIn) GTEST_SKIP() << "this build has no fault injection";
  for (const char* name : {"make_tap", "unshare_net", "pivot_root", "verify", "execve"}) {
    SCOPED_TRACE(name);
    Island island({.env = {fmt::format("ISOLA_FAULT={}:1:{}", name, ENOMEM)}});
    auto done = island.run({"--boundary", this->name(), "--cold", "--", "true"}, {.limit = std::chrono::seconds(60)});
    EXPECT_FALSE(done.timed_out);
    expect_complaint(done, 125, "");
    island.expect_unchanged(name);
  }
}

// Whoever kills the kernel's program on the host ends that sandbox, and all processes that it had.
TEST_P(Boundaries, AKernelThatIsKilledTakesItsProgramsAlong) {
  if (!has_kernel()) GTEST_SKIP() << "only uml and microvm have a kernel that is one program";
  auto client = island_->client();
  auto box = launch(client, request());
  ASSERT_OK(box);
  auto busy = box->guest->start({.argv = {"/bin/sh", "-c", "while :; do :; done"}});
  ASSERT_OK(busy);
  auto all = client.list();
  ASSERT_OK(all);
  ASSERT_EQ(all->size(), 1u);
  const std::string relay = std::to_string((*all)[0].pid);
  auto children = read_file("/proc/" + relay + "/task/" + relay + "/children");
  ASSERT_OK(children);
  const pid_t kernel = std::atoi(children->c_str());
  ASSERT_GT(kernel, 1) << *children;
  ASSERT_EQ(::kill(kernel, SIGKILL), 0);
  auto event = end_of(client);
  ASSERT_OK(event);
  EXPECT_EQ(event->id, box->id);
  EXPECT_EQ(event->reason, EndReason::boundary_failure);
}

// Every process around and below that kernel, as the host sees it: nobody, without a capability, behind the filter and
// in namespaces of its own; and what it has open is its own.
TEST_P(Boundaries, AKernelsProgramsAreNobodyOnTheHost) {
  if (!has_kernel()) GTEST_SKIP() << "other tests look at the others";
  auto client = island_->client();
  auto box = launch(client, request());
  ASSERT_OK(box);
  auto program = box->guest->start({.argv = {"sleep", "1000"}});
  ASSERT_OK(program);
  size_t seen = 0, kernels = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string folder = entry.path();
    auto groups = read_file(folder + "/cgroup");
    if (!groups || groups->find(box->id) == std::string::npos) continue;
    auto status = read_file(folder + "/status");
    auto words = read_file(folder + "/cmdline");
    if (!status || !words) continue;
    ++seen;
    std::istringstream lines(*status);
    std::set<std::string> checked;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string name;
      fields >> name;
      if (name == "Uid:" || name == "Gid:") {
        for (unsigned id = 0; fields >> id;) EXPECT_GE(id, 65536u) << line;
      } else if (name.starts_with("Cap")) {
        std::string value;
        fields >> value;
        EXPECT_EQ(value.find_first_not_of('0'), std::string::npos) << line;
      } else if (name == "Seccomp:") {
        EXPECT_TRUE(line.ends_with("2")) << line;
      } else {
        continue;
      }
      checked.insert(name);
    }
    EXPECT_EQ(checked.size(), 8u) << *status;  // two kinds of ids, five of capabilities, the filter
    for (const char* name : {"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"}) {
      std::error_code e;
      auto theirs = std::filesystem::read_symlink(folder + "/ns/" + name, e);
      EXPECT_FALSE(e) << folder << " " << name << ": " << e.message();
      EXPECT_NE(theirs, std::filesystem::read_symlink(std::string("/proc/self/ns/") + name)) << name;
    }
    if (!words->starts_with("no-second-boot") && !words->starts_with("/engine/lib/ld-linux")) continue;
    ++kernels;
    for (const auto& open : std::filesystem::directory_iterator(folder + "/fd")) {
      std::error_code e;
      const std::string what = std::filesystem::read_symlink(open.path(), e);
      if (e) continue;  // it was closed meanwhile
      const bool known = what.starts_with("socket:") || what.starts_with("pipe:") || what.starts_with("anon_inode:") ||
                         what == "/dev/net/tun" || what == "/dev/null" || what.starts_with("/memfd:") ||
                         what.starts_with("/ram/") || what.starts_with("/engine/") || what == "/image" ||
                         what == "/disk" || what.starts_with("/run/");
      EXPECT_TRUE(known) << open.path() << " is " << what;
    }
  }
  EXPECT_GE(seen, GetParam() == BoundaryKind::uml ? 3u : 2u) << "the relay, the kernel, and programs of the guest's";
  EXPECT_GE(kernels, 1u);
}

TEST_P(Boundaries, AParkedOneIsClaimed) {
  auto client = island_->client();
  ASSERT_TRUE(client.park(island_->digest(), 1, GetParam()));
  ASSERT_TRUE(eventually([&] { return client.info()->parked == 1; }, std::chrono::seconds(60)));
  auto ask = request();
  if (!has_kernel()) ask.limits.memory = 200 << 20;  // a kernel has its memory when it is parked
  auto box = client.launch(ask);
  ASSERT_OK(box);
  EXPECT_EQ(box->reply.birth, Birth::pooled);
  EXPECT_EQ(box->reply.kind, GetParam());
  auto talking = talk(box->reply.id, std::move(box->link));
  ASSERT_OK(talking);
  EXPECT_EQ(inside(*talking, "echo claimed"), "claimed\n");
  ASSERT_TRUE(client.park(island_->digest(), 0, GetParam()));
}

TEST_P(Boundaries, FoldersAndVolumesAreShown) {
  char folder[] = "/tmp/isola-shown-XXXXXX";
  ASSERT_TRUE(::mkdtemp(folder));
  std::ofstream(std::string(folder) + "/file") << "from the host\n";
  ::chmod(folder, 0755);
  auto done = sh("cat /data/file; touch /data/new 2>/dev/null || echo read-only",
                 {"--mount-ro", std::string(folder) + ":/data"});
  if (has_kernel()) {
    expect_complaint(done, 125, "cannot be shown folders or volumes");
    RecordProperty("cell", "refused: " + done.err);
    std::filesystem::remove_all(folder);
    return;
  }
  EXPECT_EQ(done.out, "from the host\nread-only\n") << done.text();
  std::filesystem::remove_all(folder);
  auto client = island_->client();
  if (auto info = client.info(); !info || !info->disk_enforced) return;
  const std::string volume = new_volume_id();
  ASSERT_TRUE(client.make_volume(volume, 32 << 20));
  for (const char* script : {"echo kept > /vol/file; id -u", "cat /vol/file"}) {
    auto ask = request();
    ask.volumes = {{.id = volume, .target = "/vol"}};
    auto box = launch(client, ask);
    ASSERT_OK(box);
    EXPECT_EQ(inside(*box, script), script[0] == 'e' ? "0\n" : "kept\n");
    ASSERT_TRUE(client.kill(box->id));
  }
  ASSERT_TRUE(client.drop_volume(volume));
}

// What is inside sees a kernel; only the jail's is this machine's.
TEST_P(Boundaries, WhatItLearnsAboutTheHost) {
  utsname host{};
  ASSERT_EQ(::uname(&host), 0);
  auto done =
      sh("uname -r; uname -n; cat /proc/version; cat /proc/cmdline; ls /sys/class/dmi /sys/firmware 2>/dev/null; "
         "cat /proc/1/cmdline | tr '\\0' ' '; cat /proc/mounts");
  EXPECT_NE(done.out.find("\nisola\n"), std::string::npos) << "its own name, not the host's: " << done.out;
  if (GetParam() == BoundaryKind::jail) {
    RecordProperty("cell", "no: it is that kernel");
  } else {
    EXPECT_EQ(done.out.find(host.release), std::string::npos) << done.out;
  }
  EXPECT_EQ(done.out.find(island_->data()), std::string::npos) << "no path of the host: " << done.out;
}

// A program without privileges inside must not pass for the host, nor for process 1.
TEST_P(Boundaries, NobodyReachesTheLinkOfProcessOne) {
  auto done =
      sh("python3 -c '\n"
         "import os\n"
         "for n in range(20):\n"
         "  path = \"/proc/1/fd/\" + str(n)\n"
         "  for mode in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):\n"
         "    try: os.open(path, mode | os.O_NONBLOCK)\n"
         "    except OSError: continue\n"
         "    if os.readlink(path) != \"/dev/null\": print(\"opened\", os.readlink(path))\n"
         "for path in (\"/proc/1/mem\",):\n"
         "  try: open(path, \"rb\").read(1); print(\"read\", path)\n"
         "  except OSError: pass\n"
         "print(\"tried\")'",
         {"--user", "nobody"});
  EXPECT_EQ(done.out, "tried\n") << done.text();
}

TEST_P(Boundaries, WithoutAPolicyThereIsNoNetwork) {
  auto done =
      sh("python3 -c '\n"
         "import socket\n"
         "for host in (\"203.0.113.10\", \"10.255.255.254\", \"2001:db8::1\", \"169.254.169.254\"):\n"
         "  try: socket.create_connection((host, 80), 20); print(\"connected\")\n"
         "  except OSError as e: print(type(e).__name__)\n"
         "try: socket.getaddrinfo(\"a.example\", 80); print(\"found\")\n"
         "except OSError as e: print(type(e).__name__)'");
  EXPECT_EQ(done.out.find("connected"), std::string::npos) << done.text();
  EXPECT_EQ(done.out.find("found"), std::string::npos) << done.text();
  EXPECT_EQ(done.out.find("TimeoutError"), std::string::npos) << "refused at once: " << done.text();
}

// The launcher is started by this process, and so lives in its namespace.
class BoundariesNet : public Boundaries {
 protected:
  void SetUp() override {
    NEEDS_TEMPLATE("minimal");
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    home_ = gate::own_netns();
    auto cable = gate::Cable::make();
    ASSERT_OK(cable);
    cable_ = std::move(*cable);
    ASSERT_EQ(::setns(cable_->gate.get(), CLONE_NEWNET), 0);
    auto outside = gate::Outside::open(cable_->outside);
    ASSERT_OK(outside);
    outside_ = std::move(*outside);
    outside_->set("a.example", {"203.0.113.10"});
    outside_->set("b.example", {"203.0.113.11"});
    begin({.env = {std::string("ISOLA_NAME_SERVERS=") + gate::kNameServer + ":53"}});
  }
  void TearDown() override {
    island_.reset();
    outside_.reset();
    if (home_) {
      ASSERT_EQ(::setns(home_.get(), CLONE_NEWNET), 0);
    }
  }
  static std::string script(const std::string& python) {
    return "echo nameserver 10.255.255.254 > /etc/resolv.conf; exec python3 -c '\n"
           "import socket\n"
           "def greet(host, port=22):\n"
           "  try:\n"
           "    with socket.create_connection((host, port), 20) as s: return s.recv(100).decode().strip()\n"
           "  except OSError as e: return type(e).__name__\n" +
           python + "'";
  }
  Fd home_;
  std::optional<gate::Cable> cable_;
  std::unique_ptr<gate::Outside> outside_;
};

TEST_P(BoundariesNet, TheGateDecides) {
  auto ask = script("print(greet(\"a.example\"), greet(\"b.example\"), greet(\"203.0.113.10\"))");
  auto done = sh(ask, {"--net", "allow a.example:22"});
  EXPECT_EQ(done.out, "hello from 203.0.113.10 gaierror ConnectionResetError\n") << done.text();
  done = sh(ask, {"--net", "all"});
  EXPECT_EQ(done.out, "hello from 203.0.113.10 hello from 203.0.113.11 hello from 203.0.113.10\n") << done.text();
}

TEST_P(BoundariesNet, ALauncherThatTakesOverFindsTheNetwork) {
  std::string id;
  {
    auto client = island_->client();
    auto box = launch(client, request());
    ASSERT_OK(box);
    id = box->id;
    ASSERT_TRUE(client.set_policy({.id = id, .policy = "allow a.example:22"}));
    EXPECT_EQ(inside(*box, script("print(greet(\"a.example\"))")), "hello from 203.0.113.10\n");
    island_->kill_launcher();
  }
  auto started = island_->start();
  ASSERT_OK(started);
  auto client = island_->client();
  auto link = client.link(id);
  ASSERT_OK(link);
  auto again = talk(id, std::move(*link));
  ASSERT_OK(again);
  ASSERT_TRUE(client.set_policy({.id = id, .policy = "allow b.example:22"}));
  EXPECT_EQ(inside(*again, script("print(greet(\"a.example\"), greet(\"b.example\"))")),
            "gaierror hello from 203.0.113.11\n");
  ASSERT_TRUE(client.kill(id));
}

const auto kAll = ::testing::Values(BoundaryKind::jail, BoundaryKind::gvisor, BoundaryKind::uml, BoundaryKind::microvm);
INSTANTIATE_TEST_SUITE_P(Each, Boundaries, kAll, [](const auto& param) { return std::string(to_string(param.param)); });
INSTANTIATE_TEST_SUITE_P(Each, BoundariesNet, kAll,
                         [](const auto& param) { return std::string(to_string(param.param)); });

// ---- hostile programs -----------------------------------------------------------------------------------------------

// Root of a Linux kernel of its own may do there what it likes. These are about what lies outside of that kernel.
const std::set<std::string> kOutsideOfKernel = {"host-file-plain",
                                                "host-file-init-root",
                                                "host-file-any-root",
                                                "host-file-any-cwd",
                                                "host-file-any-fd",
                                                "leaked-fds",
                                                "cwd-outside",
                                                "open-by-handle",
                                                "reopen-handle",
                                                "overlay-layers",
                                                "link-socket",
                                                "link-frames",
                                                "reattach-kill",
                                                "reattach-queue",
                                                "host-pids",
                                                "abstract-socket",
                                                "parent-namespace",
                                                "tcp-out",
                                                "tcp6-out",
                                                "udp-out",
                                                "metadata-out",
                                                "gate-port",
                                                "kexec",
                                                "module-load",
                                                "io-ports",
                                                "sysrq",
                                                "socket-vsock",
                                                "daemon-outlives",
                                                "odd-names",
                                                "planted-links",
                                                "symlink-race",
                                                "leak-mounts",
                                                "leak-cgroup",
                                                "leak-hostname",
                                                "leak-environment"};

TEST(BoundaryHostile, InsideGvisor) {
  NEEDS_TEMPLATE("minimal");
  Island island;
  {
    auto client = island.client();
    auto info = client.info();
    ASSERT_OK(info);
    for (const auto& offer : info->boundaries)
      if (offer.kind == BoundaryKind::gvisor && !offer.offered) GTEST_SKIP() << "boundary gvisor: " << offer.missing;
  }
  auto listed = run_program({ISOLA_HOSTILE, "list", "--json"});
  auto programs = nlohmann::json::parse(listed.out, nullptr, false);
  ASSERT_TRUE(programs.is_array()) << listed.text();
  std::string names;
  size_t count = 0;
  for (const auto& program : programs) {
    std::string name = program.at("name");
    // Limits, neighbours and an outside are other tests' affair.
    if (!program.at("needs").empty() || !program.at("allowed_inside").empty()) continue;
    names += " " + name;
    ++count;
  }
  ASSERT_GT(count, 80u);
  auto done =
      island.run({"--boundary", "gvisor", "--mount-ro", std::string(ISOLA_HOSTILE) + ":/hostile", "--", "/bin/sh", "-c",
                  "for n in" + names + "; do timeout 30 /hostile $n >/tmp/out 2>&1; echo \"$n $?\"; done"},
                 {.limit = std::chrono::seconds(600)});
  EXPECT_EQ(done.code, 0) << done.text();
  std::istringstream lines(done.out);
  size_t tried = 0;
  for (std::string name, code; lines >> name >> code; ++tried)
    EXPECT_TRUE(code == "10" || code == "77") << name << " ended with " << code << ": neither contained nor untried";
  EXPECT_EQ(tried, count);
}

// Those that a kernel of a virtual machine allows, with effect inside it alone: it has modules, ports of its own and
// a way to start another kernel.
const std::set<std::string> kAllowedInMicrovm = {"kexec", "module-load", "io-ports", "sysrq", "socket-vsock"};

class HostileKernel : public ::testing::TestWithParam<BoundaryKind> {};

// The programs cannot be shown to such a sandbox: they are files of its own.
TEST_P(HostileKernel, IsContained) {
  NEEDS_TEMPLATE("minimal");
  const bool machine = GetParam() == BoundaryKind::microvm;
  Island island;
  {
    auto client = island.client();
    auto info = client.info();
    ASSERT_OK(info);
    for (const auto& offer : info->boundaries) {
      if (offer.kind != GetParam()) continue;
      if (!offer.offered) GTEST_SKIP() << "boundary " << to_string(GetParam()) << ": " << offer.missing;
      if (machine && !offer.engine.accelerated && count("hostile programs on microvm", 0, 1) == 0)
        GTEST_SKIP() << "boundary microvm without KVM: only in the full run (ISOLA_TEST_FULL)";
    }
    launcher::LaunchRequest request{.digest = island.digest()};
    request.boundary.wish = wish_for(GetParam());
    auto box = launch(client, request);
    ASSERT_OK(box);
    auto program = read_file(ISOLA_HOSTILE, 64 << 20);
    ASSERT_OK(program);
    ASSERT_TRUE(box->guest->write_file({.path = "/hostile", .mode = 0755}, *program));
    auto listed = run_program({ISOLA_HOSTILE, "list", "--json"});
    auto programs = nlohmann::json::parse(listed.out, nullptr, false);
    ASSERT_TRUE(programs.is_array()) << listed.text();
    std::string outside, others;
    size_t tries = 0, known = 0;
    for (const auto& one : programs) {
      const std::string name = one.at("name");
      if (!one.at("needs").empty()) continue;
      known += kOutsideOfKernel.contains(name) ? 1 : 0;
      if (kOutsideOfKernel.contains(name) && !(machine && kAllowedInMicrovm.contains(name))) {
        outside += " " + name;
        ++tries;
      } else if (name != "reboot" && !name.ends_with("-init") && !kAllowedInMicrovm.contains(name)) {
        others += " " + name;
      }
    }
    EXPECT_EQ(known, kOutsideOfKernel.size()) << "one was renamed";
    // Each must be contained, or say that it could not try.
    auto done = hear(
        *box->guest,
        {"/bin/sh", "-c", "for n in" + outside + "; do timeout 30 /hostile $n >/tmp/out 2>&1; echo \"$n $?\"; done"});
    ASSERT_OK(done.exit);
    std::istringstream lines(done.out);
    size_t tried = 0;
    for (std::string name, code; lines >> name >> code; ++tried)
      EXPECT_TRUE(code == "10" || code == "77") << name << " ended with " << code << ": neither contained nor untried";
    EXPECT_EQ(tried, tries);
    // The others do what they like, each where it can spoil the least of its own sandbox; the host does not feel it,
    // and the sandbox still answers.
    done = hear(*box->guest, {"/bin/sh", "-c",
                              "for n in" + others +
                                  "; do timeout -k 1 30 unshare -m --propagation private /hostile $n >/dev/null 2>&1; "
                                  "done; echo finished"});
    EXPECT_TRUE(done.out.ends_with("finished\n")) << done.out;
    ASSERT_TRUE(client.kill(box->id));
  }
  island.expect_unchanged();
}
INSTANTIATE_TEST_SUITE_P(Each, HostileKernel, ::testing::Values(BoundaryKind::uml, BoundaryKind::microvm),
                         [](const auto& param) { return std::string(to_string(param.param)); });

TEST(BoundaryChoice, WhatIsMissingIsSaid) {
  NEEDS_TEMPLATE("minimal");
  Island island({.env = {"ISOLA_RUNSC=none", "ISOLA_UML=none", "ISOLA_MICROVM=none"}});
  expect_complaint(island.run({"--boundary", "microvm", "--", "true"}), 125, "no QEMU with a kernel for it");
  expect_complaint(island.run({"--boundary", "gvisor", "--", "true"}), 125, "runsc is not installed");
  expect_complaint(island.run({"--boundary", "uml", "--", "true"}), 125, "no user-mode Linux kernel");
  expect_complaint(island.run({"--boundary", "moat", "--", "true"}), 125, "--boundary must be");
  EXPECT_EQ(island.run({"--boundary", "strongest", "--", "true"}).code, 0) << "the jail is the strongest there is";
  EXPECT_EQ(island.run({"--boundary", "auto", "--", "true"}).code, 0);
}

// An engine that does not come up: an error that says what it said, and nothing left.
TEST(BoundaryChoice, AnEngineThatFailsSaysWhy) {
  NEEDS_TEMPLATE("minimal");
  char fake[] = "/tmp/isola-fake-runsc-XXXXXX";
  Fd file(::mkstemp(fake));
  // It tells a version and flags like a real one, and then cannot run; there is no shell in the box either.
  ASSERT_TRUE(write_all(file.get(),
                        "#!/bin/sh\ncase $1 in --version) echo 'runsc version 0.0~20990101.0';; "
                        "*) echo 'which platform to use: systrap';; esac\n"));
  ::fchmod(file.get(), 0755);
  file.reset();
  {
    Island island({.env = {std::string("ISOLA_RUNSC=") + fake, "ISOLA_UML=none"}});
    expect_complaint(island.run({"--boundary", "gvisor", "--", "true"}), 125, "before its guest spoke");
  }
  ::unlink(fake);
}

}  // namespace
}  // namespace isola::e2e
