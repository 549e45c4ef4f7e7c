#include "e2e/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>

namespace isola::e2e {

namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  Fd read, write;
};

Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) < 0) std::abort();
  return {Fd(fds[0]), Fd(fds[1])};
}

[[noreturn]] void become(const Argv& argv, const ProgramOptions& options, int in, int out, int err) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(in, 0), ::dup2(out, 1), ::dup2(err, 2);
  for (const auto& entry : options.env) ::putenv(const_cast<char*>(entry.c_str()));
  std::vector<char*> words;
  for (const auto& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  if (options.before_exec) options.before_exec();
  ::execvp(words[0], words.data());
  ::_exit(errno == E2BIG ? 254 : 253);
}

}  // namespace

std::string Done::text() const {
  auto cut = [](const std::string& s) { return s.size() > 2000 ? s.substr(0, 2000) + "…" : s; };
  return fmt::format("exit code {}{}\n--- out\n{}\n--- err\n{}", code, timed_out ? " (took too long)" : "", cut(out),
                     cut(err));
}

Program::Program(const Argv& argv, ProgramOptions options)
    : options_(std::move(options)), deadline_(Clock::now() + options_.limit) {
  Pipe in = make_pipe(), out = make_pipe(), err = make_pipe();
  pid_ = ::fork();
  if (pid_ < 0) std::abort();
  if (pid_ == 0) become(argv, options_, in.read.get(), out.write.get(), err.write.get());
  in_ = std::move(in.write), out_ = std::move(out.read), err_ = std::move(err.read);
  ::fcntl(in_.get(), F_SETFL, O_NONBLOCK);
  if (options_.input.empty() && !options_.keep_input_open) in_.reset();
  ::signal(SIGPIPE, SIG_IGN);
}

Program::~Program() {
  if (reaped_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Program::signal(int signal) const { ::kill(pid_, signal); }

// One round of reading and feeding; false when both outputs have ended.
bool Program::pump(int timeout_ms) {
  pollfd fds[3] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}, {-1, POLLOUT, 0}};
  bool feeding = in_ && fed_ < options_.input.size();
  if (feeding) fds[2].fd = in_.get();
  if (!out_ && !err_) return false;
  ::poll(fds, 3, timeout_ms);
  auto take = [](pollfd& ready, Fd& fd, std::string& into) {
    if (!fd || !ready.revents) return;
    char buffer[65536];
    ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n > 0)
      into.append(buffer, static_cast<size_t>(n));
    else if (n == 0 || errno != EINTR)
      fd.reset();
  };
  take(fds[0], out_, done_.out);
  take(fds[1], err_, done_.err);
  if (feeding && fds[2].revents) {
    ssize_t n = ::write(in_.get(), options_.input.data() + fed_, options_.input.size() - fed_);
    if (n > 0)
      fed_ += static_cast<size_t>(n);
    else if (errno != EAGAIN && errno != EINTR)
      fed_ = options_.input.size();
    if (fed_ == options_.input.size() && !options_.keep_input_open) in_.reset();
  }
  return true;
}

bool Program::listen_until(const std::function<bool(const Done&)>& enough) {
  while (!enough(done_)) {
    if (Clock::now() > deadline_ || !pump(100)) return false;
  }
  return true;
}

void Program::reap(int flags) {
  int status = 0;
  if (reaped_ || ::waitpid(pid_, &status, flags) != pid_) return;
  reaped_ = true;
  done_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  done_.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

Done Program::finish() {
  while (Clock::now() < deadline_ && pump(100)) {
  }
  // The outputs have ended; the program does so too, or is made to.
  while (!reaped_ && Clock::now() < deadline_) {
    reap(WNOHANG);
    if (!reaped_) ::poll(nullptr, 0, 5);
  }
  if (!reaped_) {
    done_.timed_out = true;
    ::kill(pid_, SIGKILL);
    reap(0);
  }
  return done_;
}

Done run_program(const Argv& argv, ProgramOptions options) { return Program(argv, std::move(options)).finish(); }

bool eventually(const std::function<bool()>& so, std::chrono::seconds limit) {
  auto deadline = Clock::now() + limit;
  while (!so()) {
    if (Clock::now() > deadline) return false;
    ::poll(nullptr, 0, 10);
  }
  return true;
}

}  // namespace isola::e2e
