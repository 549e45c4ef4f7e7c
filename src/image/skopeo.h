// skopeo, which speaks with registries: run as nobody, without capabilities, in namespaces of its own that end with it,
// able to write to one folder. What it knows of registries is the machine's own configuration (/etc/containers, or the
// file that CONTAINERS_REGISTRIES_CONF names), and root's credentials where there are some.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "image/oci_reference.h"

namespace isola::image {

class Skopeo {
 public:
  // `folder`: private, and given to it. `anonymous`: what it fetches is for somebody who has no right to the machine's
  // credentials. `own`: those of whoever it is for, as an auth.json; only its folder has them, until the image is
  // there.
  static Result<Skopeo> open(const std::string& folder, const std::string& log, bool anonymous,
                             const std::string& own = {});

  // The manifest as the registry has it: a list, or the image's own.
  Result<std::string> manifest(const ImageReference& image) const;
  // Into an OCI layout, whose path it gives. `largest`: bytes of a file. The last thing that it does: the folder is
  // root's again.
  Result<std::string> copy(const ImageReference& image, uint64_t largest) const;

 private:
  Skopeo(std::string folder, std::string log, bool credentials)
      : folder_(std::move(folder)), log_(std::move(log)), credentials_(credentials) {}
  Result<std::string> run(std::vector<std::string> words, const ImageReference& image, uint64_t largest) const;
  std::string folder_, log_;
  bool credentials_;
};

}  // namespace isola::image
