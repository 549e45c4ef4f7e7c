// The few btrfs ioctls that the layer store needs, typed. Every call names the folder or subvolume by an open
// descriptor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::image::btrfs {

enum class QuotaKind { off, simple, full };

// Simple quotas (Linux 6.7) charge an extent to the subvolume that wrote it and need no rescans; where the kernel lacks
// them, full quota groups do. Quiet when quotas are on already.
Result<QuotaKind> enable_quota(int root);
Result<QuotaKind> quota_kind(int root);
Result<void> create_subvolume(int parent, const std::string& name);
// A snapshot of an open subvolume; on disk when the call returns.
enum class Access { read_only, read_write };
Result<void> create_snapshot(int parent, const std::string& name, int subvolume, Access access);
// Quick: the kernel frees the contents in the background. Code::not_found when there is none.
Result<void> delete_subvolume(int parent, const std::string& name);
Result<uint64_t> subvolume_id(int subvolume);
// Everything that was changed so far is on disk, but for data of files that waits to be written out.
Result<void> commit(int root);
// 0 bytes = no limit. Bounds data and metadata together.
Result<void> limit(int root, uint64_t subvolume, uint64_t bytes);
Result<uint64_t> limit_of(int root, uint64_t subvolume);  // 0: none
// What is charged to the subvolume, with data that is not written out yet.
Result<uint64_t> charged(int root, uint64_t subvolume);
// Quota groups whose subvolume is gone (older kernels leave them): removes them, says how many.
Result<size_t> drop_stale_groups(int root);
bool is_btrfs(int fd);

}  // namespace isola::image::btrfs
