// Small checks of what Linux does, as programs rely on it: one static program holds them all, and is run bare and
// inside every boundary. Where an answer is not `ok`, the boundary differs from Linux, and differences.json must say
// so.
//
//   {"pipe-eof", "a pipe without writers reads as ended", [] {
//      int ends[2];
//      NEED("pipe", ::pipe(ends));
//      ::close(ends[1]);
//      char c;
//      WANT(::read(ends[0], &c, 1) == 0, "no end of file");
//      return ok();
//    }},
//
// Each runs in a process, a session and an empty folder of its own, and is ended after fifteen seconds: so a check
// closes nothing, may die, and leaves nothing behind. What it says must be the same each time: no numbers of processes,
// no addresses, no times. It may do nothing that the host would feel, since it is run there as root, too.
#pragma once

#include <errno.h>
#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>

namespace isola::behaviour {

struct Answer {
  enum Kind { ok, differs, missing } kind = ok;
  std::string text;
};
inline Answer ok() { return {}; }
inline Answer differs(std::string how) { return {Answer::differs, std::move(how)}; }
// A call that failed: `missing` where the kernel says that it has no such thing.
Answer failed(std::string_view what, int error = errno);
// A call that must fail in one way.
Answer refused(std::string_view what, long result, int wanted);

#define NEED(what, ...) \
  if ((__VA_ARGS__) < 0) return failed(what)
#define WANT(condition, why) \
  if (!(condition)) return differs(why)
#define REFUSED(what, call, wanted) \
  if (auto answer_ = refused(what, (call), wanted); answer_.kind != Answer::ok) return answer_

struct Check {
  std::string_view name;
  std::string_view claim;  // what Linux does
  Answer (*run)();
};

struct Topic {
  std::string_view name;
  std::span<const Check> checks;
};
std::span<const Topic> topics();

// ---- tools
// -----------------------------------------------------------------------------------------------------------

std::string errno_name(int error);
std::string slurp(const std::string& path);  // up to 64 MiB; empty when it cannot be read
bool spill(const std::string& path, std::string_view text, mode_t mode = 0644);
int scratch_file(std::string_view text = "", const char* name = "file");  // open for both, at its beginning
std::string line_of(const std::string& text, std::string_view start);     // the rest of the first line that starts so

// Runs it in a child, whose exit code it returns; 128 + the signal that ended it; -1 without a child.
template <typename F>
int in_child(F f);
template <typename F>
pid_t begin_child(F f);  // as in_child, to be waited for with end_of
int end_of(pid_t child);

// The folder's name in /proc as the check's child sees it, and the like.
std::string own(const char* what);  // "/proc/self/" + what

bool readable(int fd, int milliseconds);  // by poll
long now_ms();                            // monotonic

pid_t fork_child();  // fork, and the child is killed with its parent
[[noreturn]] void leave(int code);

template <typename F>
pid_t begin_child(F f) {
  pid_t child = fork_child();
  if (child == 0) leave(f());
  return child;
}
template <typename F>
int in_child(F f) {
  return end_of(begin_child(std::move(f)));
}

}  // namespace isola::behaviour
