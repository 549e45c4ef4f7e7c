// Packages are installed by the sandbox's own root, from a repository that the host shows read-only; there is no
// network.
#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "e2e/island.h"

namespace isola::e2e {
namespace {

namespace fs = std::filesystem;

class PackagesTest : public SharedIsland {
 protected:
  void SetUp() override {
    SharedIsland::SetUp();
    if (IsSkipped()) return;
    char name[] = "/tmp/isl-repo-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    ::chmod(name, 0755);
    repo_ = name;
  }
  void TearDown() override {
    if (!repo_.empty()) fs::remove_all(repo_);
    SharedIsland::TearDown();
  }
  void put(const std::string& path, const std::string& text, mode_t mode = 0644) {
    fs::create_directories((fs::path(repo_) / path).parent_path());
    std::ofstream(repo_ + "/" + path) << text;
    ::chmod((repo_ + "/" + path).c_str(), mode);
  }
  // A package with a set-uid program, a file of another owner, and a script that runs at its installation.
  void make_deb() {
    put("tree/DEBIAN/control",
        "Package: isola-hello\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\nDescription: "
        "a test\n");
    put("tree/DEBIAN/postinst",
        "#!/bin/sh\nset -e\nuseradd -r isola-hello 2>/dev/null || true\nchown user:user "
        "/usr/share/isola-hello/owned\nchmod 4755 /usr/bin/isola-id\n",
        0755);
    put("tree/usr/bin/isola-hello", "#!/bin/sh\necho hello from a package\n", 0755);
    put("tree/usr/share/isola-hello/owned", "x");
    fs::copy_file("/usr/bin/id", repo_ + "/tree/usr/bin/isola-id");
    auto built =
        run_program({"dpkg-deb", "--root-owner-group", "--build", repo_ + "/tree", repo_ + "/isola-hello_1.0_all.deb"});
    ASSERT_EQ(built.code, 0) << built.text();
    auto hash = run_program({"sha256sum", repo_ + "/isola-hello_1.0_all.deb"});
    put("Packages",
        fmt::format("Package: isola-hello\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\n"
                    "Description: a test\nFilename: ./isola-hello_1.0_all.deb\nSize: {}\nSHA256: {}\n\n",
                    fs::file_size(repo_ + "/isola-hello_1.0_all.deb"), hash.out.substr(0, 64)));
  }
  std::string repo_;
};

constexpr char kInstall[] =
    "rm -rf /etc/apt/sources.list.d/* ; echo 'deb [trusted=yes] file:/mnt ./' > /etc/apt/sources.list; "
    "apt-get -o Acquire::Languages=none update >/tmp/log 2>&1 && DEBIAN_FRONTEND=noninteractive apt-get install -y "
    "isola-hello >>/tmp/log 2>&1 "
    "|| { cat /tmp/log; exit 1; }; isola-hello; stat -c %U:%G /usr/share/isola-hello/owned; ";

TEST_F(PackagesTest, AptGetAsRoot) {
  make_deb();
  auto done = island().sh(std::string(kInstall) + "dpkg -s isola-hello | grep Status",
                          {"--mount-ro", repo_ + ":/mnt", "--cold"}, {.limit = std::chrono::seconds(120)});
  EXPECT_EQ(done.code, 0) << done.text();
  EXPECT_EQ(done.out, "hello from a package\nuser:user\nStatus: install ok installed\n") << done.text();
}

TEST_F(PackagesTest, AptGetBySudo) {
  make_deb();
  auto done = island().run({"--mount-ro", repo_ + ":/mnt", "-u", "user", "--", "sudo", "-n", "sh", "-c", kInstall},
                           {.limit = std::chrono::seconds(120)});
  EXPECT_EQ(done.code, 0) << done.text();
  EXPECT_EQ(done.out, "hello from a package\nuser:user\n") << done.text();
}

// Set-uid inside gives the sandbox's root, and that is an ordinary user of the host without any power there.
TEST_F(PackagesTest, SetUidReachesOnlyTheSandboxsRoot) {
  auto client = island().client();
  auto sandbox = launch(client, {.digest = island().digest()});
  ASSERT_OK(sandbox);
  auto heard = hear(*sandbox->guest,
                    {"sh", "-c", "cp /usr/bin/id /usr/bin/s-id; chmod 4755 /usr/bin/s-id; su user -c 's-id -u'"});
  EXPECT_EQ(heard.out, "0\n") << heard.err;
  std::string out;
  auto run =
      sandbox->guest->begin_run({.argv = {"sudo", "-n", "sh", "-c", "echo ready; exec sleep 1000"}, .user = "user"},
                                {.out = [&](std::string_view s) { out += s; }});
  auto ready = sandbox->guest->pump_until([&] { return out == "ready\n"; }, std::chrono::milliseconds(20000));
  ASSERT_OK(ready);
  // Seen from outside.
  auto tree = kernel::CgroupTree::detect({});
  auto group = tree->adopt(sandbox->id);
  ASSERT_OK(group);
  auto pids = group->processes();
  group->release();
  ASSERT_OK(pids);
  EXPECT_GE(pids->size(), 2u);
  for (pid_t pid : *pids) {
    struct stat owner{};
    ASSERT_EQ(::stat(fmt::format("/proc/{}/task", pid).c_str(), &owner), 0);
    std::ifstream status(fmt::format("/proc/{}/status", pid));
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with("Uid:")) continue;
      unsigned real = 0, effective = 0;
      std::sscanf(line.c_str(), "Uid: %u %u", &real, &effective);
      EXPECT_GE(real, 0x40000000u) << line;
      EXPECT_GE(effective, 0x40000000u) << line;
    }
  }
  EXPECT_TRUE(client.kill(sandbox->id));
}

// A wheel is a zip file with a few texts in it.
TEST_F(PackagesTest, PipInstallsAWheel) {
  NEEDS_TEMPLATE("base");
  const char* make = R"(
import zipfile, sys
z = zipfile.ZipFile(sys.argv[1] + '/isola_hello-1.0-py3-none-any.whl', 'w')
z.writestr('isola_hello.py', 'def say(): return "hello from a wheel"\n')
i = 'isola_hello-1.0.dist-info/'
z.writestr(i + 'METADATA', 'Metadata-Version: 2.1\nName: isola-hello\nVersion: 1.0\n')
z.writestr(i + 'WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
z.writestr(i + 'RECORD', 'isola_hello.py,,\n%sMETADATA,,\n%sWHEEL,,\n%sRECORD,,\n' % (i, i, i))
z.close()
)";
  ASSERT_EQ(run_program({"python3", "-c", make, repo_}).code, 0);
  for (const char* user : {"root", "user"}) {
    auto done = island().isola(
        {"run", "--template", "base", "-u", user, "--mount-ro", repo_ + ":/mnt", "--", "sh", "-c",
         "python3 -m venv /tmp/v && /tmp/v/bin/pip install -q --no-index --find-links /mnt isola-hello && "
         "/tmp/v/bin/python -c 'import isola_hello; print(isola_hello.say())'"},
        {.limit = std::chrono::seconds(180)});
    EXPECT_EQ(done.code, 0) << done.text();
    EXPECT_EQ(done.out, "hello from a wheel\n") << done.text();
  }
}

}  // namespace
}  // namespace isola::e2e
