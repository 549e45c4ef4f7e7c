#include "image/pack.h"

#include <fcntl.h>
#include <fts.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "image/spawn.h"

namespace isola::image {

Result<int64_t> newest_before(const std::string& tree, int64_t build_start) {
  char* roots[] = {const_cast<char*>(tree.c_str()), nullptr};
  std::unique_ptr<FTS, int (*)(FTS*)> walk(::fts_open(roots, FTS_PHYSICAL | FTS_XDEV | FTS_NOCHDIR, nullptr),
                                           ::fts_close);
  if (!walk) return sys_error("cannot walk " + tree);
  int64_t newest = -1;
  errno = 0;
  while (FTSENT* entry = ::fts_read(walk.get())) {
    if (entry->fts_info == FTS_ERR || entry->fts_info == FTS_DNR || entry->fts_info == FTS_NS)
      return sys_error(std::string("cannot read ") + entry->fts_path, entry->fts_errno);
    // Folders change whenever something in them does, so only files tell.
    if (entry->fts_info == FTS_F && entry->fts_statp->st_mtime < build_start)
      newest = std::max<int64_t>(newest, entry->fts_statp->st_mtime);
    errno = 0;
  }
  if (errno) return sys_error("cannot walk " + tree);
  return newest < 0 ? build_start : newest;
}

Result<void> pack_tree(const std::string& tree, const std::string& blob, int64_t not_after, const std::string& log,
                       const Reporter& report, uint64_t most) {
  std::vector<std::string> argv;
  if (most > 0) argv = {"timeout", "--kill-after=5", "1800", "prlimit", "--fsize=" + std::to_string(most), "--core=0"};
  // The id of the filesystem is the digest of its contents, kept outside; the one inside is the same for all.
  argv.insert(argv.end(), {"mkfs.erofs", "--quiet", "-U", "69736f6c-6100-4000-8000-000000000001", blob, tree});
  ISOLA_CHECK(run({.argv = argv,
                   .env = {"SOURCE_DATE_EPOCH=" + std::to_string(not_after)},
                   .what = "cannot pack the template",
                   .log = log,
                   .contained = true,
                   .tick = [&](std::string_view line) { report("pack", line); }}));
  Fd fd(::open(blob.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) < 0) return sys_error("cannot sync " + blob);
  return {};
}

}  // namespace isola::image
