// `isola run` behaves like the command itself: exit codes, signals, input, output, users, limits.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "e2e/island.h"

namespace isola::e2e {
namespace {

class RunTest : public SharedIsland {};

std::string noise(size_t size) {
  std::string bytes(size, '\0');
  uint64_t x = 0x9e3779b97f4a7c15;
  for (auto& c : bytes) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    c = static_cast<char>(x >> 24);
  }
  return bytes;
}

TEST_F(RunTest, ExitCodes) {
  std::vector<int> codes = {0, 1, 2, 3, 42, 124, 125, 126, 127, 128, 137, 254, 255};
  if (full_suite()) {
    codes.clear();
    for (int code = 0; code < 256; ++code) codes.push_back(code);
  } else {
    std::printf("reduced: exit codes %zu instead of 256 (ISOLA_TEST_FULL=1 does all)\n", codes.size());
  }
  for (int code : codes) {
    auto done = island().sh(fmt::format("exit {}", code));
    EXPECT_EQ(done.code, code) << done.text();
    EXPECT_EQ(done.err, "") << code;
  }
}

TEST_F(RunTest, SignalsBecome128PlusTheirNumber) {
  for (int signal : {SIGHUP, SIGINT, SIGQUIT, SIGABRT, SIGUSR1, SIGSEGV, SIGPIPE, SIGTERM})
    EXPECT_EQ(island().sh(fmt::format("kill -{} $$", signal)).code, 128 + signal);
}

TEST_F(RunTest, CommandWithoutDashes) {
  EXPECT_EQ(island().run({"sh", "-c", "exit 7"}).code, 7);
  EXPECT_EQ(island().run({"python3", "-c", "print(6*7)"}).out, "42\n");
  // A later -- belongs to the command, and so do words that look like options of ours.
  EXPECT_EQ(island().run({"echo", "a", "--", "b"}).out, "a -- b\n");
  EXPECT_EQ(island().run({"--", "echo", "--", "--user", "x"}).out, "-- --user x\n");
  EXPECT_EQ(island()
                .run({"-e", "A=1", "--cwd=/tmp", "-uuser", "sh", "-c", "echo $A $PWD $(id -un) $0 $1", "--help", "-t"})
                .out,
            "1 /tmp user --help -t\n");
}

TEST_F(RunTest, InputToEndOfFile) {
  EXPECT_EQ(island().run({"--", "cat"}, {.input = "one\ntwo"}).out, "one\ntwo");
  EXPECT_EQ(island().run({"--", "wc", "-c"}).out, "0\n");
  // Input that nobody reads does not keep the command.
  auto done = island().run({"--", "true"}, {.input = noise(4 << 20), .keep_input_open = true});
  EXPECT_EQ(done.code, 0) << done.text();
}

TEST_F(RunTest, LargeInputAndOutputAreByteExact) {
  std::string bytes = noise(static_cast<size_t>(count("MiB through cat", 16, 64)) << 20);
  auto done = island().run({"--", "cat"}, {.input = bytes});
  EXPECT_EQ(done.code, 0);
  EXPECT_EQ(done.out.size(), bytes.size());
  EXPECT_TRUE(done.out == bytes);
  EXPECT_EQ(done.err, "");
}

TEST_F(RunTest, OutputAndErrorStayApart) {
  auto done = island().sh("echo out; echo err >&2; printf '\\000\\377\\r\\n'");
  EXPECT_EQ(done.out, std::string("out\n\0\377\r\n", 8));
  EXPECT_EQ(done.err, "err\n");
}

// Peak of a process that lives, in MiB.
uint64_t most_memory(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) >> 10;
  return 0;
}

