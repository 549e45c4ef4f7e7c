// The seam through which tests make kernel calls fail.
//
// Every wrapper in this room asks `fault::at("name")` before its system call and, if that is not 0, fails with that
// errno as if the kernel had said so. In a release build the question is a constant 0.
//
//   if (int e = fault::at("move_mount")) return sys_error("cannot attach the mount", e);
//
// A test arms the seam in its own process, or a whole launcher through the environment (ISOLA_FAULT), as
// "name:nth:errno" ("*" = any name): the nth time that name is asked, it fails. `fault::asked()` counts all questions,
// so that a test can walk "the 1st, 2nd, 3rd … call of a launch fails" until a launch asks no further question.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace isola::kernel::fault {

#ifdef ISOLA_FAULTS
int at(std::string_view name);
Result<void> arm(std::string_view plan);
void arm_from_environment();
void disarm();
uint64_t asked();
constexpr bool kCompiledIn = true;
#else
inline int at(std::string_view) { return 0; }
inline Result<void> arm(std::string_view) { return fail(Code::unsupported, "this build has no fault injection"); }
inline void arm_from_environment() {}
inline void disarm() {}
inline uint64_t asked() { return 0; }
constexpr bool kCompiledIn = false;
#endif

}  // namespace isola::kernel::fault
