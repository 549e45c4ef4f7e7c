// Layers as sparse ext4 files, each on a loop device of its own: the size of the file is the limit. Works wherever
// there are loop devices; slower to make than the others (copy, attach, mount: about a millisecond).
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <utility>

#include "base/fd.h"
#include "base/file.h"
#include "base/units.h"
#include "image/loop.h"
#include "image/provider.h"
#include "image/sparse_copy.h"
#include "image/spawn.h"
#include "image/tree.h"
#include "kernel/fault.h"
#include "kernel/mount.h"
#include "kernel/process.h"

namespace isola::image {

namespace {

namespace fault = kernel::fault;

constexpr uint64_t kFileBlock = 4096;
constexpr uint64_t kBytesPerInode = 16384;
constexpr size_t kMostTemplates = 32;
constexpr uint64_t kAlwaysSensible = uint64_t{16} << 30;
constexpr unsigned long kResizeFs = _IOW('f', 16, uint64_t);  // EXT4_IOC_RESIZE_FS: new size in blocks
constexpr std::string_view kSuffix = ".ext4";

bool is_mount_point(const std::string& folder) {
  struct stat here, above;
  return ::stat(folder.c_str(), &here) == 0 && ::stat((folder + "/..").c_str(), &above) == 0 &&
         here.st_dev != above.st_dev;
}

// A filesystem that is held: everything of it is in its file, and stays as it is, until it may go on. Whoever writes to
// it waits meanwhile, and no signal wakes him: so a process that does nothing else lets it go on where the one that
// copies is killed in the middle.
class Hold {
 public:
  static Result<Hold> take(int folder) {
    if (int e = fault::at("fifreeze")) return sys_error("cannot hold the layer", e);
    ISOLA_TRY(auto ends, kernel::make_pipe());
    Hold hold;
    hold.folder_ = folder;
    hold.alive_ = std::move(ends.second);
    ISOLA_TRY(hold.keeper_, kernel::spawn(0, [&] {
                hold.alive_.reset();
                char byte = 0;
                while (::read(ends.first.get(), &byte, 1) < 0 && errno == EINTR) {
                }
                return ::ioctl(folder, FITHAW, 0) < 0 && errno != EINVAL ? 1 : 0;
              }));
    if (::ioctl(folder, FIFREEZE, 0) < 0) {
      const int why = errno;
      (void)!::write(hold.alive_.get(), "", 1);
      return sys_error("cannot hold the layer", why);
    }
    return hold;
  }
  Result<void> end() {
    // It goes on by itself when the pipe ends, which is too late for whoever looks at it next.
    const bool thawed = ::ioctl(folder_, FITHAW, 0) == 0;
    const int why = errno;
    alive_.reset();
    if (!thawed) return sys_error("cannot let the layer go on", why);
    return {};
  }
  Hold(Hold&&) = default;
  Hold& operator=(Hold&&) = delete;
  ~Hold() {
    alive_.reset();
    if (keeper_.pidfd) kernel::wait_for(keeper_.pid);
  }

 private:
  Hold() = default;
  int folder_ = -1;
  Fd alive_;  // its other end is the keeper's
  kernel::Child keeper_;
};

class Ext4FileStore : public LayerStore {
 public:
  Ext4FileStore(std::string dir, StoreOptions options)
      : layers_(dir + "/layers"), files_(dir + "/files"), options_(std::move(options)) {}
  ~Ext4FileStore() override {
    auto ids = list();
    for (const auto& id : ids.value_or(std::vector<std::string>{})) let_go(id);
  }

  Result<void> start() {
    ISOLA_CHECK(make_dirs(layers_, 0700));
    ISOLA_CHECK(make_dirs(files_, 0700));
    sharing_ = can_reflink(files_) ? Sharing::reflink : Sharing::copies;
    return drop_old_templates(kMostTemplates);
  }

  std::string_view name() const override { return "ext4-file"; }
  bool enforces() const override { return true; }
  const std::string& place() const override { return files_; }
  bool slow_destroy() const override { return false; }
  bool can_shrink() const override { return false; }

  Result<std::string> create(const std::string& id, const LayerLimits& limits,
                             const std::vector<std::string>&) override {
    ISOLA_CHECK(check_layer_id(id));
    ISOLA_CHECK(check_limits(limits));
    ISOLA_CHECK(check_sense(limits));
    ISOLA_CHECK(check_reserve(files_, options_));
    ISOLA_TRY(std::string from, template_for(limits));
    ISOLA_CHECK(sparse_copy(from, file(id)));
    auto made = [&]() -> Result<std::string> {
      ISOLA_CHECK(mount(id, false));
      ISOLA_CHECK(remove_tree(folder(id) + "/lost+found"));
      ISOLA_CHECK(make_layer_folders(folder(id)));
      return folder(id);
    }();
    if (!made) drop(id);
    return made;
  }

