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

// What an agent reaches for first, as the user that its commands run as.
class BaseTest : public SharedIsland {
 protected:
  void SetUp() override {
    NEEDS_TEMPLATE("base");
    SharedIsland::SetUp();
  }
  // The last line of what a script says in a fresh folder of the user's.
  static void expect_says(const std::string& script, const std::string& wanted) {
    SCOPED_TRACE(script);
    auto done = island().isola(
        {"run", "--template", "base", "-u", "user", "--", "sh", "-ec", "mkdir ~/work; cd ~/work; " + script},
        {.limit = std::chrono::seconds(120)});
    EXPECT_EQ(done.code, 0) << done.text();
    EXPECT_TRUE(("\n" + done.out).ends_with("\n" + wanted + "\n")) << done.text();
  }
};

TEST_F(BaseTest, TheUserIsAnOrdinaryOneAndSudoNeedsNoPassword) {
  expect_says("id -un; id -u", "1000");
  expect_says("touch /etc/mine 2>/dev/null || echo refused", "refused");
  expect_says("sudo -n id -u", "0");
  expect_says("sudo -n touch /etc/mine; stat -c %U /etc/mine", "root");
}

TEST_F(BaseTest, Git) {
  expect_says(
      "git init -q; git config user.name a; git config user.email a@example.org; echo x >file; git add file; "
      "git commit -qm first; git clone -q . ../copy; git -C ../copy log --format=%s",
      "first");
}

TEST_F(BaseTest, PythonPipAndVenv) {
  expect_says("python -c 'import sys, ssl, sqlite3; print(sys.version_info[0])'", "3");
  expect_says("test \"$(python --version)\" = \"$(python3 --version)\" && echo same", "same");
  expect_says("pip --version >/dev/null; python -m pip --version >/dev/null; echo there", "there");
  expect_says(
      "python -m venv v; v/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'; v/bin/pip --version "
      ">/dev/null; echo there",
      "there");
  // A package of one's own needs no network.
  expect_says(
      "mkdir p; printf 'def say(): return 7\\n' >p/mine.py; printf 'from setuptools import setup\\n"
      "setup(name=\"mine\", version=\"1\", py_modules=[\"mine\"])\\n' >p/setup.py; python -m venv "
      "--system-site-packages v; v/bin/pip install -q --no-index --no-build-isolation ./p; cd /; "
      "~/work/v/bin/python -c 'import mine; print(mine.say())'",
      "7");
}

TEST_F(BaseTest, NodeAndNpm) {
  expect_says("node -e 'console.log([1, 2, 3].map((n) => n * 2).join())'", "2,4,6");
  expect_says(
      "mkdir dep; cd dep; npm init -y >/dev/null; echo 'module.exports = 7' >index.js; cd ..; mkdir app; cd app; npm "
      "init "
      "-y >/dev/null; npm install --offline --no-audit --no-fund ../dep >/dev/null; node -p 'require(\"dep\")'",
      "7");
}

TEST_F(BaseTest, CompilerAndMake) {
  expect_says(
      "printf '#include <stdio.h>\\nint main(void) { puts(\"built\"); }\\n' >a.c; "
      "printf 'a: a.c\\n\\tcc -Wall -o $@ $<\\n' >Makefile; make -s; ./a",
      "built");
  expect_says("printf '#include <iostream>\\nint main() { std::cout << \"built\\\\n\"; }\\n' >a.cc; c++ -o a a.cc; ./a",
              "built");
}

TEST_F(BaseTest, CurlReachesAServiceInside) {
  expect_says(
      "echo served >file; python -m http.server --bind 127.0.0.1 8000 >/dev/null 2>&1 & "
      "curl -sS --retry 50 --retry-connrefused --retry-delay 1 http://127.0.0.1:8000/file",
      "served");
}

}  // namespace
}  // namespace isola::e2e
