#include "cli/tar_pipe.h"

#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "image/spawn.h"
#include "kernel/process.h"

namespace isola::cli {

namespace {

// In the child: root keeps what it takes to reach its own files, and nothing else.
void drop_privileges() {
  for (int capability = 0; capability <= CAP_LAST_CAP; ++capability)
    if (capability != CAP_DAC_OVERRIDE && capability != CAP_FOWNER) ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

Result<pid_t> start(const std::vector<std::string>& words, int in, int out) {
  ISOLA_TRY(std::string program, image::find_program("tar"));
  std::vector<char*> argv;
  for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t pid = ::fork();
  if (pid < 0) return sys_error("cannot start tar");
  if (pid > 0) return pid;
  if (in >= 0) ::dup2(in, STDIN_FILENO);
  if (out >= 0) ::dup2(out, STDOUT_FILENO);
  ::signal(SIGPIPE, SIG_DFL);
  drop_privileges();
  ::execv(program.c_str(), argv.data());
  ::_exit(127);
}

}  // namespace

Result<TarPipe> TarPipe::pack(const std::string& folder) {
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  ISOLA_TRY(pid_t pid, start({"tar", "-C", folder, "-cf", "-", "."}, -1, pipe.second.get()));
  return TarPipe(std::move(pipe.first), pid);
}

Result<TarPipe> TarPipe::unpack(const std::string& folder) {
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  ISOLA_TRY(pid_t pid,
            start({"tar", "-C", folder, "--no-same-owner", "--no-same-permissions", "--no-overwrite-dir", "-xf", "-"},
                  pipe.first.get(), -1));
  return TarPipe(std::move(pipe.second), pid);
}

TarPipe::~TarPipe() {
  if (pid_ <= 0) return;
  fd_.reset();
  ::kill(pid_, SIGTERM);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<void> TarPipe::finish() {
  fd_.reset();
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return fail(Code::internal, "tar failed; its own words are above");
}

}  // namespace isola::cli
