#include "image/template_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <set>
#include <utility>

#include "base/fd.h"
#include "base/file.h"
#include "base/hash/sha256.h"
#include "image/apt_sources.h"
#include "image/blob_users.h"
#include "image/build_folder.h"
#include "image/file_lock.h"
#include "image/interpreter_files.h"
#include "image/manifest.h"
#include "image/pack.h"
#include "image/recipes.h"
#include "image/rootfs.h"
#include "image/tree.h"

namespace isola::image {

namespace {

std::string manifest_file(const std::string& root, const std::string& name) {
  return root + "/templates/" + name + ".json";
}

Result<void> make_layout(const std::string& root) {
  ISOLA_CHECK(make_dirs(root));
  for (const char* part : {"/blobs", "/templates", "/build"}) ISOLA_CHECK(make_dirs(root + part));
  // Half-made roots hold setuid programs: nobody else may walk in.
  if (::chmod((root + "/build").c_str(), 0700) < 0) return sys_error("cannot close " + root + "/build");
  return {};
}

Result<uint64_t> size_of(const std::string& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) < 0) return sys_error("cannot find " + path);
  if (!S_ISREG(st.st_mode)) return fail(Code::corrupt, path + " is not a file");
  return static_cast<uint64_t>(st.st_size);
}

int percent(uint64_t done, uint64_t all) { return all ? static_cast<int>(done * 100 / all) : -1; }

// Puts a finished blob and its manifest into the cache. The publish lock keeps `collect` from seeing the blob before
// the manifest that names it.
Result<Template> publish(const std::string& root, const std::string& blob, Template made, const Reporter& report) {
  ISOLA_TRY(made.size, size_of(blob));
  report("digest", "", 0);
  ISOLA_TRY(made.digest, sha256_file(blob, [&](uint64_t done) { report("digest", "", percent(done, made.size)); }));
  made.created = ::time(nullptr);
  ISOLA_TRY(FileLock lock, FileLock::take(root + "/build/publish.lock"));
  std::string final_path = root + "/blobs/" + made.digest + ".erofs";
  // Root mounts it. Nobody else on this machine has to read it, and it may be somebody's private image.
  if (::chmod(blob.c_str(), 0400) < 0) return sys_error("cannot set the mode of " + blob);
  if (::rename(blob.c_str(), final_path.c_str()) < 0) return sys_error("cannot put the blob into the cache");
  ISOLA_CHECK(sync_folder(root + "/blobs"));
  ISOLA_CHECK(replace_file(manifest_file(root, made.name), to_json(made)));
  return made;
}

Result<Template> pack_and_publish(const std::string& root, const BuildFolder& folder, const std::string& tree,
                                  int64_t not_after, Template made, const Reporter& report, uint64_t most = 0) {
  report("pack");
  std::string blob = folder.path() + "/blob.erofs";
  ISOLA_CHECK(pack_tree(tree, blob, not_after, folder.path() + "/log", report, most));
  return publish(root, blob, std::move(made), report);
}

// A failed build's log outlives its folder: ROOT/build/<name>.log, replaced by the next failure.
void keep_log(const std::string& root, const std::string& name, const std::string& log, Error& error) {
  std::string kept = root + "/build/" + name + ".log";
  if (::rename(log.c_str(), kept.c_str()) == 0) error.message += "\n(the whole log: " + kept + ")";
}

}  // namespace

TemplateCache::TemplateCache(std::string root) : root_(std::move(root)) {}

std::string TemplateCache::blob_path(const std::string& digest) const { return root_ + "/blobs/" + digest + ".erofs"; }

Result<std::string> TemplateCache::manifest_path(const std::string& name_or_alias) const {
  std::string name = canonical_template(name_or_alias);
  ISOLA_CHECK(check_template_name(name));
  return manifest_file(root_, name);
}

Result<Template> TemplateCache::find(const std::string& name_or_alias) const {
  std::string name = canonical_template(name_or_alias);
  ISOLA_CHECK(check_template_name(name));
  auto text = read_file(manifest_file(root_, name));
  if (!text) {
    if (text.error().sys_errno == ENOENT) return fail(Code::not_found, "the template " + name + " is not built yet");
    return std::unexpected(text.error());
  }
  auto found = parse_manifest(*text);
  if (!found) return std::unexpected(found.error().in(manifest_file(root_, name)));
  if (found->name != name)
    return fail(Code::corrupt, manifest_file(root_, name) + " belongs to the template " + found->name);
  // Cheap, and catches what happens in practice: a blob that was deleted or cut off by hand.
  auto size = size_of(blob_path(found->digest));
  if (!size) return fail(Code::corrupt, "the blob of the template " + name + " is missing: " + size.error().message);
  if (*size != found->size) return fail(Code::corrupt, "the blob of the template " + name + " has the wrong size");
  return found;
}

Result<std::vector<Template>> TemplateCache::list() const {
  std::vector<Template> out;
  ISOLA_TRY(auto names, list_dir(root_ + "/templates"));
  for (const auto& file : names) {
    if (!file.ends_with(".json")) continue;
    auto found = find(file.substr(0, file.size() - 5));
    if (found)
      out.push_back(std::move(*found));
    else if (found.error().code != Code::not_found && found.error().code != Code::corrupt)
      return std::unexpected(found.error());
  }
  return out;
}

Result<Template> TemplateCache::build(const std::string& name, const Progress& progress, bool again) {
  ISOLA_TRY(Recipe recipe, find_recipe(name));
  ISOLA_TRY(HostSources host, read_host_sources());
  std::string ours;
  if (recipe.interpreter) {
    ISOLA_TRY(ours, interpreter_digest());
  }
  Template wanted{.name = recipe.name, .distribution = host.distribution.id + " " + host.distribution.codename};
  ISOLA_TRY(wanted.key, sha256(to_text(recipe) + ours + wanted.distribution + "\n" + to_deb822(host.sources, true)));
  auto make = [&](const BuildPlace& place, const Reporter& report) { return make_rootfs(place, recipe, host, report); };
  return build_from(wanted, make, progress, again);
}

