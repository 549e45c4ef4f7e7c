#include "control.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "base/fd.h"
#include "control_fixture.h"
#include "control_group.h"

namespace isola::hostile {
namespace {

namespace fs = std::filesystem;

constexpr int kTimeoutMs = 40'000;
constexpr size_t kMaxOutput = 64 << 10;

// The program's root: a tmpfs with the usual folders, a few devices, and the program itself, writable.
void build_root(const Stage& stage, const std::string& binary) {
  const std::string& root = stage.root;
  must(::mount("isola-control", root.c_str(), "tmpfs", 0, "size=256m,mode=755") == 0, "mount the root");
  for (const char* dir :
       {"proc", "sys", "dev", "dev/shm", "dev/pts", "tmp", "run", "var", "var/tmp", "etc", "bin", "isola-hostile"}) {
    must(::mkdir((root + "/" + dir).c_str(), 0755) == 0, "make a folder of the root");
  }
  struct {
    const char* name;
    unsigned minor;
  } nodes[] = {{"null", 3}, {"zero", 5}, {"full", 7}, {"random", 8}, {"urandom", 9}};
  for (auto [name, minor] : nodes) ::mknod((root + "/dev/" + name).c_str(), S_IFCHR | 0666, (1u << 8) | minor);
  must(::mount("devpts", (root + "/dev/pts").c_str(), "devpts", 0, "newinstance,ptmxmode=0666,mode=600") == 0,
       "mount devpts");
  must(::symlink("pts/ptmx", (root + "/dev/ptmx").c_str()) == 0, "link ptmx");
  must(::mount("tmpfs", (root + "/dev/shm").c_str(), "tmpfs", 0, "size=128m") == 0, "mount /dev/shm");
  must(::mount("sysfs", (root + "/sys").c_str(), "sysfs", 0, nullptr) == 0, "mount sysfs");
  // A folder of the host's disk, as a shared folder would be: the door that shocker needs.
  must(::mount(stage.shared.c_str(), (root + "/isola-hostile").c_str(), nullptr, MS_BIND, nullptr) == 0,
       "bind the shared folder");
  std::error_code error;
  fs::copy_file(binary, root + "/bin/isola-hostile", error);
  must(!error, "copy the program");
  ::chmod((root + "/bin/isola-hostile").c_str(), 0755);
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// The hostile program itself.
[[noreturn]] void become_program(const Program& program, const Stage& stage) {
  // The folder may have that number already, and would be closed by the exec.
  must(!(program.flags & kControlLeakedFd) || (::dup2(stage.host_root, 9) == 9 && ::fcntl(9, F_SETFD, 0) == 0),
       "leak a descriptor");
  ::syscall(SYS_close_range, 3, (program.flags & kControlLeakedFd) ? 8 : ~0u, 0);
  if (program.flags & kControlLeakedFd) ::syscall(SYS_close_range, 10, ~0u, 0);
  must(::chdir((program.flags & kControlCwdOutside) ? "/" : stage.root.c_str()) == 0, "chdir");
  if (program.flags & kControlPivot) {
    must(::unshare(CLONE_NEWNS) == 0, "unshare mounts");
    must(::syscall(SYS_pivot_root, ".", ".") == 0 && ::umount2(".", MNT_DETACH) == 0 && ::chdir("/") == 0,
         "pivot_root");
  } else {
    must(::chroot(stage.root.c_str()) == 0, "chroot");
  }
  std::vector<std::string> words = {"isola-hostile", std::string(program.name)};
  for (std::string& word : words_of(program.control_args)) words.push_back(std::move(word));
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> variables = stage.variables;
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);
  ::execve("/bin/isola-hostile", argv.data(), envp.data());
  give_up("exec isola-hostile");
}

// Process 1 of the control: the naive one. Ends with the program's exit code, and everything else with it.
[[noreturn]] void become_init(const Program& program, Stage& stage) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  must(::mount("proc", (stage.root + "/proc").c_str(), "proc", 0, nullptr) == 0, "mount proc");
  must(::mount("proc", "/proc", "proc", 0, nullptr) == 0, "mount the host side's proc");
  prepare_fixtures(program, stage);
  pid_t child = ::fork();
  must(child >= 0, "fork");
  if (child == 0) become_program(program, stage);
  int status = 0;
  // Only the program is collected: orphans stay, as with a process 1 that forgot them.
  while (true) {
    pid_t ended = ::waitpid(child, &status, (program.flags & kControlNaiveReader) ? WNOHANG : 0);
    if (ended == child) break;
    if (ended == 0) naive_read(stage);
  }
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

// The process outside of the pid namespace but inside all the others.
[[noreturn]] void become_stage(const Program& program, Stage& stage, const std::string& binary) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  int groups = (program.flags & kControlHostGroups) ? 0 : CLONE_NEWCGROUP;
  must(::unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | groups) == 0, "unshare");
  must(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "make mounts private");
  build_root(stage, binary);
  if (program.flags & kControlRealCgroups) must(show_group(stage.root + "/sys/fs/cgroup"), "show the control group");
  stage.host_root = ::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  prepare_outside(program, stage);
  pid_t init = ::fork();
  must(init >= 0, "fork process 1");
  if (init == 0) become_init(program, stage);
  int status = 0;
  while (::waitpid(init, &status, 0) < 0 && errno == EINTR) {
  }
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

std::string new_secret() {
  std::random_device random;
  return fmt::format("isola-secret-{:08x}{:08x}", random(), random());
}

}  // namespace

