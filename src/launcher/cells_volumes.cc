// Cells: volumes. A volume is a writable layer that belongs to no sandbox: named, limited, mountable into several at
// once, and there until it is dropped. Its files have canonical ids, which every sandbox sees through its own map.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/ids.h"
#include "base/log.h"
#include "kernel/capability.h"
#include "kernel/mount.h"
#include "launcher/bucket.h"
#include "launcher/cells.h"
#include "launcher/fixed_users.h"

namespace isola::launcher {

namespace {

Result<void> check_id(const std::string& id) {
  if (is_volume_id(id)) return {};
  return fail(Code::invalid, "not the name of a volume: " + id);
}

// It becomes part of a mount table and of a request to criu, which have signs of their own.
Result<void> check_target(const std::string& target) {
  auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-+@/").find(c) != std::string_view::npos;
  };
  if (target.size() > 1 && target.size() <= 256 && target[0] == '/' && std::ranges::all_of(target, plain)) return {};
  return fail(Code::invalid,
              "a volume is mounted at an absolute path of letters, digits and . _ - + @, not at '" + target + "'");
}

}  // namespace

// A limit is on disk after a commit of the whole store, which waits for everybody's writes: not here. Whoever is inside
// may have closed the volume's folder to all but himself.
void Cells::settle_volume(const std::string& id, Done done) {
  put_on_disk([this, id] { return parts_.layers.settle(id); }, std::move(done));
}

void Cells::sync_volume(const std::string& id, Done done) {
  auto known = check_id(id);
  if (known)
    if (auto path = parts_.layers.path(id); !path) known = std::unexpected(path.error());
  if (!known) return done(known);
  put_on_disk([this, id] { return parts_.layers.sync(id); }, std::move(done));
}

void Cells::put_on_disk(std::function<Result<void>()> body, Done done) {
  auto work = [body = std::move(body)](kernel::Helper::Talk&) -> Result<std::string> {
    ISOLA_CHECK(body());
    return "";
  };
  auto over = [this, done = std::move(done)](const Result<void>& settled) {
    done(settled);
    turn_over(volumes_line_);
  };
  in_turn(volumes_line_, [this, work, over] {
    do_aside({.name = "isola-settle", .capabilities = kernel::capability(CAP_DAC_READ_SEARCH)}, work, over);
  });
}

void Cells::make_volume(const std::string& id, uint64_t bytes, Done done) {
  auto layer = [&]() -> Result<std::string> {
    ISOLA_CHECK(check_id(id));
    if (!parts_.layers.enforces()) return fail(Code::unsupported, "volumes need a disk limit: " + parts_.no_disk_limit);
    return parts_.layers.create(id, {.bytes = bytes});
  }();
  if (!layer) return done(std::unexpected(layer.error()));
  auto over = [this, id, done = std::move(done)](const Result<void>& made) {
    if (!made) (void)janitor_.take(Janitor::group_and_layer("", id));
    done(made);
  };
  if (auto held = image::verify_limit(parts_.layers, id, bytes); !held) return over(held);
  // Whom templates run programs as: a new volume, or a new folder of one, is that user's; the sandbox's root may write
  // everywhere.
  if (::chown((*layer + "/upper").c_str(), kUser, kUser) < 0) return over(sys_error("cannot give the volume away"));
  settle_volume(id, over);
}

void Cells::resize_volume(const std::string& id, uint64_t bytes, Done done) {
  auto resized = [&]() -> Result<uint64_t> {
    ISOLA_CHECK(check_id(id));
    ISOLA_TRY(uint64_t before, parts_.layers.limit(id));
    ISOLA_CHECK(parts_.layers.resize(id, {.bytes = bytes}));
    if (auto held = image::verify_limit(parts_.layers, id, bytes); !held) {
      (void)parts_.layers.resize(id, {.bytes = before});
      return std::unexpected(held.error());
    }
    return before;
  }();
  if (!resized) return done(std::unexpected(resized.error()));
  // Whoever hears of a failure takes the old limit for the one in force.
  auto over = [this, id, bytes, before = *resized, done = std::move(done)](const Result<void>& settled) {
    // Else somebody has resized it since.
    if (!settled && image::verify_limit(parts_.layers, id, bytes))
      if (auto back = parts_.layers.resize(id, {.bytes = before}); !back)
        log::error("launcher", "volume {} keeps a limit that was refused: {}", id, back.error().message);
    done(settled);
  };
  settle_volume(id, over);
}

