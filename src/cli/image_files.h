// Tokens in the files of images and templates, told by their looks: as root, in the layers as the launcher sees them,
// and in the templates of this machine. Of those not the folders where packages have their programs: what looks like a
// private key there is one that a program knows the beginning of, or shows in its manual.
#pragma once

#include <string>
#include <vector>

namespace isola::cli {

struct ImageFiles {
  std::vector<std::string> found;   // "image m… (GitHub personal access token)", each once
  std::vector<std::string> missed;  // that could not be looked at
  size_t texts = 0;
};

struct ImageNames {
  std::vector<std::string> ids;      // of images
  std::vector<std::string> digests;  // of what was built without layers of its own
};
// And every template of the machine.
ImageFiles look_into_images(const std::string& data_dir, const std::string& cache_dir, const ImageNames& names);

}  // namespace isola::cli
