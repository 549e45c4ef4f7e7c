// Tokens in the files of images, told by their looks: as root, in the layers as the launcher sees them.
#pragma once

#include <string>
#include <vector>

namespace isola::cli {

struct ImageFiles {
  std::vector<std::string> found;   // "image m… (GitHub personal access token)", each once
  std::vector<std::string> missed;  // that could not be looked at
  size_t texts = 0;
};

// Of images by their ids; anything else (the digest of a template that was imported whole) is missed.
ImageFiles look_into_images(const std::string& data_dir, const std::vector<std::string>& ids);

}  // namespace isola::cli
