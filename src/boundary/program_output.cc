#include "boundary/program_output.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>

#include "base/fd.h"
#include "kernel/process.h"

namespace isola::boundary {

namespace {

constexpr size_t kMostOutput = 256 << 10;
constexpr auto kPatience = std::chrono::seconds(10);

}  // namespace

Result<std::string> output_of(const std::string& program, const std::string& argument) {
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  ISOLA_TRY(auto child, kernel::spawn(0, [&] {
              std::string name = program, word = argument;
              char* const argv[] = {name.data(), word.data(), nullptr};
              char* const env[] = {nullptr};
              if (::dup2(pipe.second.get(), 1) < 0 || ::dup2(pipe.second.get(), 2) < 0) return 1;
              ::execve(name.c_str(), argv, env);
              return 127;
            }));
  pipe.second.reset();
  std::string text;
  char buffer[8192];
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  bool over = false;
  while (!over && text.size() < kMostOutput) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ready{pipe.first.get(), POLLIN, 0};
    int n = left.count() > 0 ? ::poll(&ready, 1, static_cast<int>(left.count())) : 0;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    ssize_t got = ::read(pipe.first.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
    over = got <= 0;
  }
  pipe.first.reset();
  ::kill(child.pid, SIGKILL);  // of no use to anybody any more, if it still is there
  kernel::wait_for(child.pid);
  if (!over && text.size() < kMostOutput) return fail(Code::timeout, program + " " + argument + " does not end");
  return text;
}

}  // namespace isola::boundary
