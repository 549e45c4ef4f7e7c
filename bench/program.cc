#include "bench/program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "bench/report.h"
#include "kernel/process.h"

namespace isola::bench {

namespace {

char* const kPath = const_cast<char*>("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
char* const kHome = const_cast<char*>("HOME=/root");
char* const kLanguage = const_cast<char*>("LANG=C.UTF-8");

// In the vforked child: system calls only.
[[noreturn]] void become(const Program& program, char* const* argv, int output, int nothing) {
  ::dup2(nothing, 0);
  ::dup2(output, 1);
  ::dup2(output, 2);
  if (program.extra >= 0) {
    ::dup2(program.extra, 9);
    ::lseek(9, 0, SEEK_SET);
  }
  if (!program.root.empty() && ::chroot(program.root.c_str()) < 0) ::_exit(126);
  if (::chdir(program.cwd.c_str()) < 0) ::_exit(126);
  auto more = [&](size_t i) {
    return i < program.environment.size() ? const_cast<char*>(program.environment[i].c_str()) : nullptr;
  };
  char* const environment[] = {kPath, kHome, kLanguage, more(0), more(1), nullptr};
  ::execve(argv[0], argv, environment);
  ::_exit(127);
}

}  // namespace

Result<Timing> run_program(const Program& program, const std::string& expected) {
  std::vector<char*> argv;
  for (const auto& word : program.argv) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  // Not /dev/null: some runtimes hand their standard input over to the container's root, by fchown.
  static const Fd kNothing(::memfd_create("nothing", MFD_CLOEXEC));
  std::string output;
  char bytes[4096];
  Timing timing;

  auto start = Clock::now();
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  pid_t pid = ::vfork();
  if (pid == 0) become(program, argv.data(), pipe.second.get(), kNothing.get());
  if (pid < 0) return sys_error("cannot start a process");
  pipe.second.reset();
  for (ssize_t n; (n = ::read(pipe.first.get(), bytes, sizeof bytes)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    if (timing.first == 0) timing.first = micros_since(start);
    if (output.size() < 4096) output.append(bytes, static_cast<size_t>(n));
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  timing.exit = micros_since(start);
  if (timing.first == 0) timing.first = timing.exit;
  if (status == 0 && (expected.empty() || output == expected)) return timing;
  while (output.ends_with('\n')) output.pop_back();
  return fail(Code::internal,
              program.argv[0] + " failed (" + std::to_string(WEXITSTATUS(status)) + "): " + output.substr(0, 300));
}

std::string installed(const std::string& name) {
  for (const char* folder : {"/usr/local/bin/", "/usr/bin/", "/usr/sbin/", "/usr/local/sbin/", "/bin/", "/sbin/"})
    if (::access((folder + name).c_str(), X_OK) == 0) return folder + name;
  return {};
}

}  // namespace isola::bench
