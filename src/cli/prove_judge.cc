#include "cli/prove_judge.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>

namespace isola::cli {

namespace {
// The last line that begins with a word of the program's own.
std::string said(const std::string& output) {
  for (const char* word : {"BREACH ", "contained ", "untried "}) {
    size_t at = output.rfind(word);
    if (at != std::string::npos) return output.substr(at, output.find('\n', at) - at);
  }
  return output.substr(0, 160);
}
}  // namespace

bool ended_by_limit(const ProveRunner::Outcome& outcome, BoundaryKind kind) {
  return outcome.end == to_string(EndReason::oom) || outcome.end == to_string(EndReason::limit) ||
         (kind != BoundaryKind::jail && outcome.end == to_string(EndReason::boundary_failure));
}

bool allowed_inside(const HostileProgram& program, BoundaryKind kind) {
  return std::ranges::find(program.allowed_inside, to_string(kind)) != program.allowed_inside.end();
}

bool may_end_by_limit(const HostileProgram& program) { return program.expect == "killed-by-limit"; }

Proof judge(const HostileProgram& program, const ProveRunner::Outcome& outcome, const std::string& secret,
            BoundaryKind kind) {
  using enum Proof::Verdict;
  std::string line = said(outcome.output);
  if (outcome.output.find(secret) != std::string::npos) return {breach, "the host's secret was printed"};
  bool limited = may_end_by_limit(program), floods = program.expect == "floods";
  if (!outcome.exit) {  // the sandbox itself ended, or does not answer
    if (limited && ended_by_limit(outcome, kind)) return {held, "the sandbox was ended by a limit"};
    if (allowed_inside(program, kind) && !outcome.end.empty()) return {held, "it ended its own sandbox"};
    // Who may write there spoils it, and the host takes it for what it is; or nobody answers any more.
    if (allowed_inside(program, kind) && outcome.exit.error().code == Code::corrupt)
      return {held, "it spoilt the link of its own sandbox"};
    if (allowed_inside(program, kind) && outcome.exit.error().code == Code::timeout)
      return {held, "it stopped its own sandbox"};
    return {error, fmt::format("{} (the sandbox: {})", outcome.exit.error().message,
                               outcome.end.empty() ? "lives" : outcome.end)};
  }
  const guest::Exit& exit = *outcome.exit;
  if (program.expect == "times-out") return exit.timed_out ? Proof{held, "ended by the timeout"} : Proof{error, line};
  // At its memory limit a sandbox may crawl (its own program's pages are thrown out and read again) instead of dying.
  if (exit.timed_out && limited) return {held, "at its limit until the timeout ended it"};
  if (exit.timed_out && !floods) return {error, "it did not end within its time: " + line};
  // Whoever is killed before it could finish has shown nothing, unless running into a limit is what it is about.
  if (exit.signal == SIGKILL && limited) return {held, "killed by a limit"};
  if (floods && (exit.timed_out || exit.code == 0)) return {held, fmt::format("{} bytes of output", outcome.bytes)};
  if (exit.code == 10) return {held, line};
  if (exit.code == 77) return {untried, line};
  if (exit.code == 0 && allowed_inside(program, kind))
    return {held, "only the sandbox's own kernel was reached: " + line};
  if (exit.code == 0) return {breach, line};
  return {error, fmt::format("exit code {}, signal {}: {}", exit.code, exit.signal, line)};
}

}  // namespace isola::cli
