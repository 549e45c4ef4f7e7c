#include "image/image_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash/sha256.h"
#include "base/ids.h"
#include "image/chunk_sums.h"
#include "image/sync_all.h"
#include "image/tree.h"
#include "kernel/fault.h"

namespace isola::image {

namespace {

namespace fault = kernel::fault;

constexpr char kManifest[] = "/manifest.json";

Result<Fd> open_lock(const std::string& folder) {
  Fd lock(::open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) return sys_error("cannot open the lock of an image");
  return lock;
}

}  // namespace

Result<Draft> ImageStore::begin(const std::string& id) {
  ISOLA_CHECK(make_dirs(root_, 0700));
  Draft draft{.id = id};
  std::string place = folder(draft.id);
  if (int e = fault::at("mkdir")) return sys_error("cannot create an image", e);
  if (::mkdir(place.c_str(), 0700) < 0) {
    if (errno == EEXIST) return fail(Code::exists, "there is an image " + id + " already");
    return sys_error("cannot create an image");
  }
  auto made = [&]() -> Result<void> {
    ISOLA_TRY(draft.lock, open_lock(place));
    if (::flock(draft.lock.get(), LOCK_EX | LOCK_NB) < 0) return sys_error("cannot lock an image");
    draft.memory = memory_folder(draft.id);
    // Read by process 1 of a restored sandbox, through a descriptor; its parents are closed to everybody.
    if (::mkdir(draft.memory.c_str(), 0755) < 0) return sys_error("cannot create an image");
    return {};
  }();
  if (!made) {
    (void)remove_tree(place);
    return std::unexpected(made.error());
  }
  return draft;
}

Result<std::vector<ImageFile>> ImageStore::sum_up(const std::string& id, const KnownSums& known) const {
  std::string place = memory_folder(id);
  ISOLA_TRY(auto names, list_dir(place));
  std::vector<ImageFile> files;
  for (const auto& name : names) {
    std::string path = place + "/" + name;
    if (!name.ends_with(".img")) {  // logs and statistics
      ::unlink(path.c_str());
      continue;
    }
    const auto ahead = known.find(name);
    ISOLA_TRY(auto file, sum_file(path, ahead == known.end() ? std::vector<uint64_t>{} : ahead->second));
    file.name = name;
    files.push_back(std::move(file));
  }
  // All of them are on their way by now.
  std::vector<std::string> paths = {place, folder(id), root_};
  for (const auto& file : files) paths.push_back(place + "/" + file.name);
  ISOLA_CHECK(sync_all(paths));
  return files;
}

Result<void> ImageStore::commit(const Image& image) const {
  // With memory, sum_up() has done so along with its files: one more would be one more wait for the disk.
  if (!image.memory) ISOLA_CHECK(sync_all({folder(image.id), root_}));
  return write_manifest(image);
}

Result<void> ImageStore::write_manifest(const Image& image) const {
  if (int e = fault::at("commit_image")) return sys_error("cannot write the manifest of an image", e);
  return replace_file(folder(image.id) + kManifest, to_json(image), 0600);
}

// Whoever removes an image waits for this lock.
Result<Fd> ImageStore::lock_manifest(const std::string& id) const {
  ISOLA_TRY(Fd lock, open_lock(folder(id)));
  if (::flock(lock.get(), LOCK_EX) < 0) return sys_error("cannot lock image " + id);
  if (::access((folder(id) + kManifest).c_str(), F_OK) < 0) return fail(Code::not_found, "there is no image " + id);
  return lock;
}

Result<void> ImageStore::change(const Image& image) const {
  ISOLA_TRY(Fd lock, lock_manifest(image.id));
  ISOLA_CHECK(sync_all({folder(image.id)}));
  return write_manifest(image);
}

Result<Image> ImageStore::find(const std::string& id) const {
  if (!is_image_id(id)) return fail(Code::invalid, "an image's name is m and 20 letters or digits");
  auto text = read_file(folder(id) + kManifest, 64 << 20);
  if (!text && text.error().sys_errno == ENOENT) return fail(Code::not_found, "there is no image " + id);
  if (!text) return std::unexpected(text.error());
  auto image = parse_image(*text);
  if (!image) return std::unexpected(image.error().in("image " + id));
  if (image->id != id) return fail(Code::corrupt, "image " + id + " says that it is " + image->id);
  return image;
}

Result<std::vector<Image>> ImageStore::list(
    const std::function<void(const std::string& id, const Error&)>& broken) const {
  ISOLA_TRY(auto names, list_dir(root_));
  std::vector<Image> all;
  for (const auto& name : names) {
    if (!is_image_id(name)) continue;
    auto image = find(name);
    if (image)
      all.push_back(std::move(*image));
    else if (image.error().code != Code::not_found && broken)
      broken(name, image.error());
  }
  return all;
}

Result<void> ImageStore::verify(const Image& image, bool thorough) const {
  if (image.packed()) return verify_archives(image, thorough);
  for (const auto& file : image.files) {
    std::string path = memory_folder(image.id) + "/" + file.name;
    if (thorough)
      if (auto forgotten = forget_cached(path); !forgotten)
        return std::unexpected(forgotten.error().in("image " + image.id));
    auto checked = check_file(path, file);
    if (!checked) return std::unexpected(checked.error().in("image " + image.id));
    if (!thorough || file.sha256.empty()) continue;
    ISOLA_TRY(std::string sum, sha256_file(path));
    if (sum != file.sha256)
      return fail(Code::corrupt, "image " + image.id + ": " + file.name + " is not what was written");
  }
  return {};
}

Result<void> ImageStore::verify_archives(const Image& image, bool thorough) const {
  for (const auto& file : image.archives) {
    const std::string path = folder(image.id) + "/" + file.name;
    if (thorough) ISOLA_CHECK(forget_cached(path));
    ISOLA_TRY(std::string sum, sha256_file(path));
    if (sum != file.sha256)
      return fail(Code::corrupt, "image " + image.id + ": " + file.name + " is not what was written");
  }
  return {};
}

Result<void> ImageStore::seal(const std::string& id) const {
  ISOLA_TRY(const Image before, find(id));
  Image image = before;
  for (auto& file : image.files) {
    if (!file.sha256.empty()) continue;
    // What is summed up must be what was written, not what became of it meanwhile.
    std::string path = memory_folder(id) + "/" + file.name;
    ISOLA_CHECK(check_file(path, file));
    ISOLA_TRY(file.sha256, sha256_file(path));
  }
  ISOLA_TRY(Fd lock, lock_manifest(id));
  // One that was packed meanwhile must not be said to be what it was.
  ISOLA_TRY(const Image now, find(id));
  if (now != before) return {};
  return replace_file(folder(id) + kManifest, to_json(image), 0600);
}

Result<void> ImageStore::drop(const std::string& id) const {
  if (!is_image_id(id)) return fail(Code::invalid, "an image's name is m and 20 letters or digits");
  if (::unlink((folder(id) + kManifest).c_str()) < 0) {
    if (errno == ENOENT) return fail(Code::not_found, "there is no image " + id);
    return sys_error("cannot remove image " + id);
  }
  return sync_folder(folder(id));
}

Result<void> ImageStore::remove(const std::string& id) const {
  if (!is_image_id(id)) return fail(Code::invalid, "an image's name is m and 20 letters or digits");
  if (Fd lock(::open((folder(id) + "/lock").c_str(), O_RDWR | O_CLOEXEC)); lock) (void)::flock(lock.get(), LOCK_EX);
  ::unlink((folder(id) + kManifest).c_str());
  return remove_tree(folder(id));
}

bool ImageStore::busy(const std::string& id) const {
  Fd lock(::open((folder(id) + "/lock").c_str(), O_RDWR | O_CLOEXEC));
  return lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) < 0;
}

Result<std::vector<std::string>> ImageStore::leftovers() const {
  ISOLA_TRY(auto names, list_dir(root_));
  std::vector<std::string> found;
  for (const auto& name : names) {
    if (!is_image_id(name)) continue;
    // Not to be able to look is not to know that there is none.
    if (::access((folder(name) + kManifest).c_str(), F_OK) == 0 || errno != ENOENT) continue;
    if (!busy(name)) found.push_back(name);
  }
  return found;
}

}  // namespace isola::image
