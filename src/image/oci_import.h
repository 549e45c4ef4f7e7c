// Images of other tools as templates: from a folder or an archive on disk, or from a registry.
//
//   ISOLA_TRY(Template made, import_image(cache, "/tmp/python.tar", "python", show));
//   ISOLA_TRY(Template made, pull_image(cache, "python:3.12", {}, show));        // named after what it is: oci-1f0c…
//
// As root. What a stranger packed is unpacked by isola-unpack, and fetched by skopeo as nobody, each with nothing but a
// folder of its own.
#pragma once

#include <cstdint>
#include <string>

#include "image/template_cache.h"

namespace isola::image {

struct PullOptions {
  std::string name = {};                      // empty: oci- and the beginning of its digest
  bool anonymous = false;                     // without the credentials of this machine: for somebody else
  std::string credentials = {};               // that somebody's own, as an auth.json; in the place of this machine's
  uint64_t most_bytes = uint64_t{16} << 30;   // of the image, packed and unpacked
  uint64_t most_of_all = uint64_t{64} << 30;  // of all that were pulled and have names of that kind
};

// `source`: a folder (an OCI layout) or a file (`docker save`, or an OCI layout as a tar). `name` empty: disk- and
// the beginning of its digest.
Result<Template> import_image(TemplateCache& cache, const std::string& source, const std::string& name,
                              const Progress& progress);
// By reference; at once if it is here already. unavailable: the registry does not answer; not_found: it has no such
// image.
Result<Template> pull_image(TemplateCache& cache, const std::string& reference, const PullOptions& options,
                            const Progress& progress);
// Removes what those that were killed left: what they had fetched, and the credentials that they did it with.
Result<void> sweep_pulls(const std::string& cache_dir);
// A name that pull_image chose: projects have it through a FROM of their own alone.
bool is_pulled_name(const std::string& name);
// A name that import_image chose.
bool is_imported_name(const std::string& name);

}  // namespace isola::image