TEST_F(RunTest, AJsonResultIsBoundedAndTheCommandRunsToItsEnd) {
  constexpr uint64_t kKept = 16 << 20, kFlood = 320 << 20;
  std::string flood = fmt::format("echo begin; head -c {} /dev/zero | tr '\\0' x; echo end >&2; exit 3", kFlood - 6);
  Program program(island().run_words({"--json", "--", "sh", "-c", flood}), island().with_data({}));
  // It stands with the whole result in its hands: a pipe takes only a part of it.
  ASSERT_TRUE(program.out_has("{")) << program.so_far().text();
  uint64_t mebibytes = most_memory(program.pid());
  EXPECT_GT(mebibytes, 0u);
#ifdef __SANITIZE_ADDRESS__
  constexpr uint64_t kKeptBack = 256;  // it hands nothing out again before so much was freed
#else
  constexpr uint64_t kKeptBack = 0;
#endif
  EXPECT_LT(mebibytes, 480u + kKeptBack) << "a flood of 320 MiB was kept";
  auto done = program.finish();
  EXPECT_EQ(done.code, 3) << done.text();
  auto result = nlohmann::json::parse(done.out, nullptr, false);
  ASSERT_TRUE(result.is_object());
  EXPECT_EQ(result["stdout"].get<std::string>().size(), kKept);
  EXPECT_TRUE(result["stdout"].get<std::string>().starts_with("begin\nxxx"));
  uint64_t missing = result.value("stdout_dropped_bytes", uint64_t{0}) + result.value("lost_bytes", uint64_t{0});
  EXPECT_EQ(missing, kFlood - kKept);
  EXPECT_TRUE(result.contains("stdout_dropped_bytes"));
  EXPECT_EQ(result["stderr"], "end\n");
  EXPECT_FALSE(result.contains("stderr_dropped_bytes"));
  EXPECT_EQ(result["exit_code"], 3);
}

// Of the only sandbox that runs: its command waits, or it is over.
bool stands_still(launcher::Client client) {
  auto all = client.list();
  std::string id;
  for (const auto& one : all.value_or(std::vector<launcher::SandboxSummary>()))
    if (!one.parked) id = one.id;
  uint64_t before = 0;
  int same = 0;
  return eventually([&] {
    auto stats = client.stats(id);
    if (!stats) return true;
    same = stats->cpu_usec == before ? same + 1 : 0;
    before = stats->cpu_usec;
    return same == 30;
  });
}

// As through a pipe: it waits in its write, however far it could have gone on.
TEST_F(RunTest, ALateReaderGetsEveryByte) {
  constexpr size_t kFlood = size_t{64} << 20;
  std::string flood = fmt::format("echo begin; head -c {} /dev/zero | tr '\\0' x; echo end; exit 3", kFlood);
  Program program(island().run_words({"--", "sh", "-c", flood}), island().with_data({}));
  ASSERT_TRUE(program.out_has("begin")) << program.so_far().text();
  ASSERT_TRUE(stands_still(island().client()));
  auto done = program.finish();
  EXPECT_EQ(done.code, 3) << done.err;
  EXPECT_EQ(done.err, "");
  EXPECT_EQ(done.out.size(), 6 + kFlood + 4);
  EXPECT_TRUE(done.out.ends_with("xxend\n"));
}

TEST_F(RunTest, ALateReaderGetsEveryByteOfASandboxWhoseDiskIsFull) {
  constexpr size_t kFlood = size_t{4} << 20;
  std::string flood = fmt::format(
      "cat /dev/zero >/fill 2>/dev/null; echo begin; head -c {} /dev/zero | tr '\\0' x; echo end; exit 3", kFlood);
  Program program(island().run_words({"--disk", "1M", "--", "sh", "-c", flood}), island().with_data({}));
  ASSERT_TRUE(program.out_has("begin")) << program.so_far().text();
  ASSERT_TRUE(stands_still(island().client()));
  auto done = program.finish();
  EXPECT_EQ(done.code, 3) << done.err;
  EXPECT_EQ(done.err, "");
  EXPECT_EQ(done.out.size(), 6 + kFlood + 4);
}

// As if `yes` itself had died of SIGPIPE.
TEST_F(RunTest, ClosedOutputEndsTheCommand) {
  for (const char* words : {"yes", "sh -c 'yes >&2' 2>&1 >/dev/null"}) {
    std::string command = fmt::format("{} run --template minimal -- {}", kIsola, words);
    auto done = run_program({"bash", "-c", command + " | head -1; exit ${PIPESTATUS[0]}"}, island().with_data({}));
    EXPECT_EQ(done.out, "y\n") << done.text();
    EXPECT_FALSE(done.timed_out);
    EXPECT_EQ(done.code, 128 + SIGPIPE);
    EXPECT_EQ(done.err, "");
  }
  // What cannot be written for another reason is said.
  auto full = run_program({"bash", "-c", fmt::format("{} run --template minimal -- yes >/dev/full", kIsola)},
                          island().with_data({}));
  expect_complaint(full, 125, "cannot write the output");
}