Result<void> Cells::drop_volume(const std::string& id) {
  ISOLA_CHECK(check_id(id));
  ISOLA_CHECK(parts_.layers.path(id));
  if (auto users = layer_users_.find(id); users != layer_users_.end())
    return fail(Code::unavailable, fmt::format("volume {} is in use by {} sandboxes", id, users->second));
  going_.insert(Janitor::group_and_layer("", id));
  return janitor_.take(Janitor::group_and_layer("", id));
}

Result<std::vector<VolumeSummary>> Cells::volumes(const std::string& after, size_t max) {
  ISOLA_TRY(auto names, parts_.layers.list());
  std::erase_if(names, [&](const std::string& name) { return !is_volume_id(name) || name <= after; });
  std::ranges::sort(names);
  if (names.size() > max) names.resize(max);
  std::vector<VolumeSummary> all;
  for (const auto& name : names)
    if (auto one = volume(name)) all.push_back(std::move(*one));  // others are going away
  return all;
}

Result<VolumeSummary> Cells::volume(const std::string& id) {
  ISOLA_CHECK(check_id(id));
  ISOLA_CHECK(parts_.layers.path(id));
  ISOLA_TRY(uint64_t limit, parts_.layers.limit(id));
  ISOLA_TRY(auto usage, parts_.layers.usage(id));
  auto users = layer_users_.find(id);
  VolumeSummary one;
  one.id = id;
  one.limit = limit;
  one.used = usage.bytes;
  one.users = users == layer_users_.end() ? 0 : users->second;
  return one;
}

Result<void> Cells::check_volumes(const LaunchRequest& request) {
  if (request.volumes.size() + request.buckets.size() + request.shown_targets.size() > boundary::kMostShown)
    return fail(Code::invalid, fmt::format("a sandbox can have at most {} volumes and buckets", boundary::kMostShown));
  std::set<std::string> targets(request.shown_targets.begin(), request.shown_targets.end());
  for (const auto& volume : request.volumes) {
    ISOLA_CHECK(check_id(volume.id));
    ISOLA_CHECK(check_target(volume.target));
    if (!targets.insert(volume.target).second)
      return fail(Code::invalid, "two volumes cannot be at the same place: " + volume.target);
    ISOLA_CHECK(parts_.layers.path(volume.id));
    // Whoever got it now could move under the janitor what he is just removing.
    if (going_.contains(Janitor::group_and_layer("", volume.id)))
      return fail(Code::not_found, "volume " + volume.id + " is being removed");
  }
  for (const auto& bucket : request.buckets) {
    ISOLA_CHECK(check_bucket(bucket));
    ISOLA_CHECK(check_target(bucket.target));
    if (!targets.insert(bucket.target).second)
      return fail(Code::invalid, "two folders cannot be at the same place: " + bucket.target);
  }
  if (request.buckets.empty()) return {};
  if (!open_secret) return fail(Code::unsupported, "this launcher has no vault, and so no buckets");
  if (chosen(request) != BoundaryKind::jail)
    return fail(Code::unsupported, "buckets can be mounted in the boundary jail only");
  ISOLA_CHECK(find_bucket_client());
  return {};
}

// What is in a volume is the sandboxes' doing: no symlink of theirs is followed.
Result<Fd> Cells::open_volume(const VolumeMount& volume) {
  ISOLA_TRY(std::string layer, parts_.layers.path(volume.id));
  Fd at(::open((layer + "/upper").c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!at) return sys_error("cannot open volume " + volume.id);
  for (size_t from = 0; from < volume.part.size();) {
    size_t slash = std::min(volume.part.find('/', from), volume.part.size());
    std::string name = volume.part.substr(from, slash - from);
    if (name.empty() || name == "." || name == ".." || name.find('\0') != std::string::npos)
      return fail(Code::invalid, "not a plain path in a volume: " + volume.part);
    if (volume.read_only) {
      // Who may only read does not write, not even a folder.
      struct stat st{};
      if (::fstatat(at.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
        return fail(Code::not_found, "there is no folder " + volume.part + " in the volume, and it is only read");
    } else if (::mkdirat(at.get(), name.c_str(), 0755) == 0) {
      if (::fchownat(at.get(), name.c_str(), kUser, kUser, AT_SYMLINK_NOFOLLOW) < 0)
        return sys_error("cannot give a folder of the volume away");
    } else if (errno != EEXIST) {
      return sys_error("cannot make " + volume.part + " in the volume");
    }
    auto next = kernel::open_beneath(at.get(), name, O_DIRECTORY);
    if (!next) return std::unexpected(next.error().in("volume " + volume.id));
    at = std::move(*next);
    from = slash + 1;
  }
  return kernel::clone_tree(at.get(), "");
}

}  // namespace isola::launcher
