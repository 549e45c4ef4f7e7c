// isola-hostile: `isola-hostile list [--json|--markdown]`, `isola-hostile NAME [ARGS]`. See program.h.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dialog.h"
#include "holder.h"
#include "probe.h"
#include "program.h"

namespace isola::hostile {
namespace {

constexpr struct {
  unsigned flag;
  std::string_view name;
} kFlagNames[] = {{kNeedsMemoryLimit, "memory-limit"}, {kNeedsPidsLimit, "pids-limit"},
                  {kNeedsDiskLimit, "disk-limit"},     {kSlow, "slow"},
                  {kNeedsNeighbour, "neighbour"},      {kNeedsOutside, "outside"}};

std::string flag_words(unsigned flags, std::string_view quote) {
  std::string words;
  for (auto [flag, name] : kFlagNames) {
    if (flags & flag) words += fmt::format("{}{}{}{}", words.empty() ? "" : ",", quote, name, quote);
  }
  return words;
}

// The table's texts are our own: quotes and backslashes are all that can stand in them.
std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

int list(std::string_view form) {
  if (form == "--json") ::puts("[");
  if (form == "--markdown")
    ::puts("| program | class | tries | contained means | expect | needs | control |\n|---|---|---|---|---|---|---|");
  const char* comma = "";
  for (const Program* p : all_programs()) {
    std::string line;
    if (form == "--json") {
      line = fmt::format(
          "{} "
          "{{\"name\":{},\"class\":{},\"tries\":{},\"containment\":{},\"expect\":\"{}\",\"needs\":[{}],\"control\":{},"
          "\"no_control\":{},\"leaks\":{},\"leaks_most\":{},\"allowed_inside\":[{}]}}",
          comma, json_text(p->name), json_text(p->group), json_text(p->tries), json_text(p->containment),
          to_string(p->expect), flag_words(p->flags, "\""), p->no_control.empty(), json_text(p->no_control),
          json_text(p->leaks), p->leaks_most,
          allowed_inside(p->name).empty() ? "" : json_text(allowed_inside(p->name)));
      comma = ",";
    } else if (form == "--markdown") {
      line = fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |", p->name, p->group, p->tries, p->containment,
                         to_string(p->expect), flag_words(p->flags, ""),
                         p->no_control.empty() ? "yes" : fmt::format("no: {}", p->no_control));
    } else {
      line = fmt::format("{:28} {:10} {:16} {}", p->name, p->group, to_string(p->expect), p->tries);
    }
    ::puts(line.c_str());
  }
  if (form == "--json") ::puts("]");
  return 0;
}

int report(const Program& program, const Outcome& outcome) {
  const char* word = outcome.kind == Outcome::breach      ? "BREACH"
                     : outcome.kind == Outcome::contained ? "contained"
                                                          : "untried";
  ::printf("%s %s: %s\n", word, std::string(program.name).c_str(), outcome.how.c_str());
  ::fflush(nullptr);
  return outcome.kind;
}

int run(const Program& program, const Args& args) {
  ::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (program.flags & kRunsBare) return report(program, program.run(args));
  // In a child: a filter that kills, or a limit that does, is containment too, and somebody has to be left to say so.
  ::fflush(nullptr);
  pid_t child = ::fork();
  if (child < 0) return report(program, contained("fork: " + errno_name(errno)));
  if (child == 0) ::_exit(report(program, program.run(args)));
  ::signal(SIGUSR1, SIG_IGN);  // for whoever holds something until told: see programs/exhaust.cc
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  int signal = WTERMSIG(status);
  bool by_limit = signal == SIGKILL && program.expect == Expect::killed_by_limit;
  if (signal == SIGSYS || by_limit)
    return report(program, contained(fmt::format("killed by SIG{}", ::sigabbrev_np(signal))));
  ::fprintf(stderr, "%s: died of SIG%s\n", std::string(program.name).c_str(), ::sigabbrev_np(signal));
  return 128 + signal;
}

}  // namespace
}  // namespace isola::hostile

int main(int argc, char** argv) {
  using namespace isola::hostile;
  if (!env("ISOLA_SHEBANG_VICTIM").empty()) {  // started as the interpreter of a script: see programs/exe.cc
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::pause();
    return 1;
  }
  std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "list") return list(argc > 2 ? argv[2] : "");
  if (name == "resolve" && argc == 3) return ::puts(resolve(argv[2]).c_str()) < 0;  // for a neighbour: its address
  if (name == "hold") return hold(argc > 2 ? argv[2] : "");
  const Program* program = find_program(name);
  if (!program) {
    ::fprintf(stderr, "usage: isola-hostile list [--json|--markdown] | NAME [ARGS]\n");
    return 2;
  }
  return run(*program, Args(std::span<char* const>(argv + 2, static_cast<size_t>(argc - 2))));
}
