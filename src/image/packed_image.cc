#include "image/packed_image.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "base/hash/sha256.h"
#include "base/ids.h"
#include "image/chunk_sums.h"
#include "image/spawn.h"
#include "image/tree.h"
#include "image/tree_compare.h"
#include "kernel/fault.h"

namespace isola::image {

namespace {

std::string folder_of(const ImageStore& store, const Image& image) { return store.root() + "/" + image.id; }

const ImageFile* archive(const Image& image, std::string_view name) {
  auto it = std::ranges::find(image.archives, name, &ImageFile::name);
  return it == image.archives.end() ? nullptr : &*it;
}

constexpr const char* kTrial = "trial";  // a folder beside the manifest, for memory

// Everything that an overlay's upper folder can hold: owners, attributes of all kinds, device nodes as whiteouts. Those
// of btrfs (compression) are wishes to a filesystem, and another one refuses them. Of tar's warnings two are none: what
// the clock of the sandbox said, and that sockets are left out.
const std::vector<std::string> kTar = {"tar",
                                       "--numeric-owner",
                                       "--xattrs",
                                       "--xattrs-include=*",
                                       "--xattrs-exclude=btrfs.*",
                                       "--sparse",
                                       "--warning=no-timestamp",
                                       "--warning=no-file-ignored"};

// What a layer is held to while its files come back: the same files can take a little more room than they did. Files
// that took far less than they hold (shared or compressed extents) find no room for themselves here, on trial already:
// a limit is a limit on what the machine can be made to store.
uint64_t room_for(const LayerStore& layers, const Image& image) {
  constexpr uint64_t kMost = uint64_t{1} << 60;
  if (!layers.enforces()) return kMost;
  const uint64_t limit = std::max(image.limits.disk, kSmallestLayer);
  return layers.can_shrink() ? std::min(limit + limit / 4 + (uint64_t{64} << 20), kMost) : limit;
}

// `most`: an archive that becomes larger than that is given up.
Result<ImageFile> write_archive(const std::string& into, const std::string& name, const std::string& folder,
                                const std::string& part, uint64_t most) {
  std::string path = into + "/" + name;
  std::vector<std::string> argv = {"prlimit", "--fsize=" + std::to_string(most)};
  argv.insert(argv.end(), kTar.begin(), kTar.end());
  argv.insert(argv.end(), {"--use-compress-program=zstd -q -3 -T1", "-C", folder, "-cf", path, part});
  if (int e = kernel::fault::at("pack_image")) return sys_error("cannot pack the image", e);
  ISOLA_CHECK(run({.argv = argv, .what = "cannot pack the image", .contained = true, .strict = true}));
  ISOLA_CHECK(sync_file(path));
  ImageFile file{.name = name};
  struct stat st;
  if (::stat(path.c_str(), &st) < 0) return sys_error("cannot look at " + path);
  file.size = static_cast<uint64_t>(st.st_size);
  ISOLA_TRY(file.sha256, sha256_file(path));
  return file;
}

Result<void> extract(const std::string& archive, const std::string& folder) {
  auto argv = kTar;
  argv.insert(argv.end(), {"--use-compress-program=zstd -q", "--same-owner", "-p", "-C", folder, "-xf", archive});
  return run({.argv = argv, .what = "cannot unpack the image", .contained = true, .strict = true});
}

Result<void> read_archive(const std::string& from, const ImageFile& file, const std::string& folder) {
  std::string path = from + "/" + file.name;
  ISOLA_TRY(std::string sum, sha256_file(path));
  if (sum != file.sha256) return fail(Code::corrupt, path + " is not what was written");
  return extract(path, folder);
}

// The end of a message, which says most: names inside can be as long as they like.
std::string end_of(const std::string& message) {
  constexpr size_t kMost = 300;
  size_t from = message.size() > kMost ? message.size() - kMost : 0;
  while (from < message.size() && (static_cast<unsigned char>(message[from]) & 0xc0) == 0x80) ++from;
  return (from ? "…" : "") + message.substr(from);
}

Result<void> try_memory(const std::string& folder, const Image& image) {
  const std::string trial = folder + "/" + kTrial;
  ISOLA_CHECK(remove_tree(trial));
  ISOLA_CHECK(make_dirs(trial, 0700));
  ISOLA_CHECK(extract(folder + "/" + kMemoryArchive, trial));
  for (const auto& file : image.files) ISOLA_CHECK(check_file(trial + "/memory/" + file.name, file));
  return remove_tree(trial);
}

Result<void> try_files(const std::string& folder, LayerStore& layers, const Image& image, const std::string& trial) {
  ISOLA_TRY(std::string layer, layers.path(image.layers.front()));
  ISOLA_TRY(std::string copy, layers.path(trial));
  ISOLA_CHECK(extract(folder + "/" + kLayerArchive, copy));
  return compare_trees(layer + "/upper", copy + "/upper");
}

Result<void> sync_all(const std::string& folder) {
  Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::syncfs(fd.get()) < 0) return sys_error("cannot put the image on disk");
  return {};
}

}  // namespace