  Result<std::string> path(const std::string& id) override {
    ISOLA_CHECK(check_layer_id(id));
    if (::access(file(id).c_str(), F_OK) != 0) return fail(Code::not_found, "there is no layer " + id);
    if (!is_mount_point(folder(id))) ISOLA_CHECK(mount(id, true));
    return folder(id);
  }

  Result<void> resize(const std::string& id, const LayerLimits& limits) override {
    ISOLA_TRY(std::string layer, path(id));
    ISOLA_CHECK(check_limits(limits));
    ISOLA_CHECK(check_sense(limits));
    if (limits.inodes) return fail(Code::unsupported, "an ext4-file layer cannot change its number of files");
    struct stat st;
    if (::stat(file(id).c_str(), &st) < 0) return sys_error("cannot look at the layer " + id);
    uint64_t now = static_cast<uint64_t>(st.st_size), wanted = limits.bytes / kFileBlock * kFileBlock;
    if (wanted == now) return {};
    if (wanted < now) return fail(Code::unsupported, "an ext4-file layer cannot shrink");
    ISOLA_TRY(auto loop, find_loop(file(id)));
    if (!loop) return fail(Code::internal, "the layer " + id + " has no loop device");
    auto grown = grow(layer, file(id), *loop, wanted);
    if (grown) return {};
    // The file's size says what the limit is: it must not promise what the filesystem did not take.
    if (::truncate(file(id).c_str(), st.st_size) == 0) (void)grow_loop(*loop);
    return std::unexpected(grown.error().in("cannot grow the layer " + id));
  }

  // The filesystem cannot be larger than its device.
  Result<uint64_t> limit(const std::string& id) override {
    ISOLA_TRY(std::string layer, path(id));
    struct stat st;
    if (::stat(file(id).c_str(), &st) < 0) return sys_error("cannot look at the layer " + id);
    return static_cast<uint64_t>(st.st_size);
  }

  Result<LayerUsage> usage(const std::string& id) override {
    ISOLA_TRY(std::string layer, path(id));
    struct statvfs s;
    if (::statvfs(layer.c_str(), &s) < 0) return sys_error("cannot ask for the usage of the layer " + id);
    return LayerUsage{.bytes = uint64_t{s.f_blocks - s.f_bfree} * s.f_frsize, .inodes = s.f_files - s.f_ffree};
  }

  Result<void> destroy(const std::string& id) override {
    ISOLA_CHECK(check_layer_id(id));
    if (is_mount_point(folder(id))) ISOLA_CHECK(kernel::detach(folder(id)));
    if (::rmdir(folder(id).c_str()) < 0 && errno != ENOENT) return sys_error("cannot remove the layer " + id);
    if (::unlink(file(id).c_str()) < 0 && errno != ENOENT) return sys_error("cannot remove the layer " + id);
    return {};
  }

