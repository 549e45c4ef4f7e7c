#include "boundary/jail/root.h"

#include <fcntl.h>
#include <sys/fsuid.h>

#include "base/file.h"
#include "boundary/jail/stage.h"

namespace isola::boundary::jail {

namespace {

// A mount point on the stage that is occupied for the length of a scope: overlay makes its own private copies of the
// layers, so they need to be somewhere only while it is created.
class StagedMount {
 public:
  static Result<StagedMount> make(const std::string& source, std::string point, const kernel::MountAttributes& attributes) {
    ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, source));
    ISOLA_CHECK(kernel::set_attributes(tree.get(), attributes));
    ISOLA_CHECK(kernel::attach(tree.get(), AT_FDCWD, point));
    return StagedMount(std::move(point));
  }
  StagedMount(StagedMount&& other) noexcept : point_(std::exchange(other.point_, {})) {}
  StagedMount& operator=(StagedMount&&) = delete;
  ~StagedMount() {
    if (!point_.empty()) (void)kernel::detach(point_);
  }

 private:
  explicit StagedMount(std::string point) : point_(std::move(point)) {}
  std::string point_;
};

// Overlay creates files with the ids of whoever mounted it. The host's root has no place in the sandbox's map, so for
// the moment of mounting the launcher's filesystem id is the sandbox's root.
class BorrowedFileIds {
 public:
  explicit BorrowedFileIds(uint32_t id) { ::setfsuid(id), ::setfsgid(id); }
  ~BorrowedFileIds() { ::setfsuid(0), ::setfsgid(0); }
  BorrowedFileIds(const BorrowedFileIds&) = delete;
  BorrowedFileIds& operator=(const BorrowedFileIds&) = delete;
};

}  // namespace

Result<Fd> make_root(const std::vector<std::string>& lowers, const std::string& layer, int userns, uint32_t id_base,
                     const kernel::MountAttributes& attributes) {
  std::vector<StagedMount> below;
  std::string names;
  for (const auto& lower : lowers) {
    // The stage has a mount point for the first; the others' are made as they are needed, and stay.
    std::string point = kLowerPoint + (below.empty() ? "" : std::to_string(below.size()));
    if (!below.empty()) ISOLA_CHECK(make_dirs(point));
    ISOLA_TRY(auto mount, StagedMount::make(lower, point, {.read_only = true, .idmap = userns}));
    below.push_back(std::move(mount));
    names += (names.empty() ? "" : ":") + point;
  }
  ISOLA_TRY(auto above, StagedMount::make(layer, kUpperPoint, {.idmap = userns}));
  BorrowedFileIds ids(id_base);
  // index and nfs_export let a checkpoint find watched files again; volatile: a sandbox's files need not survive a
  // crash of the host, and an explicit sync makes them durable when it is paused.
  return kernel::make_filesystem("overlay",
                                 {{"source", "isola"},
                                  {"lowerdir", names},
                                  {"upperdir", std::string(kUpperPoint) + "/upper"},
                                  {"workdir", std::string(kUpperPoint) + "/work"},
                                  {"volatile", ""},
                                  {"index", "on"},
                                  {"nfs_export", "on"},
                                  {"redirect_dir", "on"}},
                                 attributes);
}

}  // namespace isola::boundary::jail
