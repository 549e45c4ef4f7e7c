// Images by reference, as people write them: "python:3.12", "ghcr.example/team/app@sha256:…".
//
//   ISOLA_TRY(auto image, parse_reference("python:3.12"));
//   to_text(image);   // "docker.io/library/python:3.12"
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::image {

struct ImageReference {
  std::string registry;     // "docker.io" where none is named; with its port
  std::string repository;   // "library/python"
  std::string tag, digest;  // one of them; the tag is "latest" where none is named; the digest: 64 hex digits
  bool operator==(const ImageReference&) const = default;
};

// Only what registries allow: nothing in it can be taken for an option, a path of this machine or another transport.
Result<ImageReference> parse_reference(std::string_view text);
std::string to_text(const ImageReference& image);

}  // namespace isola::image
