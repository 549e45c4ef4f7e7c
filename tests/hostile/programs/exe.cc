// CVE-2019-5736: the program that runs us, or starts processes for us, overwritten through its own /proc link.
// Nothing is ever written: ETXTBSY says that only the fact that it is running just now stands in the way.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

void try_write(Attempts& attempts, const std::string& what, const std::string& path) {
  // A sealed memfd opens for writing and refuses the write itself; and "busy" comes before "read-only mount".
  int reader = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  int seals = reader < 0 ? -1 : ::fcntl(reader, F_GET_SEALS);
  struct statvfs mount{};
  bool read_only = reader >= 0 && ::fstatvfs(reader, &mount) == 0 && (mount.f_flag & ST_RDONLY);
  if (reader >= 0) ::close(reader);
  if (seals > 0 && (seals & F_SEAL_WRITE)) return attempts.refused(what, "sealed");
  int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0 && errno == ETXTBSY && read_only) return attempts.refused(what, "read-only mount");
  if (fd < 0 && errno == ETXTBSY) return attempts.worked(what + ": only busy");
  attempts.add(what, fd);
  if (fd >= 0) ::close(fd);
}

void try_write_by_path_fd(Attempts& attempts, const std::string& path) {
  int fd = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  if (fd < 0) return attempts.add("O_PATH " + path, -1);
  try_write(attempts, "re-open " + path, fmt::format("/proc/self/fd/{}", fd));
  ::close(fd);
}

Outcome init_exe(const Args&) {
  Attempts attempts;
  try_write(attempts, "write /proc/1/exe", "/proc/1/exe");
  try_write_by_path_fd(attempts, "/proc/1/exe");
  return attempts.outcome();
}

Outcome self_exe(const Args&) {
  Attempts attempts;
  try_write(attempts, "write /proc/self/exe", "/proc/self/exe");
  try_write_by_path_fd(attempts, "/proc/self/exe");
  return attempts.outcome();
}

// The mount on which a path lies; the sandbox's own files are its own to overwrite, what is mounted into it is not.
unsigned long mount_of(const std::string& path) {
  struct statx status{};
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_MNT_ID, &status) != 0) return 0;
  return status.stx_mnt_id;
}

Outcome others_exe(const Args&) {
  Attempts attempts;
  unsigned long own = mount_of("/"), self = mount_of("/proc/self/exe");
  for (int pid : all_pids()) {
    std::string link = fmt::format("/proc/{}/exe", pid);
    unsigned long mount = mount_of(link);
    if (mount == 0) {
      attempts.add("look at " + link, -1);
    } else if (mount != own && mount != self) {
      try_write_by_path_fd(attempts, link);
    }
  }
  Outcome outcome = attempts.outcome();
  return outcome.kind == Outcome::untried ? contained("every program here lies in the sandbox's own files") : outcome;
}

// A script whose interpreter is /proc/self/exe makes whoever starts it run itself; then its file can be opened.
Outcome shebang(const Args&) {
  std::string script = work_dir() + "/isola-shebang";
  int fd = ::open(script.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
  if (fd < 0) return untried("write the script: " + errno_name(errno));
  std::string_view text = "#!/proc/self/exe\n";
  bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  if (!written) return untried("write the script: " + errno_name(errno));
  pid_t child = ::fork();
  if (child < 0) return contained("fork: " + errno_name(errno));
  if (child == 0) {
    ::setenv("ISOLA_SHEBANG_VICTIM", "1", 1);
    ::execl(script.c_str(), script.c_str(), nullptr);
    ::_exit(1);
  }
  Attempts attempts;
  std::string link = fmt::format("/proc/{}", child);
  // The exec is done when the command line names the script.
  bool started = wait_until(2000, [&] {
    auto line = slurp(link + "/cmdline");
    return line && line->find("isola-shebang") != std::string::npos;
  });
  if (started)
    try_write_by_path_fd(attempts, link + "/exe");
  else
    attempts.refused("exec of the script", "refused");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return attempts.outcome();
}

constexpr Program kExePrograms[] = {
    {"init-exe", "exe", "opens process 1's program for writing, directly and through O_PATH", "EACCES, EROFS or sealed",
     init_exe},
    {"self-exe", "exe", "opens its own program, a file of the host, for writing", "EROFS", self_exe},
    {"others-exe", "exe", "opens the programs of all other processes for writing", "EACCES or EROFS", others_exe},
    {"shebang-self-exe", "exe", "makes the starter run itself by #!/proc/self/exe and opens its file for writing",
     "EACCES or EROFS", shebang},
};

}  // namespace

Family exe_programs() { return kExePrograms; }

}  // namespace isola::hostile
