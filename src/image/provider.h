// What the layer store's providers share. Only for the files of this room.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "image/layer_store.h"

namespace isola::image {

// One function per provider: opens it below data_dir (0700, made by open_layer_store), or says why it cannot work.
Result<std::unique_ptr<LayerStore>> open_project_quota_store(const std::string& data_dir, const StoreOptions& options);
Result<std::unique_ptr<LayerStore>> open_btrfs_store(const std::string& data_dir, const StoreOptions& options);
Result<std::unique_ptr<LayerStore>> open_ext4_file_store(const std::string& data_dir, const StoreOptions& options);
Result<std::unique_ptr<LayerStore>> open_unquotaed_store(const std::string& data_dir, const StoreOptions& options);

// A layer's id becomes a file name: 1 to 64 of [a-z0-9_-], not starting with a dash or underscore.
Result<void> check_layer_id(const std::string& id);
Result<void> check_limits(const LayerLimits& limits);
// Code::exhausted when the filesystem of `dir` has less free space than the reserve.
Result<void> check_reserve(const std::string& dir, const StoreOptions& options);
// The two folders of a layer.
Result<void> make_layer_folders(const std::string& layer);
bool is_directory(const std::string& path);

struct DiskSpace {
  uint64_t total = 0;
  uint64_t free = 0;  // for ordinary writers
};
Result<DiskSpace> disk_space(const std::string& dir);

// Really tries whether a store enforces: makes a small layer and writes twice its limit into it. Leaves nothing behind.
Result<void> prove_enforcement(LayerStore& store);

}  // namespace isola::image
