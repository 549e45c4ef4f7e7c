// Runs one external program and waits for it: no shell, no inherited descriptors beyond standard ones, output into a
// log file whose last lines become part of the error.
//
//   ISOLA_CHECK(run({.argv = {"mkfs.btrfs", "-q", path}, .what = "formatting the store"}));
//
// With `contained` the program gets a mount and a pid namespace of its own and dies with the caller, however the
// caller dies: nothing that it mounted or started outlives it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace isola::image {

struct Command {
  std::vector<std::string> argv;  // argv[0] is looked up in PATH
  std::vector<std::string> env;   // added to a small clean environment (PATH, LC_ALL and what leads to the machine's
                                  // own sources), before which it goes
  std::string what;               // "formatting the store": the start of an error message
  std::string log;                // a file that standard output and error are appended to; empty: a private one
  bool contained = false;
  bool strict = false;                                   // whatever it has to say on standard error is a failure
  int input = -1;                                        // a descriptor for its standard input; -1: none
  std::function<void(std::string_view last_line)> tick;  // about once a second while it runs
};

Result<void> run(const Command& command);
// The same, and gives back what it wrote on standard output (at most 4 MiB).
Result<std::string> run_output(const Command& command);
// The full path of a program, or Code::not_found.
Result<std::string> find_program(const std::string& name);

}  // namespace isola::image
