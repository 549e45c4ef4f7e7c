// Layers as plain folders: with a project quota on each, or (unquotaed) with nothing.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "image/project_quota.h"
#include "image/provider.h"
#include "image/sparse_copy.h"
#include "image/spawn.h"
#include "image/tree.h"
#include "kernel/fault.h"

namespace isola::image {

namespace {

namespace fault = kernel::fault;

// An inode costs 256 to 512 bytes that a byte quota does not see: one per 4 KiB keeps an inode filler in proportion.
uint64_t inodes_for(const LayerLimits& limits) {
  return limits.inodes ? limits.inodes : std::max<uint64_t>(limits.bytes / 4096, 1024);
}

class FolderStore : public LayerStore {
 public:
  FolderStore(std::string dir, bool quota, StoreOptions options)
      : root_(std::move(dir) + "/layers"), quota_(quota), options_(std::move(options)) {}

  Result<void> start() {
    ISOLA_CHECK(make_dirs(root_, 0700));
    sharing_ = can_reflink(root_) ? Sharing::reflink : Sharing::copies;
    return {};
  }

  std::string_view name() const override { return quota_ ? "project-quota" : "unquotaed"; }
  bool enforces() const override { return quota_; }
  const std::string& place() const override { return root_; }
  bool slow_destroy() const override { return true; }

  Result<std::string> create(const std::string& id, const LayerLimits& limits,
                             const std::vector<std::string>&) override {
    ISOLA_CHECK(check_layer_id(id));
    ISOLA_CHECK(check_limits(limits));
    ISOLA_CHECK(check_reserve(root_, options_));
    std::string layer = folder(id);
    if (int e = fault::at("mkdir")) return sys_error("cannot create the layer " + id, e);
    if (::mkdir(layer.c_str(), 0700) < 0) return sys_error("cannot create the layer " + id);
    auto filled = fill(layer, limits);
    if (!filled) {
      (void)remove_tree(layer);
      return std::unexpected(filled.error());
    }
    return layer;
  }

  Result<std::string> path(const std::string& id) override {
    ISOLA_CHECK(check_layer_id(id));
    if (!is_directory(folder(id))) return fail(Code::not_found, "there is no layer " + id);
    return folder(id);
  }

  Result<void> resize(const std::string& id, const LayerLimits& limits) override {
    ISOLA_TRY(std::string layer, path(id));
    ISOLA_CHECK(check_limits(limits));
    if (!quota_) return {};
    ISOLA_TRY(uint32_t project, project_of(layer));
    return limit_project(root_, project, {.bytes = limits.bytes, .inodes = inodes_for(limits)});
  }

  Result<uint64_t> limit(const std::string& id) override {
    ISOLA_TRY(std::string layer, path(id));
    if (!quota_) return 0;
    ISOLA_TRY(uint32_t project, project_of(layer));
    return project_limit(root_, project);
  }

  Result<LayerUsage> usage(const std::string& id) override {
    ISOLA_TRY(std::string layer, path(id));
    if (!quota_) return LayerUsage{};
    ISOLA_TRY(uint32_t project, project_of(layer));
    return project_usage(root_, project);
  }

  Result<void> destroy(const std::string& id) override {
    ISOLA_CHECK(check_layer_id(id));
    std::string layer = folder(id);
    if (!is_directory(layer)) return {};
    auto project = quota_ ? project_of(layer) : Result<uint32_t>(0);
    ISOLA_CHECK(remove_tree(layer));
    // Last: a crash in between leaves a limit on an id that nothing uses, and free_project never picks that.
    if (quota_ && project) return limit_project(root_, *project, {});
    return {};
  }

  Sharing sharing() const override { return sharing_; }
  Result<void> copy(const std::string& id, const std::string& to) override {
    ISOLA_TRY(std::string from, path(id));
    ISOLA_CHECK(check_layer_id(to));
    ISOLA_CHECK(check_reserve(root_, options_));
    std::string layer = folder(to);
    if (int e = fault::at("mkdir")) return sys_error("cannot create the layer " + to, e);
    if (::mkdir(layer.c_str(), 0700) < 0) return sys_error("cannot create the layer " + to);
    // With ids, times, links, devices (whiteouts) and the overlay's own attributes.
    auto copied = run({.argv = {"cp", "-a", "--reflink=auto", "--sparse=auto", from + "/upper", layer + "/upper"},
                       .what = "cannot copy a layer"});
    if (copied) copied = sync(to);
    if (!copied) (void)remove_tree(layer);
    return copied;
  }

  Result<std::vector<std::string>> list() override {
    ISOLA_TRY(auto names, list_dir(root_));
    std::erase_if(names, [](const std::string& n) { return !check_layer_id(n); });
    return names;
  }

 private:
  std::string folder(const std::string& id) const { return root_ + "/" + id; }

  Result<void> fill(const std::string& layer, const LayerLimits& limits) {
    if (quota_) {
      ISOLA_TRY(uint32_t project, free_project(root_));
      ISOLA_CHECK(limit_project(root_, project, {.bytes = limits.bytes, .inodes = inodes_for(limits)}));
      auto set = set_project(layer, project);
      if (!set) {
        (void)limit_project(root_, project, {});
        return set;
      }
    }
    return make_layer_folders(layer);
  }

  std::string root_;
  bool quota_;
  StoreOptions options_;
  Sharing sharing_ = Sharing::copies;
};

}  // namespace

Result<std::unique_ptr<LayerStore>> open_project_quota_store(const std::string& dir, const StoreOptions& options) {
  ISOLA_CHECK(check_project_quota(dir));
  auto store = std::make_unique<FolderStore>(dir, true, options);
  ISOLA_CHECK(store->start());
  ISOLA_CHECK(prove_enforcement(*store));
  return store;
}

Result<std::unique_ptr<LayerStore>> open_unquotaed_store(const std::string& dir, const StoreOptions& options) {
  auto store = std::make_unique<FolderStore>(dir, false, options);
  ISOLA_CHECK(store->start());
  return store;
}

}  // namespace isola::image