TEST_F(RunTest, EnvironmentFolderAndUser) {
  ProgramOptions secret{.env = {"ISOLA_TEST_SECRET=leak"}};
  auto done = island().run({"--env", "A=1", "-e", "B=two words", "-e", "C=", "--", "env"}, secret);
  EXPECT_NE(done.out.find("A=1\n"), std::string::npos) << done.text();
  EXPECT_NE(done.out.find("B=two words\n"), std::string::npos);
  EXPECT_NE(done.out.find("C=\n"), std::string::npos);
  EXPECT_EQ(done.out.find("ISOLA_"), std::string::npos) << done.text();
  EXPECT_EQ(island().run({"-w", "/usr", "--", "pwd"}).out, "/usr\n");
  EXPECT_EQ(island().run({"-u", "user", "--", "sh", "-c", "id -un; pwd; echo $HOME $USER"}).out,
            "user\n/home/user\n/home/user user\n");
  EXPECT_EQ(island().run({"-u", "1234", "--", "id", "-u"}).out, "1234\n");
  EXPECT_EQ(island().run({"-u", "1234:77", "--", "sh", "-c", "id -u; id -g"}).out, "1234\n77\n");
  EXPECT_EQ(island().run({"-u", "user", "sudo", "-n", "id", "-u"}).out, "0\n");
  // Each of them one sentence.
  expect_complaint(island().run({"-u", "nobody-knows", "--", "id"}), 125, "nobody-knows");
  expect_complaint(island().run({"-w", "/no/such", "--", "id"}), 125, "/no/such");
}

TEST_F(RunTest, TheLocaleIsOneFile) {
  auto done =
      island().sh("mv /usr/lib/locale/C.utf8 /tmp && LC_ALL=C.UTF-8 bash -c '[[ \xc3\xa9 == ? ]] && echo one letter'");
  EXPECT_EQ(done.out, "one letter\n") << done.text();
}

TEST_F(RunTest, ShownFoldersAreReadOnly) {
  std::string folder = island().data() + "/shown";
  std::filesystem::create_directories(folder + "/sub");
  std::ofstream(folder + "/sub/file") << "content";
  ::chmod(folder.c_str(), 0755), ::chmod(island().data().c_str(), 0755);
  auto done = island().run({"--mount-ro", folder + ":/mnt", "--", "sh", "-c",
                            "cat /mnt/sub/file; echo x > /mnt/sub/file; echo x > /mnt/new; rm /mnt/sub/file; grep ' "
                            "/mnt ' /proc/self/mountinfo"});
  EXPECT_TRUE(done.out.starts_with("content")) << done.text();
  EXPECT_NE(done.out.find(" ro,nosuid,nodev"), std::string::npos) << done.text();
  std::ifstream back(folder + "/sub/file");
  std::string text;
  back >> text;
  EXPECT_EQ(text, "content");
  EXPECT_FALSE(std::filesystem::exists(folder + "/new"));
  // A single file, and two at once.
  done = island().run({"--mount-ro", folder + "/sub/file:/etc/hostname", "--mount-ro", folder + ":/srv", "--", "cat",
                       "/etc/hostname", "/srv/sub/file"});
  EXPECT_EQ(done.out, "contentcontent") << done.text();
  // A set-uid program that the host shows gives nothing.
  std::filesystem::copy_file("/usr/bin/id", folder + "/id");
  ::chmod((folder + "/id").c_str(), 04755);
  done = island().run({"-u", "user", "--mount-ro", folder + ":/mnt", "--", "/mnt/id", "-u"});
  EXPECT_EQ(done.out, "1000\n") << done.text();
}

TEST_F(RunTest, AShownLinkIsNamed) {
  const std::string link = island().data() + "/shown-link";
  ASSERT_EQ(::symlink("/usr", link.c_str()), 0);
  expect_complaint(island().run({"--mount-ro", link + ":/mnt", "--", "true"}), 125, link + ": that is a symbolic link");
}

