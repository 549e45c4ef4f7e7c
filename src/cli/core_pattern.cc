#include "cli/core_pattern.h"

namespace isola::cli {

// The kernel looks at the very first character, and takes a blank before it for part of a file's name.
CoreRoad core_road(std::string_view pattern) {
  if (pattern.starts_with('|')) return CoreRoad::program;
  return pattern.starts_with('@') ? CoreRoad::socket : CoreRoad::file;
}

}  // namespace isola::cli
