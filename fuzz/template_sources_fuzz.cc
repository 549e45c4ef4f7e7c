// What templates are made of, as strangers write it: Dockerfiles, devcontainer.json, manifests of images, names of
// images. Whatever is understood is bounded, and a name that is understood is the same when it is written and read
// again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "builder/devcontainer.h"
#include "builder/dockerfile_spec.h"
#include "image/oci_layout.h"
#include "image/oci_reference.h"

using namespace isola;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (auto file = builder::parse_dockerfile(input, {})) (void)builder::to_spec(*file, std::string(64, 'a'));
  if (auto dev = builder::parse_devcontainer(input, {})) {
    auto written = builder::to_written(*dev, "FROM base\nCOPY a b\n", std::string(64, 'a'));
    if (written) (void)builder::read_written(*written, {});
  }
  (void)image::read_manifest(input);
  if (auto name = image::parse_reference(input)) {
    std::string text = image::to_text(*name);
    auto again = image::parse_reference(text);
    if (!again || *again != *name || text.starts_with('-')) std::abort();
  }
  return 0;
}
