// isola-behaviour: runs every check, or the named ones: `isola-behaviour [NAME…]`, one line each,
//
//   pipe-eof ok
//   io-uring not there: io_uring_setup: ENOSYS
//   dir-order differs: a name came twice
//
// `isola-behaviour list` prints topic, name and claim, with tabs between.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "check.h"

namespace isola::behaviour {
namespace {

constexpr int kPatience = 15000;  // milliseconds; only a hang takes that long

// Started as a program of its own by some checks.
int helper(int argc, char** argv) {
  std::string_view what = argc > 2 ? argv[2] : "";
  if (what == "words") return ::printf("%s|%s|%s\n", argv[0], argc > 3 ? argv[3] : "", ::getenv("WORD")) < 0;
  if (what == "ids") return ::printf("%u %u\n", ::getuid(), ::geteuid()) < 0;
  if (what == "open") return ::fcntl(::atoi(argv[3]), F_GETFD) >= 0 ? 1 : 0;
  if (what == "ignored") return ::signal(SIGUSR1, SIG_DFL) == SIG_IGN ? 1 : 0;
  if (what == "pid") return ::printf("%d %d\n", ::getpid(), static_cast<int>(::gettid())) < 0;
  return 2;
}

void prepare(const std::string& folder) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int signal = 1; signal < SIGRTMAX; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::umask(022);
  // Whoever should outlive its check must not keep the reader of our output waiting.
  int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  if (null > 2) ::close(null);
  if (::chdir(folder.c_str()) < 0) ::_exit(111);
}

Answer run(const Check& check, const std::string& work) {
  const std::string folder = work + "/" + std::string(check.name);
  int ends[2];
  if (::mkdir(folder.c_str(), 0755) < 0 || ::pipe2(ends, O_CLOEXEC) < 0) return failed("prepare");
  ::fflush(nullptr);
  pid_t child = ::fork();
  if (child < 0) return failed("fork");
  if (child == 0) {
    prepare(folder);
    Answer answer = check.run();
    std::string text = std::to_string(answer.kind) + answer.text;
    ::_exit(::write(ends[1], text.data(), text.size()) < 0);
  }
  ::close(ends[1]);
  std::string text;
  pollfd ready{ends[0], POLLIN, 0};
  const bool in_time = ::poll(&ready, 1, kPatience) == 1;
  char buffer[4096];
  ssize_t n = in_time ? ::read(ends[0], buffer, sizeof buffer) : 0;
  if (n > 0) text.assign(buffer, static_cast<size_t>(n));
  ::close(ends[0]);
  // What it started is in its session, or dies with it.
  if (in_time && text.empty()) {
    int code = end_of(child);
    ::kill(-child, SIGKILL);
    return differs(code > 128 ? std::string("died of SIG") + ::sigabbrev_np(code - 128) : "left without an answer");
  }
  ::kill(-child, SIGKILL);
  ::kill(child, SIGKILL);
  (void)end_of(child);
  if (!in_time) return differs("hangs");
  return {static_cast<Answer::Kind>(text[0] - '0'), text.substr(1)};
}

int run_all(int argc, char** argv) {
  // A disk's file system, as the folders have that agents work in; /tmp may be memory.
  std::string work = (::access("/var/tmp", W_OK) == 0 ? "/var/tmp" : "/tmp") + std::string("/isola-behaviour-XXXXXX");
  if (!::mkdtemp(work.data()) || ::chmod(work.c_str(), 0755) < 0) {
    ::perror("isola-behaviour: cannot make a folder");
    return 1;
  }
  int ran = 0;
  for (const Topic& topic : topics()) {
    for (const Check& check : topic.checks) {
      bool wanted = argc < 2;
      for (int i = 1; i < argc; ++i) wanted |= check.name == argv[i];
      if (!wanted) continue;
      ++ran;
      Answer answer = run(check, work);
      std::string line(check.name);
      line += answer.kind == Answer::ok ? " ok" : answer.kind == Answer::differs ? " differs: " : " not there: ";
      for (char& c : answer.text)
        if (static_cast<unsigned char>(c) < ' ') c = ' ';
      ::puts((line + answer.text).c_str());
      ::fflush(stdout);
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(work, ignored);
  return ran > 0 ? 0 : 2;
}

}  // namespace
}  // namespace isola::behaviour

int main(int argc, char** argv) {
  using namespace isola::behaviour;
  if (argc > 1 && std::string_view(argv[1]) == "helper") return helper(argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "list") {
    for (const Topic& topic : topics())
      for (const Check& check : topic.checks)
        ::printf("%s\t%s\t%s\n", std::string(topic.name).c_str(), std::string(check.name).c_str(),
                 std::string(check.claim).c_str());
    return 0;
  }
  return run_all(argc, argv);
}
