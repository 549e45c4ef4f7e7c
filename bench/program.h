// An ordinary program of the host, started the cheapest way there is (vfork) and timed: the bare process that sandboxes
// are compared with, and the command lines of other runtimes.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace isola::bench {

struct Timing {
  double first = 0;  // microseconds from the start to the first byte of output
  double exit = 0;   // … until it is known how it ended
};

struct Program {
  std::vector<std::string> argv;  // argv[0] is a path
  std::string root;               // chroot there first
  std::string cwd = "/";
  std::vector<std::string> environment = {};  // at most two more words of it
  int extra = -1;                             // becomes descriptor 9 of the program (bwrap reads its filter there)
};

// Runs it to its end. `expected` is what it has to say, or empty. Failing (another exit code, another output) is an
// error that quotes it. Standard error is read too, as part of the output.
Result<Timing> run_program(const Program& program, const std::string& expected = {});
// Its path, or empty when it is not installed.
std::string installed(const std::string& name);

}  // namespace isola::bench
