// Templates by name, for whoever asks a thousand times a second: a manifest is read again only when it changed.
//
//   TemplateIndex index(TemplateCache("/var/cache/isola"));
//   ISOLA_TRY(std::string digest, index.digest("base"));   // the same answer as TemplateCache::find()
//
// Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <ctime>
#include <map>
#include <mutex>
#include <string>

#include "image/template_cache.h"

namespace isola::image {

class TemplateIndex {
 public:
  explicit TemplateIndex(TemplateCache cache) : cache_(std::move(cache)) {}
  Result<std::string> digest(const std::string& name);
  Result<Template> find(const std::string& name);  // without its list of packages

 private:
  // A manifest is replaced whole, by a file that was written elsewhere: another one is another inode, or has been
  // changed at another time.
  struct Version {
    dev_t device = 0;
    ino_t inode = 0;
    int64_t size = 0, seconds = 0, nanoseconds = 0;
    bool operator==(const Version&) const = default;
  };
  struct Entry {
    Version version;
    Template found;
  };
  static constexpr size_t kMost = 1024;

  const TemplateCache cache_;
  std::mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace isola::image