Result<Template> TemplateCache::build_from(const Template& wanted, const TreeMaker& make, const Progress& progress,
                                           bool again, uint64_t most) {
  ISOLA_CHECK(check_template_name(wanted.name));
  auto current = [&]() -> Result<Template> {
    ISOLA_TRY(Template found, find(wanted.name));
    if (found.key != wanted.key) return fail(Code::not_found, "the template " + wanted.name + " is stale");
    return found;
  };
  if (!again)
    if (auto found = current()) return found;

  Reporter report(progress);
  ISOLA_CHECK(make_layout(root_));
  std::string lock_path = root_ + "/build/" + wanted.name + ".lock";
  auto lock = FileLock::try_take(lock_path);
  if (!lock && lock.error().sys_errno == EWOULDBLOCK) {
    report("waiting", "another process builds this template");
    lock = FileLock::take(lock_path);
    again = false;  // what the other one made a moment ago is as new as ours would be
  }
  if (!lock) return std::unexpected(lock.error());
  if (!again)
    if (auto found = current()) return found;

  ISOLA_CHECK(sweep_folders(root_ + "/build"));
  ISOLA_TRY(BuildFolder folder, BuildFolder::make(root_ + "/build", wanted.name));
  BuildPlace place{folder.path()};
  auto made = [&]() -> Result<Template> {
    int64_t start = ::time(nullptr);
    Template result = wanted;
    ISOLA_TRY(result.packages, make(place, report));
    ISOLA_TRY(int64_t not_after, newest_before(place.root(), start));
    return pack_and_publish(root_, folder, place.root(), not_after, std::move(result), report, most);
  }();
  if (!made) keep_log(root_, wanted.name, place.log(), made.error());
  return made;
}

Result<BuildFolder> TemplateCache::closed_folder(const std::string& name) {
  ISOLA_CHECK(make_layout(root_));
  ISOLA_CHECK(sweep_folders(root_ + "/build"));
  return BuildFolder::make(root_ + "/build", name);
}

Result<Template> TemplateCache::import_tree(const std::string& name, const std::string& folder, const std::string& key,
                                            const Progress& progress) {
  ISOLA_CHECK(check_template_name(name));
  ISOLA_CHECK(make_layout(root_));
  Reporter report(progress);
  ISOLA_TRY(FileLock lock, FileLock::take(root_ + "/build/" + name + ".lock"));
  ISOLA_CHECK(sweep_folders(root_ + "/build"));
  ISOLA_TRY(BuildFolder place, BuildFolder::make(root_ + "/build", name));
  ISOLA_TRY(int64_t not_after, newest_before(folder, ::time(nullptr)));
  return pack_and_publish(root_, place, folder, not_after, {.name = name, .key = key}, report);
}

Result<void> TemplateCache::verify(const std::string& name) const {
  ISOLA_TRY(Template found, find(name));
  ISOLA_TRY(std::string digest, sha256_file(blob_path(found.digest)));
  if (digest == found.digest) return {};
  return fail(Code::corrupt, "the blob of the template " + name + " is damaged: " + blob_path(found.digest) +
                                 " has the digest " + digest);
}

Result<void> TemplateCache::remove(const std::string& name) {
  ISOLA_CHECK(check_template_name(name));
  if (::unlink(manifest_file(root_, name).c_str()) < 0 && errno != ENOENT)
    return sys_error("cannot remove the template " + name);
  return {};
}

Result<uint64_t> TemplateCache::collect() {
  ISOLA_CHECK(make_layout(root_));
  ISOLA_CHECK(sweep_folders(root_ + "/build"));
  ISOLA_TRY(FileLock lock, FileLock::take(root_ + "/build/publish.lock"));
  std::set<std::string> wanted;
  ISOLA_TRY(auto manifests, list_dir(root_ + "/templates"));
  for (const auto& file : manifests) {
    if (!file.ends_with(".json")) continue;
    ISOLA_TRY(std::string text, read_file(root_ + "/templates/" + file));
    auto found = parse_manifest(text);
    // A manifest that cannot be read may name any blob: better keep them all than remove one in use.
    if (!found) return std::unexpected(found.error().in("cannot collect while a manifest is unreadable: " + file));
    wanted.insert(found->digest + ".erofs");
    for (const auto& parent : found->parents) wanted.insert(parent + ".erofs");
  }
  uint64_t freed = 0;
  ISOLA_TRY(auto blobs, list_dir(root_ + "/blobs"));
  for (const auto& blob : blobs) {
    if (!blob.ends_with(".erofs") || wanted.count(blob)) continue;
    const std::string digest = blob.substr(0, blob.size() - std::string_view(".erofs").size());
    ISOLA_TRY(bool used, is_used(root_ + "/blobs", digest));
    if (used) continue;
    std::string path = root_ + "/blobs/" + blob;
    auto size = size_of(path);
    if (::unlink(path.c_str()) < 0) return sys_error("cannot remove " + path);
    freed += size.value_or(0);
    std::error_code ignored;  // a note about nothing does no harm
    std::filesystem::remove_all(root_ + "/blobs/users/" + digest, ignored);
  }
  return freed;
}

std::vector<std::string> known_templates() {
  std::vector<std::string> out;
  for (const auto& recipe : recipes()) out.push_back(recipe.name);
  return out;
}

}  // namespace isola::image
