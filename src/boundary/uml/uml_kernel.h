// The kernel that runs as a program (user-mode Linux), as it is found on this machine, with the empty disk that goes
// with it: `./dev up --boundary uml` builds both (scripts/dev/uml.sh).
//
//   auto kernel = UmlKernel::find();
//   if (!kernel) say(kernel.error().message);    // what is missing
//
// ISOLA_UML names another one than that of the usual place (its disk is beside it); "none" is no kernel at all.
#pragma once

#include <string>

#include "base/error.h"

namespace isola::boundary::uml {

struct UmlKernel {
  std::string program;  // without symbolic links
  std::string disk;     // an ext4 of a few MiB, with holes
  std::string version;  // "6.1.190-isola"

  static Result<UmlKernel> find();
  // It works, but newer ones mend much; empty: recent enough.
  std::string concern() const;
};

// From what `linux --version` prints.
Result<std::string> parse_kernel_version(const std::string& text);

}  // namespace isola::boundary::uml
