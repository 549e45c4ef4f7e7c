// The images of one data directory.
//
//   ImageStore images(data_dir + "/images");
//   ISOLA_TRY(Draft draft, images.begin());           // a folder, locked by whoever holds the draft
//   …criu writes into draft.memory…
//   ISOLA_TRY(image.files, images.sum_up(draft.id));  // checksums, and everything on disk
//   ISOLA_CHECK(images.commit(image));                // from here on it is there
//
// A crash at any point leaves the image whole or not at all: a folder without a manifest is removed by collect(),
// unless somebody still holds its lock. Everything here can be called from a helper process as well.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "base/ids.h"
#include "image/chunk_sums.h"
#include "image/image.h"

namespace isola::image {

struct Draft {
  std::string id;
  std::string memory;  // its folder for the memory
  Fd lock;
};

class ImageStore {
 public:
  explicit ImageStore(std::string root) : root_(std::move(root)) {}
  const std::string& root() const { return root_; }

  Result<Draft> begin(const std::string& id = new_image_id());  // Code::exists
  // Of everything in its memory folder; each is on disk when this returns. Logs of criu's are removed.
  Result<std::vector<ImageFile>> sum_up(const std::string& id, const KnownSums& known = {}) const;
  Result<void> commit(const Image& image) const;  // one with memory: after sum_up()
  // The same for one that is there: its manifest is another from now on. One that was dropped is not brought back.
  Result<void> change(const Image& image) const;  // Code::not_found

  Result<Image> find(const std::string& id) const;  // Code::not_found, corrupt, unsupported
  // Those that can be read; `broken` is told of the others.
  Result<std::vector<Image>> list(const std::function<void(const std::string& id, const Error&)>& broken = {}) const;
  std::string memory_folder(const std::string& id) const { return root_ + "/" + id + "/memory"; }

  // Checksums of all chunks; Code::corrupt names the file and the chunk. `thorough`: as it lies on the disk, and
  // SHA-256 as well, where it is known.
  Result<void> verify(const Image& image, bool thorough) const;
  // Adds SHA-256 to an image's files, unless somebody changed it meanwhile: then there is nothing to add.
  Result<void> seal(const std::string& id) const;

  // In two steps, of which the first makes it gone: the manifest, then what is left (which may take a while).
  Result<void> drop(const std::string& id) const;    // Code::not_found
  Result<void> remove(const std::string& id) const;  // idempotent
  // Somebody holds its draft.
  bool busy(const std::string& id) const;
  // Folders that are no images and that nobody is working on.
  Result<std::vector<std::string>> leftovers() const;

 private:
  std::string folder(const std::string& id) const { return root_ + "/" + id; }
  Result<void> write_manifest(const Image& image) const;
  Result<void> verify_archives(const Image& image, bool thorough) const;
  Result<Fd> lock_manifest(const std::string& id) const;  // Code::not_found
  std::string root_;
};

}  // namespace isola::image
