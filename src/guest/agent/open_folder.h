// A folder that is being read, closed by whoever drops it.
#pragma once

#include <dirent.h>

#include <memory>

namespace isola::guest {

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};
using OpenFolder = std::unique_ptr<DIR, CloseFolder>;

}  // namespace isola::guest
