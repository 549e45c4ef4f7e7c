// Whether a cell that is being typed goes on in the next line: brackets are open, the line ends with a backslash or
// begins a block (`:`); a block ends with an empty line.
#pragma once

#include <string_view>

namespace isola::cli {

bool wants_more(std::string_view cell);  // with the newline of its last line

}  // namespace isola::cli
