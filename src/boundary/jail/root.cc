#include "boundary/jail/root.h"

#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/stat.h>

#include <cstdlib>

#include "base/file.h"
#include "boundary/jail/stage.h"

namespace isola::boundary::jail {

namespace {

// A mount point on the stage that is occupied for the length of a scope: overlay makes its own private copies of the
// layers, so they need to be somewhere only while it is created.
class StagedMount {
 public:
  static Result<StagedMount> make(const std::string& source, std::string point,
                                  const kernel::MountAttributes& attributes) {
    ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, source));
    ISOLA_CHECK(kernel::set_attributes(tree.get(), attributes));
    ISOLA_CHECK(kernel::attach(tree.get(), AT_FDCWD, point));
    return StagedMount(std::move(point));
  }
  explicit StagedMount(std::string point) : point_(std::move(point)) {}  // one that is there
  StagedMount(StagedMount&& other) noexcept : point_(std::exchange(other.point_, {})) {}
  StagedMount& operator=(StagedMount&&) = delete;
  ~StagedMount() {
    if (!point_.empty()) (void)kernel::detach(point_);
  }

 private:
  std::string point_;
};

// Overlay creates files with the ids of whoever mounted it. The host's root has no place in the sandbox's map, so for
// the moment of mounting the launcher's filesystem id is the sandbox's root.
class BorrowedFileIds {
 public:
  explicit BorrowedFileIds(uint32_t id) : holds_(become(id)) {}
  ~BorrowedFileIds() {
    if (!become(0)) std::abort();  // a launcher with a sandbox's id is not to go on
  }
  bool holds() const { return holds_; }
  BorrowedFileIds(const BorrowedFileIds&) = delete;
  BorrowedFileIds& operator=(const BorrowedFileIds&) = delete;

 private:
  // These calls say only what was before; an impossible id changes nothing, and so asks.
  static bool become(uint32_t id) {
    ::setfsuid(id), ::setfsgid(id);
    return static_cast<uint32_t>(::setfsuid(-1)) == id && static_cast<uint32_t>(::setfsgid(-1)) == id;
  }
  bool holds_;
};

Result<Fd> mapped_tree(const std::string& source, const kernel::MountAttributes& attributes) {
  ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, source));
  ISOLA_CHECK(kernel::set_attributes(tree.get(), attributes));
  return tree;
}

// index and nfs_export let a checkpoint find watched files again; volatile: a sandbox's files need not survive a crash
// of the host, and an explicit sync makes them durable when it is paused.
Result<Fd> make_overlay(std::vector<kernel::FilesystemOption> layers, uint32_t id_base,
                        const kernel::MountAttributes& attributes) {
  layers.insert(layers.begin(), {"source", "isola"});
  for (const char* flag : {"index", "nfs_export", "redirect_dir"}) layers.push_back({flag, "on"});
  layers.push_back({"volatile", ""});
  BorrowedFileIds ids(id_base);
  if (!ids.holds()) return fail(Code::denied, "cannot take the sandbox's ids for its files (CAP_SETUID, CAP_SETGID)");
  return kernel::make_filesystem("overlay", layers, attributes);
}

// Linux 6.15 takes layers by descriptor, detached as they are. That spares two mounts and, above all, two unmounts:
// each makes the kernel wait for an RCU grace period, which is most of what a root costs.
Result<Root> make_by_descriptor(const std::vector<std::string>& lowers, const std::string& layer, int userns,
                                uint32_t id_base, const kernel::MountAttributes& attributes) {
  Root root;
  std::vector<kernel::FilesystemOption> options;
  for (const auto& lower : lowers) {
    ISOLA_TRY(Fd tree, mapped_tree(lower, {.read_only = true, .idmap = userns}));
    options.push_back({"lowerdir+", "", tree.get()});
    root.layers.push_back(std::move(tree));
  }
  ISOLA_TRY(Fd above, mapped_tree(layer, {.idmap = userns}));
  ISOLA_TRY(Fd upper, kernel::open_beneath(above.get(), "upper", O_DIRECTORY));
  ISOLA_TRY(Fd work, kernel::open_beneath(above.get(), "work", O_DIRECTORY));
  options.push_back({"upperdir", "", upper.get()});
  options.push_back({"workdir", "", work.get()});
  ISOLA_TRY(root.mount, make_overlay(std::move(options), id_base, attributes));
  for (Fd* fd : {&above, &upper, &work}) root.layers.push_back(std::move(*fd));
  return root;
}

