// Layers as btrfs subvolumes, each with a quota group, in one sparse file of our own (or right in the data directory
// where that is btrfs with quotas on).
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#include <algorithm>
#include <utility>

#include "base/fd.h"
#include "base/file.h"
#include "base/units.h"
#include "image/btrfs_fs.h"
#include "image/loop.h"
#include "image/provider.h"
#include "image/spawn.h"
#include "image/tree.h"
#include "kernel/fault.h"
#include "kernel/mount.h"

namespace isola::image {

namespace {

namespace fault = kernel::fault;

constexpr char kInherited[] = "trusted.isola.inherited";  // of a layer's folder, a number

constexpr uint64_t kSmallestStore = uint64_t{256} << 20;  // below that btrfs mixes data and metadata block groups

Result<uint64_t> store_size(const std::string& dir, const StoreOptions& options) {
  if (options.store_bytes) {
    if (options.store_bytes < kSmallestStore)
      return fail(Code::invalid, "a layer store must be at least " + format_size(kSmallestStore));
    return options.store_bytes & ~uint64_t{4095};
  }
  ISOLA_TRY(DiskSpace space, disk_space(dir));
  uint64_t size = space.free / 10 * 8 & ~uint64_t{4095};
  if (size < kSmallestStore)
    return fail(Code::exhausted, "the disk under " + dir + " has too little room for a layer store (" +
                                     format_size(space.free) + " free)");
  return size;
}

// Formats a temporary file and renames it: DIR/store.btrfs is whole or not there.
Result<void> make_store_file(const std::string& dir, const std::string& file, const StoreOptions& options) {
  ISOLA_TRY(uint64_t size, store_size(dir, options));
  std::string tmp = file + ".tmp";
  ::unlink(tmp.c_str());
  auto made = [&]() -> Result<void> {
    Fd fd(::open(tmp.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd) return sys_error("cannot create " + tmp);
    // On btrfs itself the file must not be copied on write, or every write would fragment it. Elsewhere unknown.
    int flags = 0;
    if (::ioctl(fd.get(), FS_IOC_GETFLAGS, &flags) == 0 && btrfs::is_btrfs(fd.get())) {
      flags |= FS_NOCOW_FL;
      if (::ioctl(fd.get(), FS_IOC_SETFLAGS, &flags) < 0)
        return sys_error("cannot switch off copy on write for " + tmp);
    }
    if (int e = fault::at("ftruncate")) return sys_error("cannot size " + tmp, e);
    if (::ftruncate(fd.get(), static_cast<off_t>(size)) < 0) return sys_error("cannot size " + tmp);
    // One copy of everything: the file below has whatever redundancy the machine has.
    ISOLA_CHECK(run({.argv = {"mkfs.btrfs", "-q", "-K", "-m", "single", "-d", "single", "-L", "isola-layers", tmp},
                     .what = "cannot format the layer store"}));
    if (::fsync(fd.get()) < 0) return sys_error("cannot sync " + tmp);
    if (int e = fault::at("rename")) return sys_error("cannot rename " + tmp, e);
    if (::rename(tmp.c_str(), file.c_str()) < 0) return sys_error("cannot rename " + tmp);
    return {};
  }();
  if (!made) ::unlink(tmp.c_str());
  return made;
}

class BtrfsStore : public LayerStore {
 public:
  // `host` is the folder whose free space counts; `root` lies on btrfs and holds one subvolume per layer.
  BtrfsStore(std::string host, std::string root, bool mounted, StoreOptions options)
      : host_(std::move(host)), root_(std::move(root)), mounted_(mounted), options_(std::move(options)) {}
  ~BtrfsStore() override {
    fd_.reset();
    if (mounted_) ::umount2(root_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
  }

  Result<void> start() {
    fd_ = Fd(::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd_) return sys_error("cannot open the layer store " + root_);
    if (!btrfs::is_btrfs(fd_.get())) return fail(Code::internal, root_ + " is not btrfs");
    ISOLA_CHECK(btrfs::enable_quota(fd_.get()));
    ISOLA_CHECK(btrfs::drop_stale_groups(fd_.get()));
    return {};
  }

  std::string_view name() const override { return "btrfs"; }
  bool enforces() const override { return true; }
  const std::string& place() const override { return root_; }
  bool slow_destroy() const override { return false; }
  std::vector<int> descriptors() const override { return {fd_.get()}; }

  // Every subvolume numbers its files from 256 on, and an overlay shows the numbers of all subvolumes as those of one
  // filesystem: stacked, a new file would pass for an old one (mv and cp then refuse). So a layer above others is made
  // of a snapshot of the uppermost of them, in which theirs lie aside as below-1, below-2, …, and goes on numbering.
  Result<std::string> create(const std::string& id, const LayerLimits& limits,
                             const std::vector<std::string>& below) override {
    ISOLA_CHECK(check_layer_id(id));
    ISOLA_CHECK(check(limits));
    ISOLA_CHECK(check_reserve(host_, options_));
    if (below.empty()) {
      ISOLA_CHECK(btrfs::create_subvolume(fd_.get(), id));
    } else {
      ISOLA_CHECK(snapshot(below.front(), id, btrfs::Access::read_write));
    }
    auto filled = fill(id, limits, below.size());
    if (filled) return filled;
    // Best effort: the id stays in list(), so whoever reaps finds it if this fails too.
    (void)btrfs::delete_subvolume(fd_.get(), id);
    return filled;
  }

  Result<std::string> path(const std::string& id) override {
    ISOLA_CHECK(check_layer_id(id));
    std::string layer = root_ + "/" + id;
    if (!is_directory(layer)) return fail(Code::not_found, "there is no layer " + id);
    return layer;
  }

  Result<std::vector<std::string>> lowers(const std::string& id, const std::vector<std::string>& below) override {
    ISOLA_TRY(std::string layer, path(id));
    std::vector<std::string> folders;
    for (size_t i = 0; i < below.size(); ++i) {
      std::string folder = layer + "/" + below_name(below.size() - i);
      if (!is_directory(folder)) {  // made by a version that stacked the layers themselves
        ISOLA_TRY(folder, path(below[i]));
        folder += "/upper";
      }
      folders.push_back(std::move(folder));
    }
    return folders;
  }

  Result<void> resize(const std::string& id, const LayerLimits& limits) override {
    ISOLA_CHECK(check(limits));
    ISOLA_TRY(Subvolume subvolume, open_layer(id));
    return btrfs::limit(fd_.get(), subvolume.id, subvolume.inherited + limits.bytes);
  }

  Result<uint64_t> limit(const std::string& id) override {
    ISOLA_TRY(Subvolume subvolume, open_layer(id));
    ISOLA_TRY(uint64_t bytes, btrfs::limit_of(fd_.get(), subvolume.id));
    return bytes > subvolume.inherited ? bytes - subvolume.inherited : bytes;
  }

  Result<LayerUsage> usage(const std::string& id) override {
    ISOLA_TRY(Subvolume subvolume, open_layer(id));
    ISOLA_TRY(uint64_t bytes, btrfs::charged(fd_.get(), subvolume.id));
    return LayerUsage{.bytes = bytes - std::min(bytes, subvolume.inherited), .inodes = 0};
  }

  Result<void> destroy(const std::string& id) override {
    ISOLA_CHECK(check_layer_id(id));
    auto gone = btrfs::delete_subvolume(fd_.get(), id);
    if (gone || gone.error().sys_errno == ENOENT) return {};
    return gone;
  }

  // A limit is not in what fsync writes: it takes a commit.
  // (By a descriptor of its own: helpers have none of ours.)
  Result<void> settle(const std::string& id) override {
    ISOLA_TRY(std::string layer, path(id));
    Fd fd(::open(layer.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd) return sys_error("cannot open the layer " + id);
    return btrfs::commit(fd.get());
  }

  Sharing sharing() const override { return Sharing::snapshot; }
  Result<void> copy(const std::string& id, const std::string& to) override {
    ISOLA_CHECK(check_layer_id(to));
    ISOLA_CHECK(check_reserve(host_, options_));
    return snapshot(id, to, btrfs::Access::read_only);
  }

  Result<std::vector<std::string>> list() override {
    ISOLA_TRY(auto names, list_dir(root_));
    std::erase_if(names, [](const std::string& n) { return !check_layer_id(n); });
    return names;
  }

 private:
  static Result<void> check(const LayerLimits& limits) {
    if (limits.inodes)
      return fail(Code::unsupported, "the btrfs layer store limits bytes; files count by the space that they take");
    return check_limits(limits);
  }

  struct Subvolume {
    Fd fd;
    uint64_t id = 0;
    uint64_t inherited = 0;  // what was charged to it when it was made: full quotas charge what a snapshot shares
  };

  static std::string below_name(size_t n) { return "below-" + std::to_string(n); }

  // Writes out what this one layer has in memory, and is on disk when the call returns (it ends with a commit).
  Result<void> snapshot(const std::string& id, const std::string& to, btrfs::Access access) {
    ISOLA_TRY(Subvolume from, open_layer(id));
    return btrfs::create_snapshot(fd_.get(), to, from.fd.get(), access);
  }

  Result<std::string> fill(const std::string& id, const LayerLimits& limits, size_t below) {
    std::string layer = root_ + "/" + id;
    ISOLA_TRY(Subvolume subvolume, open_layer(id));
    if (below > 0) {
      // Full quotas give a snapshot the limit of what it is of, which may be full.
      ISOLA_CHECK(btrfs::limit(fd_.get(), subvolume.id, 0));
      ISOLA_CHECK(put_aside(subvolume, below));
    }
    ISOLA_CHECK(make_layer_folders(layer));
    ISOLA_CHECK(btrfs::limit(fd_.get(), subvolume.id, subvolume.inherited + limits.bytes));
    return layer;
  }

  // In a fresh snapshot: what was written to the layer that it is of is now the n-th below.
  Result<void> put_aside(Subvolume& subvolume, size_t n) {
    for (const auto& [from, to] : {std::pair("upper", below_name(n)), {"work", "work-" + std::to_string(n)}}) {
      if (int e = fault::at("renameat2")) return sys_error("cannot put a layer aside", e);
      if (::renameat2(subvolume.fd.get(), from, subvolume.fd.get(), to.c_str(), RENAME_NOREPLACE) < 0)
        return sys_error("cannot put a layer aside");
    }
    ISOLA_TRY(subvolume.inherited, btrfs::charged(fd_.get(), subvolume.id));
    if (int e = fault::at("fsetxattr")) return sys_error("cannot note what a layer shares", e);
    if (::fsetxattr(subvolume.fd.get(), kInherited, &subvolume.inherited, sizeof subvolume.inherited, 0) < 0)
      return sys_error("cannot note what a layer shares");
    return {};
  }

  Result<Subvolume> open_layer(const std::string& id) {
    ISOLA_CHECK(check_layer_id(id));
    Subvolume found{.fd = Fd(::openat(fd_.get(), id.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC))};
    if (!found.fd) return sys_error("there is no layer " + id);
    ISOLA_TRY(found.id, btrfs::subvolume_id(found.fd.get()));
    if (::fgetxattr(found.fd.get(), kInherited, &found.inherited, sizeof found.inherited) < 0 && errno != ENODATA)
      return sys_error("cannot read what the layer " + id + " shares");
    return found;
  }

  std::string host_, root_;
  bool mounted_;
  StoreOptions options_;
  Fd fd_;
};

Result<bool> has_quota(const std::string& dir) {
  Fd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return sys_error("cannot open " + dir);
  if (!btrfs::is_btrfs(fd.get())) return false;
  ISOLA_TRY(auto kind, btrfs::quota_kind(fd.get()));
  return kind != btrfs::QuotaKind::off;
}

// Mounts the store file at DIR/layers.
Result<void> mount_store(const std::string& dir, const std::string& file) {
  // A device that living sandboxes of an earlier launcher hold must be used again: two devices with the same btrfs on
  // them would be taken for one filesystem with two half-different halves.
  ISOLA_TRY(auto found, find_loop(file));
  Loop loop;
  if (found)
    loop = std::move(*found);
  else {
    ISOLA_TRY(loop, attach_loop(file, LoopMode::read_write));
  }
  // Its checksums are what the scrub of a layer goes by; freed space goes back to the host's disk.
  ISOLA_TRY(Fd mount, kernel::make_filesystem("btrfs", {{"source", loop.path}, {"discard", "async"}}, {.nodev = true}));
  Fd parent(::open(dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!parent) return sys_error("cannot open " + dir);
  return kernel::attach(mount.get(), parent.get(), "layers");
}

}  // namespace

Result<std::unique_ptr<LayerStore>> open_btrfs_store(const std::string& dir, const StoreOptions& options) {
  std::string root = dir + "/layers";
  std::string file = dir + "/store.btrfs";
  ISOLA_CHECK(make_dirs(root, 0700));
  // Our own file, unless the operator runs quotas on this btrfs already: switching them on changes the whole
  // filesystem, and is not ours to do.
  ISOLA_TRY(bool direct, has_quota(dir));
  bool there = ::access(file.c_str(), F_OK) == 0;
  if (!there && errno != ENOENT) return sys_error("cannot look at " + file);
  bool in_file = there || !direct;
  if (in_file && !there) ISOLA_CHECK(make_store_file(dir, file, options));
  auto opened = [&]() -> Result<std::unique_ptr<LayerStore>> {
    if (in_file) ISOLA_CHECK(mount_store(dir, file));
    auto store = std::make_unique<BtrfsStore>(dir, root, in_file, options);
    ISOLA_CHECK(store->start());
    ISOLA_CHECK(prove_enforcement(*store));
    return store;
  }();
  // A file that was made just now and does not work is nobody's.
  if (!opened && in_file && !there) ::unlink(file.c_str());
  return opened;
}

}  // namespace isola::image
