// Which versions of the programs under a sandbox are in use, and which of them are known to lack something that matters
// here: a small table, one row for each series of a program that got the fix (docs/boundaries.md has it in words).
//
//   ISOLA_TRY(std::string text, output_of("/usr/sbin/criu", "--version"));  // program_output.h
//   std::string why = known_concern(Program::criu, version_in(text));     // empty: nothing is known against it
#pragma once

#include <string>
#include <string_view>

namespace isola::boundary {

enum class Program { kernel, criu, runsc, qemu };
std::string_view to_string(Program program);

// Empty, or what an older version than the first good one of its series lacks. What does not read as a version, and a
// kernel whose number says nothing of what its distribution mended in it, is no concern.
std::string known_concern(Program program, std::string_view version);

// "4.2.1" of "Version: 4.2.1": the first word that begins with a digit and has a dot in it; or nothing.
std::string version_in(std::string_view text);

// "20240729" of "0.0~20240729.0" or "release-20240729.0": what counts in a version of runsc's; or nothing.
std::string_view day_in(std::string_view version);

// The kernel that runs, as its authors number it: distributions name theirs otherwise, and Debian says both.
std::string kernel_version(std::string_view release, std::string_view build);

}  // namespace isola::boundary