// Read-only says nothing about them: behind a socket or a pipe in a folder of the host sits a program of the host.
TEST_F(RunTest, SocketsAndPipesOfShownFoldersReachNobody) {
  std::string folder = island().data() + "/doors";
  std::filesystem::create_directories(folder);
  sockaddr_un at{.sun_family = AF_UNIX, .sun_path = {}};
  std::snprintf(at.sun_path, sizeof at.sun_path, "%s/socket", folder.c_str());
  Fd door(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(door.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  ASSERT_EQ(::listen(door.get(), 1), 0);
  ASSERT_EQ(::mkfifo((folder + "/pipe").c_str(), 0666), 0);
  for (const char* name : {"/socket", "/pipe"}) ::chmod((folder + name).c_str(), 0666);
  Fd pipe(::open((folder + "/pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(pipe);
  const std::vector<std::string> knock = {"python3", "-c",
                                          "import os, socket, sys\n"
                                          "s = socket.socket(socket.AF_UNIX)\n"
                                          "try: s.connect(sys.argv[1] + '/socket'); print('connected')\n"
                                          "except OSError as error: print(type(error).__name__)\n"
                                          "p = os.open(sys.argv[1] + '/pipe', os.O_RDWR | os.O_NONBLOCK)\n"
                                          "print(os.write(p, b'hello'))"};
  auto words = [&](std::vector<std::string> before, const std::string& where) {
    before.insert(before.end(), knock.begin(), knock.end());
    before.push_back(where);
    return before;
  };
  char heard[16];
  auto done = island().run(words({"--mount-ro", folder + ":/mnt", "--"}, "/mnt"));
  EXPECT_TRUE(done.out.starts_with("ConnectionRefusedError")) << done.text();
  EXPECT_LE(::read(pipe.get(), heard, sizeof heard), 0) << "heard through the pipe";
  // Without a sandbox both work.
  Program outside(words({}, folder), {});
  auto free = outside.finish();
  EXPECT_EQ(free.out, "connected\n5\n") << free.text();
  // Neither can be shown by itself.
  for (const char* name : {"/socket", "/pipe"})
    EXPECT_NE(island().run({"--mount-ro", folder + name + ":/etc/hostname", "--", "true"}).code, 0) << name;
}

TEST_F(RunTest, SignalsReachTheGroup) {
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    Program program(island().run_words(
                        {"--", "sh", "-c",
                         fmt::format("trap 'echo got; exit 3' {}; echo ready; while :; do sleep 0.05; done", signal)}),
                    island().with_data({.keep_input_open = true}));
    ASSERT_TRUE(program.out_has("ready")) << program.so_far().text();
    program.signal(signal);
    auto done = program.finish();
    EXPECT_EQ(done.code, 3) << signal << "\n" << done.text();
    EXPECT_NE(done.out.find("got"), std::string::npos);
  }
}

// Not a shell: between its last echo and the exec behind it, a shell may swallow an interrupt.
constexpr char kWaits[] =
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nprint('ready', flush=True)\nsignal.pause()";

TEST_F(RunTest, UnhandledInterruptGives130) {
  Program program(island().run_words({"--", "python3", "-c", kWaits}), island().with_data({.keep_input_open = true}));
  ASSERT_TRUE(program.out_has("ready"));
  program.signal(SIGINT);
  EXPECT_EQ(program.finish().code, 130);
}

// Pending before `isola` even begins: still meant for the command.
TEST_F(RunTest, ASignalBeforeTheCommandRunsReachesIt) {
  auto done = run_program(island().run_words({"--", "sleep", "1000"}),
                          island().with_data({.before_exec =
                                                  [] {
                                                    sigset_t term;
                                                    ::sigemptyset(&term);
                                                    ::sigaddset(&term, SIGTERM);
                                                    ::sigprocmask(SIG_BLOCK, &term, nullptr);
                                                    ::raise(SIGTERM);
                                                  },
                                              .keep_input_open = true}));
  EXPECT_FALSE(done.timed_out);
  EXPECT_EQ(done.code, 128 + SIGTERM) << done.text();
}

// Whatever is opened first would stand where a closed one was: the connection to the launcher, for one.
TEST_F(RunTest, DescriptorsThatTheCallerClosedStayNobodys) {
  for (int closed : {0, 1, 2}) {
    ProgramOptions options{.input = "in\n", .limit = std::chrono::seconds(20)};
    options.before_exec = [closed] { ::close(closed); };
    auto done = run_program(island().run_words({"--", "sh", "-c", "cat; echo out; echo err >&2; exit 3"}),
                            island().with_data(options));
    EXPECT_EQ(done.code, 3) << closed << "\n" << done.text();
    EXPECT_EQ(done.out, closed == 1 ? "" : closed == 0 ? "out\n" : "in\nout\n") << closed;
    EXPECT_EQ(done.err, closed == 2 ? "" : "err\n") << closed;
  }
}

TEST_F(RunTest, WhatIsWrittenToAClosedDescriptorIsNoRequest) {
  auto client = island().client();
  auto neighbour = launch(client, {.digest = island().digest()});
  ASSERT_OK(neighbour);
  const pid_t before = island().launcher_pid();
  // As the launcher would be asked to end everything: tag, operation, argument.
  const std::string frame = fmt::format("\\007\\000\\000\\000\\{:03o}\\001", static_cast<int>(launcher::Op::shutdown));
  for (int closed : {1, 2}) {
    ProgramOptions options{.limit = std::chrono::seconds(20)};
    options.before_exec = [closed] { ::close(closed); };
    auto done = run_program(island().run_words({"--", "sh", "-c", fmt::format("printf '{}' >&{}", frame, closed)}),
                            island().with_data(options));
    EXPECT_EQ(done.code, 0) << done.text();
    EXPECT_EQ(hear(*neighbour->guest, {"echo", "alive"}).out, "alive\n");
    EXPECT_EQ(island().launcher_pid(), before);
  }
  EXPECT_TRUE(client.kill(neighbour->id));
}

TEST_F(RunTest, KilledRunLeavesNothing) {
  {
    Program program(island().run_words({"--", "sh", "-c", "echo ready; sleep 1000"}),
                    island().with_data({.keep_input_open = true}));
    ASSERT_TRUE(program.out_has("ready"));
    program.signal(SIGKILL);
    EXPECT_EQ(program.finish().signal, SIGKILL);
  }
  auto client = island().client();
  EXPECT_TRUE(eventually([&] {
    auto info = client.info();
    return info && info->live == 0;
  }));
}

// A pipe that its reader leaves full.
struct StalledPipe {
  StalledPipe() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) < 0) std::abort();
    read = Fd(fds[0]), write = Fd(fds[1]);
  }
  ProgramOptions as_output() const {
    ProgramOptions options{.limit = std::chrono::seconds(20), .keep_input_open = true};
    options.before_exec = [fd = write.get()] { ::dup2(fd, 1); };
    return options;
  }
  bool is_full() const {
    pollfd room{write.get(), POLLOUT, 0};
    return ::poll(&room, 1, 0) == 0;
  }
  Fd read, write;
};

// As if the command wrote into that pipe itself: what stands in its way does not keep it from ending.
TEST_F(RunTest, AReaderThatTakesNothingKeepsNobody) {
  {
    StalledPipe pipe;
    Program program(island().run_words({"--", "yes"}), island().with_data(pipe.as_output()));
    ASSERT_TRUE(eventually([&] { return pipe.is_full(); }));
    ASSERT_TRUE(stands_still(island().client()));
    program.signal(SIGTERM);
    auto done = program.finish();
    EXPECT_FALSE(done.timed_out);
    EXPECT_EQ(done.code, 128 + SIGTERM) << done.text();
    EXPECT_EQ(done.err, "");
  }
  {
    StalledPipe pipe;
    Program program(island().run_words({"--timeout", "1s", "--", "yes"}), island().with_data(pipe.as_output()));
    auto done = program.finish();
    EXPECT_FALSE(done.timed_out);
    EXPECT_TRUE(pipe.is_full());
    expect_complaint(done, 124, "took longer than 1s");
  }
}

// A terminal takes what it has room for and no more, however much it was given at once.
TEST_F(RunTest, ATerminalThatStandsStillKeepsNobody) {
  Fd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(master);
  ASSERT_EQ(::grantpt(master.get()), 0);
  ASSERT_EQ(::unlockpt(master.get()), 0);
  char name[64];
  ASSERT_EQ(::ptsname_r(master.get(), name, sizeof name), 0);
  Fd screen(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(screen);
  ProgramOptions options{.limit = std::chrono::seconds(20), .keep_input_open = true};
  options.before_exec = [fd = screen.get()] { ::dup2(fd, 1); };
  Program program(island().run_words({"--", "yes"}), island().with_data(options));
  pollfd begun{master.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&begun, 1, 20'000), 1);
  ASSERT_TRUE(stands_still(island().client()));
  program.signal(SIGTERM);
  auto done = program.finish();
  EXPECT_FALSE(done.timed_out);
  EXPECT_EQ(done.code, 128 + SIGTERM) << done.text();
}

TEST_F(RunTest, TheThirdInterruptLeaves) {
  Program program(island().run_words({"--", "python3", "-c",
                                      "import signal\n"
                                      "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
                                      "print('got 0', flush=True)\n"
                                      "for n in range(1, 10):\n"
                                      "    signal.sigwait({signal.SIGINT})\n"
                                      "    print('got', n, flush=True)"}),
                  island().with_data({.limit = std::chrono::seconds(20), .keep_input_open = true}));
  for (const char* heard : {"got 0", "got 1", "got 2"}) {
    ASSERT_TRUE(program.out_has(heard)) << program.so_far().text();
    program.signal(SIGINT);
  }
  auto done = program.finish();
  EXPECT_FALSE(done.timed_out);
  EXPECT_EQ(done.code, 128 + SIGINT);
  EXPECT_EQ(done.err, "");
}

TEST_F(RunTest, TimeLimit) {
  auto done = island().run({"--timeout", "300ms", "--", "sleep", "1000"});
  expect_complaint(done, 124, "took longer than 300ms");
  EXPECT_EQ(island().run({"--timeout", "1m", "--", "true"}).code, 0);
}

TEST_F(RunTest, MemoryLimit) {
  auto done = island().run({"--memory", "64M", "--", "python3", "-c", "x = bytearray(300 << 20)\nprint('never')"});
  EXPECT_EQ(done.code, 137) << done.text();
  EXPECT_EQ(done.out, "");
  EXPECT_NE(done.err.find("isola: "), std::string::npos) << done.text();
  EXPECT_NE(done.err.find("memory"), std::string::npos) << done.text();
  EXPECT_EQ(island().run({"--memory", "256M", "--", "python3", "-c", "x = bytearray(100 << 20)\nprint('fits')"}).out,
            "fits\n");
}

// Of SIGKILL by somebody inside, the guest cannot tell which of the two it was.
TEST_F(RunTest, AJsonResultNamesTheLimitOnlyWhereItWasIt) {
  auto killed = island().run({"--json", "--", "sh", "-c", "kill -KILL $$"});
  auto result = nlohmann::json::parse(killed.out, nullptr, false);
  ASSERT_TRUE(result.is_object()) << killed.text();
  EXPECT_EQ(result["signal"], SIGKILL);
  EXPECT_FALSE(result.contains("killed_by_memory_limit"));
  EXPECT_EQ(killed.err, "");
  auto starved = island().run({"--json", "--memory", "64M", "--", "python3", "-c", "bytearray(300 << 20)"});
  result = nlohmann::json::parse(starved.out, nullptr, false);
  ASSERT_TRUE(result.is_object()) << starved.text();
  EXPECT_EQ(result["killed_by_memory_limit"], true);
}

TEST_F(RunTest, ProcessLimit) {
  auto done = island().run({"--pids", "12", "--", "python3", "-c",
                            "import os,sys\nn=0\n"
                            "while n < 100:\n"
                            "  try: p=os.fork()\n"
                            "  except BlockingIOError: break\n"
                            "  if p==0:\n    import time; time.sleep(1000)\n"
                            "  n+=1\n"
                            "print(n); sys.stdout.flush(); os._exit(0)"});
  EXPECT_EQ(done.code, 0) << done.text();
  EXPECT_EQ(done.out, "10\n") << "12, less the guest and the command itself";
}

TEST_F(RunTest, DiskLimit) {
  auto done =
      island().sh("dd if=/dev/zero of=/big bs=1M count=64 2>/dev/null && echo wrote; sync /big; stat -c %s /big",
                  {"--disk", "16M"});
  EXPECT_EQ(done.out.find("wrote"), std::string::npos) << done.text();
  done = island().sh("dd if=/dev/urandom of=/big bs=1M count=8 2>/dev/null && echo wrote", {"--disk", "32M"});
  EXPECT_EQ(done.out, "wrote\n") << done.text();
}

// Not a timing test: with a tenth of a core, a loop that needs a second of processor time is throttled often.
TEST_F(RunTest, CpuLimitIsInstalled) {
  auto client = island().client();
  auto sandbox = launch(client, {.digest = island().digest(), .limits = {.cpus = 0.1}});
  ASSERT_OK(sandbox);
  auto heard =
      hear(*sandbox->guest, {"python3", "-c", "import time\nwhile time.process_time() < 0.2: pass\nprint('done')"});
  EXPECT_EQ(heard.out, "done\n");
  auto tree = kernel::CgroupTree::detect({});
  ASSERT_OK(tree);
  auto group = tree->adopt(sandbox->id);
  ASSERT_OK(group);
  auto limits = group->limits();
  auto stats = group->stats();
  group->release();
  ASSERT_OK(limits);
  ASSERT_OK(stats);
  EXPECT_NEAR(limits->cpus, 0.1, 0.001);
  EXPECT_GT(stats->cpu_throttled, 0u);
  auto ended = client.kill(sandbox->id);
  EXPECT_TRUE(ended);
}

TEST_F(RunTest, ColdAndPooledBirths) {
  auto client = island().client();
  auto parked = client.park(island().digest(), 1);
  ASSERT_OK(parked);
  ASSERT_TRUE(eventually([&] {
    auto info = client.info();
    return info && info->parked == 1;
  }));
  auto cold = island().run({"--cold", "--latency", "--", "echo", "hi"});
  EXPECT_EQ(cold.out, "hi\n");
  EXPECT_NE(cold.err.find("cold birth"), std::string::npos) << cold.err;
  auto pooled = island().run({"--latency", "--", "echo", "hi"});
  EXPECT_EQ(pooled.out, "hi\n");
  EXPECT_NE(pooled.err.find("pooled birth"), std::string::npos) << pooled.err;
  // Other limits than a parked jail has: it takes them over, and they hold.
  ASSERT_TRUE(eventually([&] {
    auto info = client.info();
    return info && info->parked == 1;
  }));
  auto small = island().run(
      {"--latency", "--memory", "48M", "--disk", "8M", "--", "sh", "-c",
       "dd if=/dev/zero of=/big bs=1M count=32 2>/dev/null && echo wrote; python3 -c 'bytearray(200<<20)'"});
  EXPECT_NE(small.err.find("pooled birth"), std::string::npos) << small.err;
  EXPECT_EQ(small.out, "") << small.text();
  EXPECT_EQ(small.code, 137) << small.text();
}

TEST_F(RunTest, BackgroundProcessesDoNotKeepIt) {
  auto done = island().sh(
      "(sleep 1000 >/dev/null 2>&1 &) ; nohup sleep 1000 >/dev/null 2>&1 & setsid sleep 1000 >/dev/null 2>&1 & echo "
      "started");
  EXPECT_EQ(done.code, 0) << done.text();
  EXPECT_EQ(done.out, "started\n");
  EXPECT_FALSE(done.timed_out);
  // One that keeps the output open: like a shell, we do not wait for it either.
  done = island().sh("sleep 1000 & echo started", {}, {.limit = std::chrono::seconds(20)});
  EXPECT_EQ(done.code, 0) << done.text();
  EXPECT_EQ(done.out, "started\n");
}

TEST_F(RunTest, ManyAtOnce) {
  std::vector<std::unique_ptr<Program>> programs;
  int n = count("runs at once", 12, 60);
  for (int i = 0; i < n; ++i)
    programs.push_back(std::make_unique<Program>(island().run_words({"--", "sh", "-c", fmt::format("echo {}", i)}),
                                                 island().with_data({})));
  for (int i = 0; i < n; ++i) {
    auto done = programs[static_cast<size_t>(i)]->finish();
    EXPECT_EQ(done.code, 0) << done.text();
    EXPECT_EQ(done.out, fmt::format("{}\n", i));
  }
}

}  // namespace
}  // namespace isola::e2e
