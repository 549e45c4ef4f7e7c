// Templates: images that sandboxes start from, built once per machine and shared by every data directory.
//
//   ROOT/blobs/<sha256>.erofs     contents, named by their digest
//   ROOT/templates/<name>.json    manifest: which blob, and how it was made
//   ROOT/build/<name>-XXXXXX/     a build in progress; whoever holds the flock on its `lock` owns it
//   ROOT/build/<name>.lock        taken by the one build of that name
//
//   TemplateCache cache;                                   // /var/cache/isola
//   ISOLA_TRY(Template base, cache.build("base", show));   // at once if it is there and current
//   ISOLA_TRY(Fd root, mount_blob(cache.blob_path(base.digest)));
//
// Every step is atomic for other processes: a manifest names a blob that is whole and on disk, or it is not there. A
// build that was killed leaves a folder that the next one removes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "image/build_folder.h"
#include "image/build_place.h"
#include "image/progress.h"

namespace isola::image {

inline constexpr int kManifestVersion = 1;

struct Template {
  std::string name;
  std::string digest;   // SHA-256 of the blob: 64 hex digits
  uint64_t size = 0;    // of the blob, bytes
  int64_t created = 0;  // seconds since 1970
  // How it was made: digest of the recipe, the distribution and the package sources. A cached template whose key is
  // not the one that a build would have now is stale, and `build` makes it anew.
  std::string key;
  std::string distribution;           // "debian bookworm"
  std::vector<std::string> packages;  // name=version, sorted
  std::vector<std::string> parents;   // digests of the blobs below this one (none yet)
  // Of an image of another tool: where it came from (empty: made here), and what its sandboxes begin with.
  std::string origin;
  std::vector<std::string> env;  // NAME=value
  std::string user, cwd;         // of commands that name none
};

// Fills place.root() with a template's files and returns what it put there, as name=version.
using TreeMaker = std::function<Result<std::vector<std::string>>(const BuildPlace& place, const Reporter& report)>;

class TemplateCache {
 public:
  explicit TemplateCache(std::string root = "/var/cache/isola");

  Result<Template> find(const std::string& name) const;  // Code::not_found, Code::corrupt
  Result<std::vector<Template>> list() const;            // sorted by name
  std::string blob_path(const std::string& digest) const;
  Result<std::string> manifest_path(const std::string& name) const;  // whether it is there or not
  const std::string& root() const { return root_; }

  // Returns the cached template if it is current, else makes it. Two builds of one name wait for each other and share
  // the result. `again` makes it anew in any case.
  Result<Template> build(const std::string& name, const Progress& progress, bool again = false);
  // The same with files that the caller makes: `wanted` says name, key and distribution. `most`: bytes of the blob, if
  // the files are a stranger's.
  Result<Template> build_from(const Template& wanted, const TreeMaker& make, const Progress& progress,
                              bool again = false, uint64_t most = 0);
  // For what is not a template yet: nobody else gets there, whatever modes it has inside.
  Result<BuildFolder> closed_folder(const std::string& name);
  // A ready-made root folder as a template (tests; later: images made from sandboxes).
  Result<Template> import_tree(const std::string& name, const std::string& folder, const std::string& key,
                               const Progress& progress);

  Result<void> verify(const std::string& name) const;  // reads the whole blob; Code::corrupt names what is wrong
  Result<void> remove(const std::string& name);        // the name only; idempotent
  // Removes blobs that no manifest names, and leftovers of dead builds. Returns how many bytes became free. A blob that
  // is mounted stays usable until its last mount goes.
  Result<uint64_t> collect();

 private:
  std::string root_;
};

// Names that `build` knows ("base", "minimal").
std::vector<std::string> known_templates();

}  // namespace isola::image