Result<ControlRun> run_control(const Program& program, const std::string& binary) {
  char pattern[] = "/tmp/isola-control-XXXXXX";
  if (!::mkdtemp(pattern)) return sys_error("cannot make a folder for the control");
  Stage stage;
  stage.top = pattern;
  stage.root = stage.top + "/root";
  stage.shared = stage.top + "/shared";
  stage.secret = new_secret();
  fs::create_directory(stage.root);
  fs::create_directory(stage.shared);
  stage.canary = stage.top + "/canary";
  Fd canary(::open(stage.canary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (::write(canary.get(), stage.secret.data(), stage.secret.size()) < 0) return sys_error("cannot write the canary");
  stage.variables = {"PATH=/bin", "ASAN_OPTIONS=detect_leaks=0", "ISOLA_CANARY_FILE=" + stage.canary};

  auto group = ControlGroup::create(fs::path(stage.top).filename(), 256L << 20, 400);
  if (!group) return std::unexpected(group.error());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return sys_error("cannot make a pipe");
  Fd out(ends[0]), in(ends[1]);
  pid_t child = ::fork();
  if (child < 0) return sys_error("cannot fork");
  if (child == 0) {
    ::setsid();
    int null = ::open("/dev/null", O_RDONLY);
    if (!group->join() || ::dup2(null, 0) < 0 || ::dup2(in.get(), 1) < 0 || ::dup2(in.get(), 2) < 0) ::_exit(99);
    become_stage(program, stage, binary);
  }
  in.reset();
  ControlRun run;
  pollfd wait{out.get(), POLLIN, 0};
  char block[16384];
  std::string tail;
  timespec started{}, now{};
  ::clock_gettime(CLOCK_MONOTONIC, &started);
  while (true) {
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    long left = kTimeoutMs - (now.tv_sec - started.tv_sec) * 1000;
    int ready = left > 0 ? ::poll(&wait, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      run.timed_out = true;
      ::kill(child, SIGKILL);
      break;
    }
    ssize_t n = ::read(out.get(), block, sizeof block);
    if (n <= 0) break;
    // Floods: the beginning is kept, and the end, where the verdict is.
    std::string_view piece(block, static_cast<size_t>(n));
    if (run.output.size() < kMaxOutput)
      run.output += piece;
    else
      (tail += piece).erase(0, tail.size() > 2048 ? tail.size() - 2048 : 0);
  }
  run.output += tail;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  run.secret_seen = run.output.find(stage.secret) != std::string::npos;
  std::error_code ignored;
  fs::remove_all(stage.top, ignored);
  return run;
}

}  // namespace isola::hostile
