// Small things about paths that several file operations need.
#pragma once

#include <string>

#include "base/error.h"
#include "base/fd.h"
#include "guest/messages.h"

namespace isola::guest {

// What is told about one name in a folder ("" = the open file itself); a link is described itself unless `follow`.
Result<Stat> stat_at(int dir, const std::string& name, bool follow);
// The folder of that name in `parent`, and never one that a link leads to: this is how trees are walked, whose owners
// may swap a folder for a link at any moment. Empty, with errno, where there is none.
Fd open_folder(int parent, const char* name);
// mkdir -p of everything above the last part.
Result<void> make_parents(const std::string& path, uint32_t mode);
// For messages: cut to a readable length.
std::string shown(const std::string& path);
// "/a/b/c" → "/a/b" and "c"; trailing slashes do not count. The name is empty for "/".
struct Split {
  std::string dir, name;
};
Split split(std::string path);

}  // namespace isola::guest
