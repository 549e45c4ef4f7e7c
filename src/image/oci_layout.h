// Images of other tools, as they lie on disk: an OCI layout (a folder with `oci-layout`, `index.json` and blobs), or
// what `docker save` packed, unpacked.
//
//   ISOLA_TRY(OciImage image, read_image_folder("/tmp/python"));
//   for (const auto& layer : image.layers) apply(layer.path);   // after check_layer(layer)
//
// Nothing in it is trusted: names stay inside the folder, sizes are bounded, digests are compared.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::image {

struct OciLayer {
  Fd file;
  std::string name;    // as errors show it
  std::string digest;  // SHA-256 of the file; empty: nobody says
  uint64_t size = 0;
};

struct OciImage {
  std::string digest;                                    // of its manifest
  std::vector<std::pair<std::string, std::string>> env;  // as ENV set them
  std::string user, cwd;                                 // empty: root, "/"
  std::vector<OciLayer> layers;                          // the lowest first
};

// One entry of an index, or the manifest itself.
struct OciDescriptor {
  std::string digest;  // 64 hex digits
  uint64_t size = 0;
};

// What an index or a manifest means for this machine (linux, amd64): another manifest, or layers.
struct OciManifest {
  std::string next;  // a digest: the manifest to read instead of this index; empty: it is a manifest
  OciDescriptor config;
  std::vector<OciDescriptor> layers;
};
Result<OciManifest> read_manifest(std::string_view json);

// corrupt: not an image, or not a whole one; unsupported: of another kind of machine.
Result<OciImage> read_image_folder(const std::string& folder);
// The file is what its digest says.
Result<void> check_layer(const OciLayer& layer);

}  // namespace isola::image
