// A command of the service's own: run to its end, with the last of what it said for an error message.
#pragma once

#include <string>

#include "sandbox/service.h"

namespace isola::sandbox {

struct QuietEnd {
  guest::Exit exit;
  std::string output;
};

// What it said, at the end of an error's message: on a line of its own, for whoever asked. Records keep what stands
// before that line (own_words), since what a program says may be anything, a value that nobody is to keep included.
std::string and_said(const QuietEnd& end);
std::string own_words(std::string_view message);
// Whether there are others in it.
inline bool repeats_inside(std::string_view message) { return own_words(message).size() != message.size(); }

Task<Result<QuietEnd>> run_quietly(Service& service, BoxPtr box, CommandSpec spec);

}  // namespace isola::sandbox