// All names go into one option, of which the kernel takes 255 characters: one letter for each of the first layers and
// two for the rest are what 106 of them have room for.
std::string lower_point(size_t number) {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string name(1, kLetters[number % kLetters.size()]);
  return number < kLetters.size() ? name : kLetters[number / kLetters.size() % kLetters.size()] + name;
}

Result<Root> make_by_name(const std::vector<std::string>& lowers, const std::string& layer, int userns,
                          uint32_t id_base, const kernel::MountAttributes& attributes) {
  std::vector<StagedMount> below;
  std::string names;
  for (const auto& lower : lowers) {
    std::string point = lower_point(below.size());
    ISOLA_CHECK(make_dirs(point));  // on the stage, where it stays
    ISOLA_TRY(auto mount, StagedMount::make(lower, point, {.read_only = true, .idmap = userns}));
    below.push_back(std::move(mount));
    names += (names.empty() ? "" : ":") + point;
  }
  ISOLA_TRY(auto above, StagedMount::make(layer, kUpperPoint, {.idmap = userns}));
  Root root;
  ISOLA_TRY(root.mount, make_overlay({{"lowerdir", names},
                                      {"upperdir", std::string(kUpperPoint) + "/upper"},
                                      {"workdir", std::string(kUpperPoint) + "/work"}},
                                     id_base, attributes));
  return root;
}

// An older kernel says so once, at the first launch. Tests force its path.
bool& by_descriptor() {
  static bool can = ::getenv("ISOLA_NO_OVERLAY_FDS") == nullptr;
  return can;
}

// A folder of the host as it lies under an overlay that nobody can write. Read-only alone does not keep root inside
// from connecting to a socket or opening a pipe in it, and behind those sit programs of the host: an overlay's sockets
// are nobody's, and its pipes are its own.
Result<Fd> make_veil(int tree, const kernel::MountAttributes& attributes) {
  constexpr const char *kShownPoint = "shown-below", *kEmpty = "empty";  // on the stage: an overlay needs two layers
  ISOLA_CHECK(make_dirs(kEmpty));
  ISOLA_TRY(Fd empty, kernel::clone_tree(AT_FDCWD, kEmpty));
  std::vector<kernel::FilesystemOption> options = {
      {"source", "isola"}, {"lowerdir+", "", tree}, {"lowerdir+", "", empty.get()}};
  if (by_descriptor()) {
    auto veil = kernel::make_filesystem("overlay", options, attributes);
    if (veil || veil.error().sys_errno != EINVAL) return veil;
  }
  ISOLA_CHECK(make_dirs(kShownPoint));
  ISOLA_CHECK(kernel::attach(tree, AT_FDCWD, kShownPoint));
  StagedMount below(kShownPoint);
  options = {{"source", "isola"}, {"lowerdir", std::string(kShownPoint) + ":" + kEmpty}};
  return kernel::make_filesystem("overlay", options, attributes);
}

}  // namespace

Result<Root> make_root(const std::vector<std::string>& lowers, const std::string& layer, int userns, uint32_t id_base,
                       const kernel::MountAttributes& attributes) {
  if (by_descriptor()) {
    auto root = make_by_descriptor(lowers, layer, userns, id_base, attributes);
    if (root || root.error().sys_errno != EINVAL) return root;
    by_descriptor() = false;
  }
  return make_by_name(lowers, layer, userns, id_base, attributes);
}

Result<Fd> prepare_shown(const ShownFolder& shown, int userns) {
  const kernel::MountAttributes attributes{.read_only = shown.read_only, .nosuid = true, .nodev = true};
  auto mapped_attributes = attributes;
  if (shown.mapped) mapped_attributes.idmap = userns;
  auto mapped = kernel::set_attributes(shown.tree.get(), mapped_attributes);
  if (!mapped) return std::unexpected(mapped.error().in("the folder shown at " + shown.target));
  Fd tree(::fcntl(shown.tree.get(), F_DUPFD_CLOEXEC, 0));
  if (tree && !shown.mapped) return tree;  // somebody serves it: nothing that waits for an answer is asked
  struct stat st;
  if (!tree || ::fstat(tree.get(), &st) < 0) return sys_error("cannot look at what is shown at " + shown.target);
  if (!shown.hosts || S_ISREG(st.st_mode)) return tree;
  if (!S_ISDIR(st.st_mode)) return fail(Code::invalid, "only folders and files can be shown, at " + shown.target);
  auto veil = make_veil(tree.get(), attributes);
  if (!veil) return std::unexpected(veil.error().in("the folder shown at " + shown.target));
  return veil;
}

}  // namespace isola::boundary::jail
