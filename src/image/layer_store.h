// The writable layer of a sandbox, behind one interface: whatever a sandbox writes lands in its layer, and the layer
// cannot grow past its limit. Providers differ in what the machine must offer; they are tried in this order:
//
//   project-quota   DIR lies on XFS or ext4 with working project quotas: a plain folder with a quota on it
//   btrfs           one sparse file DIR/store.btrfs (or DIR itself, if it is btrfs): a subvolume with a quota group
//   ext4-file       one sparse ext4 file per sandbox, on a loop device
//   unquotaed       a plain folder; enforces nothing, and is only had by naming AllowUnquotaedDisk
//
//   ISOLA_TRY(auto store, open_layer_store(data_dir, {}, std::nullopt));
//   ISOLA_TRY(std::string layer, store->create(id, {.bytes = 2_GiB}, below));
//   ISOLA_TRY(auto lowers, store->lowers(id, below));
//   … overlay with upperdir=<layer>/upper, workdir=<layer>/work, lowerdir=<lowers> …
//   ISOLA_CHECK(store->destroy(id));
//
// Who opens a store: the launcher, as root, in a mount namespace of its own; mounts made here are seen only there. A
// store may be opened again while sandboxes of an earlier launcher still use it. One process at a time may create and
// destroy in one data directory (the launcher's own lock sees to that); nothing here is thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace isola::image {

struct LayerLimits {
  uint64_t bytes = 0;   // at least kSmallestLayer
  uint64_t inodes = 0;  // 0 = what the provider gives by itself (btrfs: inodes count as bytes; ext4: one per 16 KiB)
};

struct LayerUsage {
  uint64_t bytes = 0;
  uint64_t inodes = 0;  // 0 where the provider does not count them (btrfs)
};

// What copy() does with the data of the files.
enum class Sharing {
  snapshot,  // the whole layer at once, whatever its size
  reflink,   // file by file, or the one file that it is: no data is copied
  copies,    // everything is copied
};
std::string_view to_string(Sharing sharing);

inline constexpr uint64_t kSmallestLayer = 1 << 20;  // below that the filesystems' own bookkeeping fills a layer

class LayerStore {
 public:
  virtual ~LayerStore() = default;
  virtual std::string_view name() const = 0;  // "btrfs", "project-quota", "ext4-file", "unquotaed"
  virtual bool enforces() const = 0;
  virtual const std::string& place() const = 0;  // a folder on the filesystem that the layers lie on, all of them
  // True when destroy walks a tree: then call it from a helper process, not from the launcher's loop.
  virtual bool slow_destroy() const = 0;
  // An empty writable layer: a folder with `upper` and `work` in it, both 0755 root; ids on disk are canonical
  // (root = 0). Returns its path in this mount namespace. Fails with Code::exhausted while the machine's own disk is
  // nearly full, and with Code::exists when the id is taken. `below`: the layers that it is laid over, the uppermost
  // first, to which nobody writes any more.
  virtual Result<std::string> create(const std::string& id, const LayerLimits& limits,
                                     const std::vector<std::string>& below = {}) = 0;
  // The folders to lay `id` over, the uppermost first; `below` as it was created with. No two files in these and in
  // the layer have the same device and inode number when they are seen through the overlay.
  virtual Result<std::vector<std::string>> lowers(const std::string& id, const std::vector<std::string>& below);
  // The path that create returned (also for a layer that an earlier process made).
  virtual Result<std::string> path(const std::string& id) = 0;
  // For parked jails, which take the caller's limit at hand-over. An ext4-file cannot shrink at all
  // (Code::unsupported), nor grow on every machine; the others can be below what is in use, and then simply refuse
  // further growth. After an error the layer is as it was.
  virtual Result<void> resize(const std::string& id, const LayerLimits& limits) = 0;
  virtual bool can_shrink() const { return true; }
  // The limit in bytes that is in force, read from where it is enforced; 0: none.
  virtual Result<uint64_t> limit(const std::string& id) = 0;
  virtual Result<LayerUsage> usage(const std::string& id) = 0;
  virtual Result<void> destroy(const std::string& id) = 0;  // idempotent
  virtual Result<std::vector<std::string>> list() = 0;      // for reaping what nobody knows
  // A layer that nobody writes to any more becomes part of an image under its own name, as it is: sync() puts all of it
  // on disk, since the overlay above it does not (volatile).
  virtual Result<void> sync(const std::string& id);
  // That there is such a layer, empty or not, and its limit are on disk; the files of others are not waited for.
  virtual Result<void> settle(const std::string& id);
  // A layer `to` with the files of `id` as they are now, on disk and never to be written to; nobody writes to `id`
  // meanwhile. It counts against no limit. Code::exhausted while the disk is nearly full.
  virtual Result<void> copy(const std::string& id, const std::string& to) = 0;
  virtual Sharing sharing() const = 0;
  // Open descriptors that destroy() and copy() need: a helper process keeps these and closes everything else that it
  // inherited.
  virtual std::vector<int> descriptors() const { return {}; }
};

struct StoreOptions {
  std::string provider;        // empty: the first that works, in the order above
  uint64_t store_bytes = 0;    // size of the btrfs store file (sparse); 0: 80 % of what is free when it is made
  uint64_t reserve_bytes = 0;  // create refuses below this much free space under DIR; 0: 2 % of the disk, at most 1 GiB
};

// Whoever passes one accepts that a sandbox can fill the machine's disk.
struct AllowUnquotaedDisk {
  explicit AllowUnquotaedDisk() = default;
};

// Compares what is in force with what was asked for: an error unless the layer is held to `bytes` (to a block). A store
// that enforces nothing has nothing to compare: whoever opened it accepted that.
Result<void> verify_limit(LayerStore& store, const std::string& id, uint64_t bytes);

// Opens (and on first use makes) the layer store below data_dir. With the token, a machine on which nothing enforces
// gets the unquotaed provider; without it that is an error which says why each provider failed.
Result<std::unique_ptr<LayerStore>> open_layer_store(const std::string& data_dir, const StoreOptions& options,
                                                     std::optional<AllowUnquotaedDisk> allow_unquotaed);

}  // namespace isola::image