bool has_packed_layer(const Image& image) { return archive(image, kLayerArchive) != nullptr; }

uint64_t memory_size(const Image& image) {
  const auto* packed = archive(image, kMemoryArchive);
  return packed ? packed->size : image.memory_bytes;
}

uint64_t layer_size(const Image& image) {
  const auto* packed = archive(image, kLayerArchive);
  return packed ? packed->size : image.layer_bytes;
}

// Nobody has to wait until the last one is removed.
Result<std::string> make_trial(LayerStore& layers, const Image& image) {
  const std::string name = image.id + "-" + new_command_id().substr(1, 6);
  ISOLA_CHECK(layers.create(name, {.bytes = room_for(layers, image)}));
  return name;
}

namespace {

Result<Image> pack_up(const ImageStore& store, LayerStore& layers, Image image, bool own_layer,
                      const std::string& trial) {
  const std::string folder = folder_of(store, image);
  const uint64_t most = room_for(layers, image) + image.memory_bytes;
  Result<void> tried;
  if (image.memory) {
    // Only what is what was written is worth keeping, and says so when it comes back.
    ISOLA_CHECK(store.seal(image.id));
    ISOLA_TRY(image, store.find(image.id));
    ISOLA_TRY(auto file, write_archive(folder, kMemoryArchive, folder, "memory", most));
    image.archives.push_back(std::move(file));
    tried = try_memory(folder, image);
  } else if (own_layer && !image.layers.empty()) {
    ISOLA_TRY(std::string layer, layers.path(image.layers.front()));
    ISOLA_TRY(auto file, write_archive(folder, kLayerArchive, layer, "upper", most));
    image.archives.push_back(std::move(file));
    tried = try_files(folder, layers, image, trial);
  } else {
    return fail(Code::unavailable, "others have the files of image " + image.id + ", too: nothing would be saved");
  }
  if (!tried)
    return fail(Code::unsupported,
                "unpacked again it would not be what it is, so it stays as it is: " + end_of(tried.error().message));
  ISOLA_CHECK(store.change(image));
  return image;
}

}  // namespace

Result<Image> pack(const ImageStore& store, LayerStore& layers, Image image, bool own_layer, const std::string& trial) {
  if (image.packed()) return image;
  const std::string id = image.id;
  auto packed = pack_up(store, layers, std::move(image), own_layer, trial);
  // Of an attempt that failed nothing stays, unless the manifest says otherwise after all.
  auto now = packed ? packed : store.find(id);
  if (now && now->packed() == packed.has_value()) tidy(store, *now);
  return packed;
}

Result<void> make_layer(LayerStore& layers, const Image& image) {
  if (!has_packed_layer(image)) return {};
  const std::vector<std::string> below(image.layers.begin() + 1, image.layers.end());
  ISOLA_CHECK(layers.create(image.layers.front(), {.bytes = room_for(layers, image)}, below));
  return {};
}

Result<Image> unpack(const ImageStore& store, LayerStore& layers, Image image) {
  const std::string folder = folder_of(store, image);
  if (const auto* file = archive(image, kMemoryArchive)) {
    ISOLA_CHECK(remove_tree(folder + "/memory"));
    ISOLA_CHECK(read_archive(folder, *file, folder));
    ISOLA_CHECK(sync_all(folder));
    Image plain = image;
    plain.archives.clear();
    ISOLA_CHECK(store.verify(plain, false));
  }
  if (const auto* file = archive(image, kLayerArchive)) {
    const std::string& layer = image.layers.front();
    ISOLA_TRY(std::string path, layers.path(layer));
    ISOLA_CHECK(read_archive(folder, *file, path));
    // Which folder lies below it is told anew by the next mount: it may be another copy.
    if (::lremovexattr((path + "/upper").c_str(), "trusted.overlay.origin") < 0 && errno != ENODATA)
      return sys_error("cannot lay the files of the image over others");
    ISOLA_CHECK(layers.resize(layer, {.bytes = std::max(image.limits.disk, kSmallestLayer)}));
    ISOLA_CHECK(layers.sync(layer));
  }
  image.archives.clear();
  ISOLA_CHECK(store.change(image));
  tidy(store, image);
  return image;
}

void tidy(const ImageStore& store, const Image& image) {
  const std::string folder = folder_of(store, image);
  for (const char* name : {kLayerArchive, kMemoryArchive})
    if (!archive(image, name)) ::unlink((folder + "/" + name).c_str());
  if (archive(image, kMemoryArchive)) (void)remove_tree(folder + "/memory");
  (void)remove_tree(folder + "/" + kTrial);
}

}  // namespace isola::image
