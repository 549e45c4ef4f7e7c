// Where a copy comes from or goes to: a path here, or ID:PATH in a sandbox. As with scp, a colon makes it a sandbox's
// unless a slash stands before it: ./a:b is a file here. `-` is standard input or output.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::cli {

struct Place {
  std::string sandbox;  // empty: here
  std::string path;
  bool here() const { return sandbox.empty(); }
  bool stream() const { return here() && path == "-"; }
};
Result<Place> parse_place(std::string_view text);

std::string last_part(std::string_view path);  // "a/b/" → "b"; "/" and "." have none
// Where a thing called `name` ends up that is copied to `target`: in it, if it is a folder.
std::string target_of(const std::string& target, bool is_folder, const std::string& name);

}  // namespace isola::cli
