// What cannot work says so in one sentence, with the documented exit code, and leaves nothing behind.
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "e2e/island.h"

namespace isola::e2e {
namespace {

class BadInputTest : public SharedIsland {};

TEST_F(BadInputTest, UnknownTemplate) {
  expect_complaint(island().isola({"run", "--template", "no-such", "--", "true"}), 125, "no-such");
  for (const char* name : {"", "../minimal", "/etc", "a/b", "."})
    EXPECT_EQ(island().isola({"run", "--template", name, "--", "true"}).code, 125) << name;
}

TEST_F(BadInputTest, ImpossibleLimits) {
  struct Case {
    const char *option, *value, *saying;
  };
  const Case cases[] = {
      {"--memory", "1", "at least 8"},
      {"--memory", "0", "at least 8"},
      {"--memory", "9999T", "memory"},
      {"--memory", "12Q", "12Q"},
      {"--memory", "-1", "-1"},

      {"--memory", "lots", "lots"},
      {"--cpus", "0", "cpu limit"},
      {"--cpus", "1000", "cpu limit"},
      {"--cpus", "-2", "cpu limit"},
      {"--cpus", "nan", "cpu"},
      {"--cpus", "abc", "abc"},
      {"--disk", "0", "disk"},
      {"--disk", "1", "disk"},
      {"--disk", "x", "x"},
      {"--pids", "0", "at least 4"},
      {"--pids", "-1", "-1"},
      {"--pids", "1.5", "1.5"},
      {"--open-files", "0", "open files"},
      {"--timeout", "0", "timeout"},
      {"--timeout", "-1s", "-1s"},
      {"--timeout", "5 parsecs", "5 parsecs"},
      {"--io", "fast", "fast"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.option) + " " + c.value);
    expect_complaint(island().run({c.option, c.value, "--", "true"}), 125, c.saying);
  }
}

TEST_F(BadInputTest, OptionsThatAreNone) {
  expect_complaint(island().run({"--no-such-option", "--", "true"}), 125, "no-such-option");
  expect_complaint(island().run({}), 125, "command");
  expect_complaint(island().run({"--"}), 125, "command");
  expect_complaint(island().isola({"no-such-command"}), 125, "no-such-command");
  expect_complaint(island().isola({}), 125, "");
  expect_complaint(island().run({"--env", "NOVALUE", "--", "true"}), 125, "NAME=value");
  expect_complaint(island().run({"--env", "=x", "--", "true"}), 125, "NAME=value");
  expect_complaint(island().run({"--env", "", "--", "true"}), 125, "NAME=value");
}

TEST_F(BadInputTest, CommandsThatCannotRun) {
  expect_complaint(island().run({"--", "no-such-command"}), 127, "no-such-command");
  expect_complaint(island().run({"--", "/no/such/file"}), 127, "/no/such/file");
  expect_complaint(island().run({"--", "/etc/passwd"}), 126, "/etc/passwd");
  expect_complaint(island().run({"--", "/etc"}), 126, "/etc");
  expect_complaint(island().run({"--", ""}), 125, "no command");
}

TEST_F(BadInputTest, TooManyArguments) {
  // As large as this kernel lets a program start at all; the sandbox's own stack limit then says no.
  Argv words = {"--", "echo"};
  for (int i = 0; i < 58; ++i) words.push_back(std::string(100000, 'x'));
  auto raise = [] {
    rlimit stack{RLIM_INFINITY, RLIM_INFINITY};
    ::setrlimit(RLIMIT_STACK, &stack);
  };
  auto done = island().run(words, {.before_exec = raise});
  if (done.code == 254) GTEST_SKIP() << "this kernel does not start a program with 5.8 MB of arguments";
  // Either it runs or it is refused properly; whichever, it is the same inside and outside.
  if (done.code != 0) expect_complaint(done, 126, "");
  // 10 MB cannot be handed to a program here at all; the guest is asked directly.
  auto client = island().client();
  auto sandbox = launch(client, {.digest = island().digest()});
  ASSERT_OK(sandbox);
  Argv argv = {"echo"};
  for (int i = 0; i < 100; ++i) argv.push_back(std::string(100000, 'x'));
  auto heard = hear(*sandbox->guest, argv);
  ASSERT_FALSE(heard.exit);
  EXPECT_EQ(heard.exit.error().sys_errno, E2BIG) << heard.exit.error().message;
  EXPECT_EQ(heard.exit.error().message.find('\n'), std::string::npos);
  // The guest lives on.
  EXPECT_EQ(hear(*sandbox->guest, {"echo", "still here"}).out, "still here\n");
  argv.assign(200, std::string(100000, 'x'));  // 20 MB: more than a request may hold
  heard = hear(*sandbox->guest, argv);
  ASSERT_FALSE(heard.exit);
  EXPECT_TRUE(client.kill(sandbox->id));
}

TEST_F(BadInputTest, ShownFolders) {
  std::string there = island().data() + "/there";
  std::filesystem::create_directories(there);
  expect_complaint(island().run({"--mount-ro", "/no/such:/mnt", "--", "true"}), 125, "/no/such");
  expect_complaint(island().run({"--mount-ro", there + ":mnt", "--", "true"}), 125, "absolute");
  expect_complaint(island().run({"--mount-ro", there + ":", "--", "true"}), 125, "absolute");
  expect_complaint(island().run({"--mount-ro", "", "--", "true"}), 125, "");
  expect_complaint(island().run({"--mount-ro", there + ":/", "--", "true"}), 125, "");
  // /bin is a symlink in the image: a mount never goes where a link of the image leads.
  expect_complaint(island().run({"--mount-ro", there + ":/bin", "--", "true"}), 125, "/bin");
  expect_complaint(island().run({"--mount-ro", there + ":/bin/sub", "--", "true"}), 125, "/bin/sub");
  expect_complaint(island().run({"--mount-ro", there + ":/mnt/../etc", "--", "true"}), 125, "");
  expect_complaint(island().run({"--mount-ro", there + ":/etc/passwd", "--", "true"}), 125, "/etc/passwd");
  // Not over what protects the sandbox.
  expect_complaint(island().run({"--mount-ro", there + ":/proc/sys", "--", "true"}), 125, "/proc/sys");
  expect_complaint(island().run({"--mount-ro", there + ":/dev", "--", "true"}), 125, "/dev");
}

TEST_F(BadInputTest, OptionsWinOverTheEnvironment) {
  // The environment names a folder where a launcher runs; the option names one that cannot be.
  expect_complaint(island().isola({"run", "--template", "minimal", "--data", "relative", "--", "true"}), 125,
                   "absolute");
  expect_complaint(island().isola({"--data", "relative", "run", "--template", "minimal", "--", "true"}), 125,
                   "absolute");
  expect_complaint(island().isola({"run", "--template", "minimal", "--cache", "/no/such/cache", "--", "true"}), 125,
                   "minimal");
}

TEST_F(BadInputTest, NotRoot) {
  // The data directory and the programs must be reachable for the refusal to be ours.
  auto drop = [] {
    if (::setgroups(0, nullptr) < 0 || ::setresgid(65534, 65534, 65534) < 0 || ::setresuid(65534, 65534, 65534) < 0)
      ::_exit(250);
  };
  char copy[] = "/tmp/isl-bin-XXXXXX";
  ASSERT_TRUE(::mkdtemp(copy));
  ::chmod(copy, 0755);
  std::string program = std::string(copy) + "/isola";
  std::filesystem::copy_file(kIsola, program);
  std::filesystem::copy_file(std::filesystem::path(kIsola).parent_path() / "isola-guest",
                             std::string(copy) + "/isola-guest");
  // With somebody else's launcher.
  expect_complaint(
      run_program({program, "run", "--template", "minimal", "--", "true"}, island().with_data({.before_exec = drop})),
      125, "");
  // With a data directory of its own, where it would have to start one.
  std::string own = std::string(copy) + "/data";
  ::mkdir(own.c_str(), 0777), ::chmod(own.c_str(), 0777);
  expect_complaint(
      run_program({program, "run", "--template", "minimal", "--data", own, "--", "true"}, {.before_exec = drop}), 125,
      "root");
  std::filesystem::remove_all(copy);
}

// Root of a container that was not given everything.
TEST_F(BadInputTest, RootWithoutPrivileges) {
  char own[] = "/tmp/isl-own-XXXXXX";
  ASSERT_TRUE(::mkdtemp(own));
  CensusTaker taker(own);
  auto done = run_program({"setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", kIsola, "run", "--template",
                           "minimal", "--data", own, "--", "true"});
  expect_complaint(done, 125, "CAP_SYS_ADMIN");
  eventually([&] { return difference({}, taker.take()).empty(); });
  EXPECT_EQ(difference({}, taker.take()), "");
  std::filesystem::remove_all(own);
}

TEST_F(BadInputTest, DataDirectories) {
  expect_complaint(island().isola({"run", "--template", "minimal", "--data", "relative", "--", "true"}), 125,
                   "absolute");
  expect_complaint(island().isola({"run", "--template", "minimal", "--data", "/proc/no", "--", "true"}), 125,
                   "/proc/no");
  expect_complaint(
      island().isola({"run", "--template", "minimal", "--data", "/tmp/" + std::string(200, 'x'), "--", "true"}), 125,
      "too long");
  EXPECT_FALSE(std::filesystem::exists("/tmp/" + std::string(200, 'x')));
}

// A data directory on a disk that is full, in a mount namespace of its own.
TEST(FullDisk, IsOneSentence) {
  NEEDS_TEMPLATE("minimal");
  char folder[] = "/tmp/isl-full-XXXXXX";
  ASSERT_TRUE(::mkdtemp(folder));
  std::string script = std::string("set -e; mount -t tmpfs -o size=1m tmpfs ") + folder +
                       "; dd if=/dev/zero of=" + folder +
                       "/fill bs=4k 2>/dev/null || true; "
                       "set +e; \"$0\" run --template minimal --data " +
                       folder +
                       " -- true; code=$?; "
                       "\"$0\" launcher stop --all --data " +
                       folder + " >/dev/null 2>&1; umount -l " + folder + "; exit $code";
  CensusTaker taker(folder);
  auto before = taker.take();
  auto done = run_program({"unshare", "-m", "--propagation", "private", "sh", "-c", script, kIsola});
  expect_complaint(done, 125, "too little room");
  // The launcher that was told to stop may still be on its way out.
  eventually([&] { return difference(before, taker.take()).empty(); });
  EXPECT_EQ(difference(before, taker.take()), "");
  std::filesystem::remove_all(folder);
}

// A machine that lacks control groups, as one sees it who has them unmounted in a mount namespace of its own.
class MissingControllers : public ::testing::Test {
 protected:
  void SetUp() override { NEEDS_TEMPLATE("minimal"); }

