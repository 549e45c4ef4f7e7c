#include "image/template_index.h"

#include <sys/stat.h>
#include <unistd.h>

namespace isola::image {

Result<std::string> TemplateIndex::digest(const std::string& name) {
  ISOLA_TRY(Template found, find(name));
  return std::move(found.digest);
}

Result<Template> TemplateIndex::find(const std::string& name) {
  // Looked at before the manifest is read: what changes in between is read again the next time.
  struct stat st{};
  ISOLA_TRY(std::string manifest, cache_.manifest_path(name));
  Version version;
  if (::stat(manifest.c_str(), &st) == 0)
    version = {st.st_dev, st.st_ino, st.st_size, st.st_ctim.tv_sec, st.st_ctim.tv_nsec};
  {
    std::lock_guard lock(mutex_);
    auto known = entries_.find(name);
    if (version.inode != 0 && known != entries_.end() && known->second.version == version &&
        ::access(cache_.blob_path(known->second.found.digest).c_str(), F_OK) == 0)
      return known->second.found;
  }
  ISOLA_TRY(Template found, cache_.find(name));
  found.packages.clear();  // long, and nobody asks here
  std::lock_guard lock(mutex_);
  if (entries_.size() >= kMost) entries_.clear();
  entries_[name] = {version, found};
  return found;
}

}  // namespace isola::image
