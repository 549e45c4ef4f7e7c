#include "image/layer_store.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/fd.h"
#include "base/file.h"
#include "base/ids.h"
#include "base/units.h"
#include "image/provider.h"
#include "kernel/capability.h"
#include "kernel/fault.h"

namespace isola::image {

namespace fault = kernel::fault;

namespace {

struct Provider {
  std::string_view name;
  Result<std::unique_ptr<LayerStore>> (*open)(const std::string&, const StoreOptions&);
};

constexpr std::array<Provider, 4> kProviders = {{{"project-quota", open_project_quota_store},
                                                 {"btrfs", open_btrfs_store},
                                                 {"ext4-file", open_ext4_file_store},
                                                 {"unquotaed", open_unquotaed_store}}};

Result<void> prepare_dir(const std::string& data_dir) {
  ISOLA_CHECK(make_dirs(data_dir, 0755));
  std::string storage = data_dir + "/storage";
  ISOLA_CHECK(make_dirs(storage, 0700));
  // Layers hold setuid programs and files with other people's ids: nobody but root may walk in.
  if (::chmod(storage.c_str(), 0700) < 0 || ::chown(storage.c_str(), 0, 0) < 0)
    return sys_error("cannot close the storage folder " + storage);
  return {};
}

}  // namespace

Result<std::unique_ptr<LayerStore>> open_layer_store(const std::string& data_dir, const StoreOptions& options,
                                                     std::optional<AllowUnquotaedDisk> allow_unquotaed) {
  if (data_dir.empty() || data_dir[0] != '/')
    return fail(Code::invalid, "the data directory must be an absolute path, not '" + data_dir + "'");
  ISOLA_CHECK(prepare_dir(data_dir));
  std::string storage = data_dir + "/storage";
  std::string chosen = options.provider;
  // What was chosen once stays: a store that fails to open today must not be shadowed by an empty one of another kind.
  if (chosen.empty())
    if (auto before = read_file(storage + "/provider")) chosen = *before;
  std::string reasons;
  bool known = chosen.empty();
  for (const auto& provider : kProviders) {
    if (!chosen.empty() && chosen != provider.name) continue;
    known = true;
    bool risk = provider.name == "unquotaed";
    if (risk && !allow_unquotaed) {
      if (!chosen.empty())
        return fail(Code::denied, "the unquotaed layer store enforces no disk limit: it must be allowed explicitly");
      continue;
    }
    auto store = provider.open(storage, options);
    if (store) {
      if (!risk) ISOLA_CHECK(replace_file(storage + "/provider", provider.name, 0600));
      return store;
    }
    if (!chosen.empty()) return std::unexpected(store.error().in(std::string(provider.name)));
    reasons += (reasons.empty() ? "" : "; ") + std::string(provider.name) + ": " + store.error().message;
  }
  if (!known) return fail(Code::invalid, "there is no layer store named '" + chosen + "'");
  return fail(Code::unsupported, "no way to limit a sandbox's disk works under " + data_dir + " (" + reasons + ")");
}

std::string_view to_string(Sharing sharing) {
  constexpr std::string_view kNames[] = {"snapshot", "reflink", "copies"};
  return kNames[static_cast<size_t>(sharing)];
}

Result<std::vector<std::string>> LayerStore::lowers(const std::string&, const std::vector<std::string>& below) {
  std::vector<std::string> folders;
  for (const auto& layer : below) {
    ISOLA_TRY(std::string folder, path(layer));
    folders.push_back(folder + "/upper");
  }
  return folders;
}

Result<void> LayerStore::sync(const std::string& id) {
  ISOLA_TRY(std::string layer, path(id));
  Fd fd(::open(layer.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return sys_error("cannot open the layer " + id);
  if (int e = fault::at("syncfs")) return sys_error("cannot put the layer " + id + " on disk", e);
  if (::syncfs(fd.get()) < 0) return sys_error("cannot put the layer " + id + " on disk");
  return {};
}

Result<void> LayerStore::settle(const std::string& id) {
  ISOLA_TRY(std::string layer, path(id));
  for (const std::string& folder : {layer + "/upper", layer}) {
    Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd || ::fsync(fd.get()) < 0) return sys_error("cannot put the layer " + id + " on disk");
  }
  return {};
}

Result<void> check_layer_id(const std::string& id) {
  auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  bool good = !id.empty() && id.size() <= 64 && plain(id[0]) &&
              std::all_of(id.begin(), id.end(), [&](char c) { return plain(c) || c == '-' || c == '_'; });
  if (!good) return fail(Code::invalid, "not a layer id");
  return {};
}

Result<void> check_limits(const LayerLimits& limits) {
  if (limits.bytes < kSmallestLayer)
    return fail(Code::invalid, "a disk limit must be at least " + format_size(kSmallestLayer));
  if (limits.bytes > uint64_t{1} << 60) return fail(Code::invalid, "a disk limit that large makes no sense");
  return {};
}

Result<DiskSpace> disk_space(const std::string& dir) {
  struct statvfs s;
  if (::statvfs(dir.c_str(), &s) < 0) return sys_error("cannot ask for the free space of " + dir);
  return DiskSpace{.total = uint64_t{s.f_blocks} * s.f_frsize, .free = uint64_t{s.f_bavail} * s.f_frsize};
}

Result<void> check_reserve(const std::string& dir, const StoreOptions& options) {
  ISOLA_TRY(DiskSpace space, disk_space(dir));
  uint64_t reserve = options.reserve_bytes;
  if (reserve == 0) reserve = std::min<uint64_t>(space.total / 50, uint64_t{1} << 30);
  if (space.free >= reserve) return {};
  return fail(Code::exhausted, "the disk under " + dir + " is nearly full (" + format_size(space.free) +
                                   " free, a reserve of " + format_size(reserve) +
                                   " is kept): no new sandbox until there is room");
}

Result<void> verify_limit(LayerStore& store, const std::string& id, uint64_t bytes) {
  constexpr uint64_t kRounding = 4096;
  if (!store.enforces()) return {};
  ISOLA_TRY(uint64_t installed, store.limit(id));
  if (installed < bytes + kRounding && bytes < installed + kRounding) return {};
  return fail(Code::internal, "the disk limit that is in force (" +
                                  (installed ? format_size(installed) : std::string("none")) + ") is not the one of " +
                                  format_size(bytes) + " that was set");
}

Result<void> make_layer_folders(const std::string& layer) {
  for (const char* part : {"/upper", "/work"}) {
    std::string path = layer + part;
    if (int e = fault::at("mkdir")) return sys_error("cannot create " + path, e);
    if (::mkdir(path.c_str(), 0755) < 0) return sys_error("cannot create " + path);
    // Not left to the umask: this is the root folder of the sandbox.
    if (::chmod(path.c_str(), 0755) < 0) return sys_error("cannot set the mode of " + path);
  }
  return {};
}

bool is_directory(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

Result<void> prove_enforcement(LayerStore& store) {
  constexpr uint64_t kLimit = 8 << 20;
  std::string id = "probe-" + new_sandbox_id();
  ISOLA_TRY(std::string layer, store.create(id, {.bytes = kLimit}));
  // Quotas of ext4 let whoever has this one pass; nobody in a sandbox has it.
  auto as_others = kernel::Without::begin(CAP_SYS_RESOURCE);
  Result<void> outcome;
  if (!as_others) {
    outcome = std::unexpected(as_others.error());
  } else {
    auto until_written = std::move(*as_others);
    Fd file(::open((layer + "/upper/fill").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    std::string chunk(64 << 10, 'x');
    uint64_t written = 0;
    int stopped = file ? 0 : errno;
    while (!stopped && written < 2 * kLimit) {
      ssize_t n = ::write(file.get(), chunk.data(), chunk.size());
      if (n < 0)
        stopped = errno;
      else
        written += static_cast<uint64_t>(n);
    }
    // Delayed allocation may accept more than it can place; then the sync says so.
    if (!stopped && ::fsync(file.get()) < 0) stopped = errno;
    if (stopped != ENOSPC && stopped != EDQUOT)
      outcome =
          fail(Code::unsupported, stopped ? "the probe of the limit failed: " + sys_error("", stopped).error().message
                                          : "the filesystem accepts a limit and then ignores it");
  }
  auto destroyed = store.destroy(id);
  if (!outcome) return outcome;
  return destroyed;
}

}  // namespace isola::image