  Sharing sharing() const override { return sharing_; }
  Result<void> copy(const std::string& id, const std::string& to) override {
    ISOLA_TRY(std::string layer, path(id));
    ISOLA_CHECK(check_layer_id(to));
    ISOLA_CHECK(check_reserve(files_, options_));
    Fd fd(::open(layer.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return sys_error("cannot open the layer " + id);
    ISOLA_TRY(Hold hold, Hold::take(fd.get()));
    if (int signal = fault::at("layer_held")) ::raise(signal);
    auto copied = sparse_copy(file(id), file(to));
    auto let_go = hold.end();
    if (!copied) return copied;
    if (!let_go) {
      ::unlink(file(to).c_str());
      return let_go;
    }
    Fd copy(::open(file(to).c_str(), O_RDONLY | O_CLOEXEC));
    if (!copy || ::fsync(copy.get()) < 0) {
      auto error = sys_error("cannot put the layer " + to + " on disk");
      ::unlink(file(to).c_str());
      return error;
    }
    return {};
  }

  Result<std::vector<std::string>> list() override {
    ISOLA_TRY(auto names, list_dir(files_));
    std::vector<std::string> ids;
    for (const auto& name : names) {
      if (!name.ends_with(kSuffix)) continue;
      std::string id = name.substr(0, name.size() - kSuffix.size());
      if (check_layer_id(id)) ids.push_back(std::move(id));
    }
    return ids;
  }

 private:
  std::string folder(const std::string& id) const { return layers_ + "/" + id; }
  std::string file(const std::string& id) const { return files_ + "/" + id + std::string(kSuffix); }

  // What describes an empty filesystem grows with its size, 15 MiB and 60 ms for each TiB: nobody shall have that for
  // space that is not there. Usual sizes are fine on small disks, where the reserve watches over what is really used.
  Result<void> check_sense(const LayerLimits& limits) const {
    ISOLA_TRY(DiskSpace space, disk_space(files_));
    if (limits.bytes <= std::max(space.total, kAlwaysSensible)) return {};
    return fail(Code::invalid, "a disk limit of " + format_size(limits.bytes) +
                                   " is more than the machine's own disk has (" + format_size(space.total) + ")");
  }

  // Those of sizes that nobody asked for in the longest time; a caller that tries every size must not fill the folder.
  Result<void> drop_old_templates(size_t keep) const {
    ISOLA_TRY(auto names, list_dir(files_));
    std::vector<std::pair<int64_t, std::string>> by_use;
    for (const auto& name : names) {
      struct stat st;
      std::string path = files_ + "/" + name;
      if (!name.starts_with("template") || ::stat(path.c_str(), &st) < 0) continue;
      by_use.emplace_back(int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec, std::move(path));
    }
    std::ranges::sort(by_use);
    for (size_t i = 0; i + keep < by_use.size(); ++i) ::unlink(by_use[i].second.c_str());
    return {};
  }

  // An empty filesystem of that size, made once per size (about 10 ms).
  Result<std::string> template_for(const LayerLimits& limits) {
    uint64_t bytes = limits.bytes / kFileBlock * kFileBlock;
    uint64_t inodes = limits.inodes ? limits.inodes : std::max<uint64_t>(bytes / kBytesPerInode, 64);
    std::string path = files_ + "/template-" + std::to_string(bytes) + "-" + std::to_string(inodes);
    if (::utimensat(AT_FDCWD, path.c_str(), nullptr, 0) == 0) return path;  // it is there, and in use
    ISOLA_CHECK(drop_old_templates(kMostTemplates - 1));
    std::string tmp = path + ".tmp";
    ::unlink(tmp.c_str());
    // No journal: what a crash of the machine tears is a sandbox that died with it.
    auto made = run({.argv = {"mkfs.ext4", "-q", "-F", "-b", std::to_string(kFileBlock), "-m", "0", "-O",
                              "^has_journal", "-N", std::to_string(inodes), "-E",
                              "lazy_itable_init=1,nodiscard,root_owner=0:0", tmp, std::to_string(bytes / 1024) + "k"},
                     .env = {},
                     .what = "cannot format a layer"});
    if (made && ::rename(tmp.c_str(), path.c_str()) < 0) made = sys_error("cannot rename " + tmp);
    if (!made) {
      ::unlink(tmp.c_str());
      return std::unexpected(made.error());
    }
    return path;
  }

  // `again`: a device of an earlier process may still stand on the file, and must be used then.
  Result<void> mount(const std::string& id, bool again) {
    if (int e = fault::at("mkdir")) return sys_error("cannot create the layer " + id, e);
    if (::mkdir(folder(id).c_str(), 0700) < 0 && errno != EEXIST) return sys_error("cannot create the layer " + id);
    Loop loop;
    if (again) {
      ISOLA_TRY(auto found, find_loop(file(id)));
      if (found) loop = std::move(*found);
    }
    if (!loop.fd) {
      ISOLA_TRY(loop, attach_loop(file(id), LoopMode::read_write));
    }
    // The kernel must not fill the sparse file with empty inode tables.
    ISOLA_TRY(Fd mount, kernel::make_filesystem("ext4", {{"source", loop.path}, {"noinit_itable", ""}, {"discard", ""}},
                                                {.nodev = true}));
    Fd parent(::open(layers_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!parent) return sys_error("cannot open " + layers_);
    ISOLA_CHECK(kernel::attach(mount.get(), parent.get(), id));
    return {};
  }

  static Result<void> grow(const std::string& layer, const std::string& file, const Loop& loop, uint64_t bytes) {
    Fd fd(::open(layer.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return sys_error("cannot open its folder");
    if (int e = fault::at("truncate")) return sys_error("cannot size its file", e);
    if (::truncate(file.c_str(), static_cast<off_t>(bytes)) < 0) return sys_error("cannot size its file");
    ISOLA_CHECK(grow_loop(loop));
    uint64_t blocks = bytes / kFileBlock;
    if (int e = fault::at("ext4_resize")) return sys_error("ext4 refuses", e);
    if (::ioctl(fd.get(), kResizeFs, &blocks) < 0)
      return sys_error(errno == EPERM ? "ext4 refuses (growing needs CAP_SYS_RESOURCE)" : "ext4 refuses");
    return {};
  }

  void let_go(const std::string& id) {
    if (is_mount_point(folder(id))) ::umount2(folder(id).c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
  }
  // Undoes a create that failed half way.
  void drop(const std::string& id) {
    let_go(id);
    ::rmdir(folder(id).c_str());
    ::unlink(file(id).c_str());
  }

  std::string layers_, files_;
  StoreOptions options_;
  Sharing sharing_ = Sharing::copies;
};

}  // namespace

Result<std::unique_ptr<LayerStore>> open_ext4_file_store(const std::string& dir, const StoreOptions& options) {
  ISOLA_CHECK(find_program("mkfs.ext4"));
  auto store = std::make_unique<Ext4FileStore>(dir, options);
  ISOLA_CHECK(store->start());
  ISOLA_CHECK(prove_enforcement(*store));
  return store;
}

}  // namespace isola::image