  static void expect_refused(const std::string& unmount, const std::string& saying) {
    Island island({.start = false});
    Census before = island.census();
    std::string script = unmount + " && exec \"$0\" run --template minimal -- echo unlimited";
    auto done =
        run_program({"unshare", "-m", "--propagation", "private", "sh", "-c", script, kIsola}, island.with_data({}));
    expect_complaint(done, 125, saying);
    EXPECT_TRUE(eventually([&] { return difference(before, island.census()).empty(); }))
        << difference(before, island.census());
    EXPECT_FALSE(island.try_client()) << "a launcher that cannot limit anything stays";
  }
};

TEST_F(MissingControllers, OneOfThem) {
  auto layout = kernel::find_cgroup_layout({});
  ASSERT_OK(layout);
  if (layout->version != kernel::CgroupVersion::v1) GTEST_SKIP() << "cgroup v2 has one hierarchy: all or none";
  struct Controller {
    const char* name;
    std::string folder;
  };
  for (const auto& [name, folder] :
       {Controller{"cpu", layout->cpu}, Controller{"memory", layout->memory}, Controller{"pids", layout->pids}}) {
    SCOPED_TRACE(name);
    std::string mount = folder.substr(0, folder.rfind('/'));
    expect_refused("umount -l " + mount, std::string("no cgroup controller '") + name + "'");
  }
}

TEST_F(MissingControllers, AllOfThem) { expect_refused("umount -l -R /sys/fs/cgroup", "no cgroup controller"); }

}  // namespace
}  // namespace isola::e2e
