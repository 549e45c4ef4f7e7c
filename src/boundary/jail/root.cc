#include "boundary/jail/root.h"

#include <fcntl.h>
#include <sys/fsuid.h>

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

}  // namespace

Result<Root> make_root(const std::vector<std::string>& lowers, const std::string& layer, int userns, uint32_t id_base,
                       const kernel::MountAttributes& attributes) {
  static bool by_descriptor = ::getenv("ISOLA_NO_OVERLAY_FDS") == nullptr;  // tests force the path of older kernels
  if (by_descriptor) {
    auto root = make_by_descriptor(lowers, layer, userns, id_base, attributes);
    if (root || root.error().sys_errno != EINVAL) return root;
    by_descriptor = false;  // an older kernel: it says so once, at the first launch
  }
  return make_by_name(lowers, layer, userns, id_base, attributes);
}

Result<void> prepare_shown(const ShownFolder& shown, int userns) {
  auto mapped = kernel::set_attributes(shown.tree.get(),
                                       {.read_only = shown.read_only, .nosuid = true, .nodev = true, .idmap = userns});
  if (!mapped) return std::unexpected(mapped.error().in("the folder shown at " + shown.target));
  return {};
}

}  // namespace isola::boundary::jail
