#include "image/btrfs_fs.h"

#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

#include "base/file.h"
#include "kernel/fault.h"

namespace isola::image::btrfs {

namespace {

namespace fault = kernel::fault;

constexpr uint64_t kEnableSimple = 4;  // BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA, newer than Debian 12's headers

template <typename Args>
Result<void> set_name(Args& args, const std::string& name) {
  if (name.size() >= sizeof args.name) return fail(Code::invalid, "the name is too long");
  std::memcpy(args.name, name.c_str(), name.size() + 1);
  return {};
}

Result<std::string> sysfs_folder(int root) {
  btrfs_ioctl_fs_info_args info{};
  if (::ioctl(root, BTRFS_IOC_FS_INFO, &info) < 0) return sys_error("cannot ask for the btrfs id");
  std::string out = "/sys/fs/btrfs/";
  for (int i = 0; i < BTRFS_FSID_SIZE; ++i) {
    static constexpr char kHex[] = "0123456789abcdef";
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += kHex[info.fsid[i] >> 4];
    out += kHex[info.fsid[i] & 15];
  }
  return out;
}

// All keys of one type in one tree, by offset or object id: enough to list subvolumes and quota groups.
Result<std::vector<btrfs_ioctl_search_header>> keys(int root, uint64_t tree, uint32_t type) {
  std::vector<btrfs_ioctl_search_header> found;
  btrfs_ioctl_search_args args{};
  args.key = {.tree_id = tree,
              .min_objectid = 0,
              .max_objectid = UINT64_MAX,
              .min_offset = 0,
              .max_offset = UINT64_MAX,
              .min_transid = 0,
              .max_transid = UINT64_MAX,
              .min_type = type,
              .max_type = type};
  for (;;) {
    args.key.nr_items = 4096;
    if (::ioctl(root, BTRFS_IOC_TREE_SEARCH, &args) < 0) return sys_error("cannot search a btrfs tree");
    if (args.key.nr_items == 0) return found;
    size_t at = 0;
    btrfs_ioctl_search_header header{};
    for (uint32_t i = 0; i < args.key.nr_items; ++i) {
      if (at + sizeof header > sizeof args.buf) return fail(Code::corrupt, "a btrfs tree search ran over");
      std::memcpy(&header, args.buf + at, sizeof header);
      at += sizeof header + header.len;
      if (header.type == type) found.push_back(header);
    }
    // Go on behind the last key; the order is (objectid, type, offset).
    args.key.min_objectid = header.objectid;
    args.key.min_type = header.type;
    args.key.min_offset = header.offset + 1;
    if (args.key.min_offset == 0) {
      if (header.objectid == UINT64_MAX) return found;
      ++args.key.min_objectid;
    }
  }
}

}  // namespace

bool is_btrfs(int fd) {
  struct statfs s;
  return ::fstatfs(fd, &s) == 0 && static_cast<uint32_t>(s.f_type) == BTRFS_SUPER_MAGIC;
}

Result<QuotaKind> quota_kind(int root) {
  ISOLA_TRY(std::string folder, sysfs_folder(root));
  auto enabled = read_file(folder + "/qgroups/enabled");
  if (!enabled || !enabled->starts_with("1")) return QuotaKind::off;
  auto mode = read_file(folder + "/qgroups/mode");
  return mode && mode->starts_with("squota") ? QuotaKind::simple : QuotaKind::full;
}

Result<QuotaKind> enable_quota(int root) {
  ISOLA_TRY(QuotaKind now, quota_kind(root));
  if (now != QuotaKind::off) return now;
  if (int e = fault::at("btrfs_quota_ctl")) return sys_error("cannot switch on btrfs quotas", e);
  for (uint64_t command : {kEnableSimple, uint64_t{BTRFS_QUOTA_CTL_ENABLE}}) {
    btrfs_ioctl_quota_ctl_args args{.cmd = command, .status = 0};
    if (::ioctl(root, BTRFS_IOC_QUOTA_CTL, &args) == 0)
      return command == kEnableSimple ? QuotaKind::simple : QuotaKind::full;
    if (errno != EINVAL) break;  // EINVAL: this kernel does not know the command
  }
  return sys_error("cannot switch on btrfs quotas");
}

Result<void> create_subvolume(int parent, const std::string& name) {
  btrfs_ioctl_vol_args args{};
  ISOLA_CHECK(set_name(args, name));
  if (int e = fault::at("btrfs_subvol_create")) return sys_error("cannot create the layer " + name, e);
  if (::ioctl(parent, BTRFS_IOC_SUBVOL_CREATE, &args) < 0) return sys_error("cannot create the layer " + name);
  return {};
}

Result<void> create_snapshot(int parent, const std::string& name, int subvolume, Access access) {
  btrfs_ioctl_vol_args_v2 args{};
  args.fd = subvolume;
  if (access == Access::read_only) args.flags = BTRFS_SUBVOL_RDONLY;
  ISOLA_CHECK(set_name(args, name));
  if (int e = fault::at("btrfs_snap_create")) return sys_error("cannot copy a layer to " + name, e);
  if (::ioctl(parent, BTRFS_IOC_SNAP_CREATE_V2, &args) < 0) return sys_error("cannot copy a layer to " + name);
  return {};
}

Result<void> delete_subvolume(int parent, const std::string& name) {
  btrfs_ioctl_vol_args args{};
  ISOLA_CHECK(set_name(args, name));
  if (int e = fault::at("btrfs_snap_destroy")) return sys_error("cannot remove the layer " + name, e);
  if (::ioctl(parent, BTRFS_IOC_SNAP_DESTROY, &args) < 0) return sys_error("cannot remove the layer " + name);
  return {};
}

Result<uint64_t> subvolume_id(int subvolume) {
  btrfs_ioctl_ino_lookup_args args{};
  args.objectid = BTRFS_FIRST_FREE_OBJECTID;
  if (int e = fault::at("btrfs_ino_lookup")) return sys_error("cannot ask for a subvolume's id", e);
  if (::ioctl(subvolume, BTRFS_IOC_INO_LOOKUP, &args) < 0) return sys_error("cannot ask for a subvolume's id");
  return args.treeid;
}

Result<void> commit(int root) {
  uint64_t transaction = 0;
  if (int e = fault::at("btrfs_commit")) return sys_error("cannot put the layer store on disk", e);
  if (::ioctl(root, BTRFS_IOC_START_SYNC, &transaction) < 0 || ::ioctl(root, BTRFS_IOC_WAIT_SYNC, &transaction) < 0)
    return sys_error("cannot put the layer store on disk");
  return {};
}

Result<void> limit(int root, uint64_t subvolume, uint64_t bytes) {
  btrfs_ioctl_qgroup_limit_args args{};
  args.qgroupid = subvolume;
  args.lim.flags = BTRFS_QGROUP_LIMIT_MAX_RFER;
  args.lim.max_rfer = bytes ? bytes : UINT64_MAX;
  if (int e = fault::at("btrfs_qgroup_limit")) return sys_error("cannot limit a layer", e);
  if (::ioctl(root, BTRFS_IOC_QGROUP_LIMIT, &args) < 0) return sys_error("cannot limit a layer");
  return {};
}

Result<uint64_t> limit_of(int root, uint64_t subvolume) {
  ISOLA_TRY(std::string folder, sysfs_folder(root));
  folder += "/qgroups/0_" + std::to_string(subvolume);
  ISOLA_TRY(std::string flags, read_file(folder + "/limit_flags"));
  ISOLA_TRY(std::string most, read_file(folder + "/max_referenced"));
  uint64_t bytes = std::strtoull(most.c_str(), nullptr, 10);
  bool on = std::strtoull(flags.c_str(), nullptr, 0) & BTRFS_QGROUP_LIMIT_MAX_RFER;
  return on && bytes != UINT64_MAX ? bytes : 0;
}

Result<uint64_t> charged(int root, uint64_t subvolume) {
  ISOLA_TRY(std::string folder, sysfs_folder(root));
  folder += "/qgroups/0_" + std::to_string(subvolume);
  ISOLA_TRY(std::string referenced, read_file(folder + "/referenced"));
  uint64_t total = std::strtoull(referenced.c_str(), nullptr, 10);
  auto waiting = read_file(folder + "/rsv_data");
  if (waiting) total += std::strtoull(waiting->c_str(), nullptr, 10);
  return total;
}

Result<size_t> drop_stale_groups(int root) {
  ISOLA_TRY(auto groups, keys(root, BTRFS_QUOTA_TREE_OBJECTID, BTRFS_QGROUP_INFO_KEY));
  // A deleted subvolume keeps its root item until its contents are freed, so a group that still has something to give
  // back is not stale yet.
  ISOLA_TRY(auto roots, keys(root, BTRFS_ROOT_TREE_OBJECTID, BTRFS_ROOT_ITEM_KEY));
  std::set<uint64_t> alive;
  for (const auto& r : roots) alive.insert(r.objectid);
  size_t dropped = 0;
  for (const auto& g : groups) {
    // Level 0 groups carry the subvolume's id; ids below 256 are the filesystem's own trees.
    if (g.offset < BTRFS_FIRST_FREE_OBJECTID || g.offset >> 48 || alive.count(g.offset)) continue;
    btrfs_ioctl_qgroup_create_args args{.create = 0, .qgroupid = g.offset};
    if (::ioctl(root, BTRFS_IOC_QGROUP_CREATE, &args) == 0)
      ++dropped;
    else if (errno != ENOENT && errno != EBUSY)
      return sys_error("cannot remove a stale quota group");
  }
  return dropped;
}

}  // namespace isola::image::btrfs
