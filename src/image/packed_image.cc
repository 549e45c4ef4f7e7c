#include "image/packed_image.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>

#include "base/hash/sha256.h"
#include "image/chunk_sums.h"
#include "image/spawn.h"
#include "image/tree.h"
#include "kernel/fault.h"

namespace isola::image {

namespace {

std::string folder_of(const ImageStore& store, const Image& image) { return store.root() + "/" + image.id; }

const ImageFile* archive(const Image& image, std::string_view name) {
  auto it = std::ranges::find(image.archives, name, &ImageFile::name);
  return it == image.archives.end() ? nullptr : &*it;
}

// Everything that an overlay's upper folder can hold: owners, attributes of all kinds, device nodes as whiteouts.
const std::vector<std::string> kTar = {"tar", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--sparse"};

Result<ImageFile> write_archive(const std::string& into, const std::string& name, const std::string& folder,
                                const std::string& part) {
  std::string path = into + "/" + name;
  auto argv = kTar;
  argv.insert(argv.end(), {"--use-compress-program=zstd -q -3 -T1", "-C", folder, "-cf", path, part});
  if (int e = kernel::fault::at("pack_image")) return sys_error("cannot pack the image", e);
  ISOLA_CHECK(run({.argv = argv, .what = "cannot pack the image", .contained = true}));
  ISOLA_CHECK(sync_file(path));
  ImageFile file{.name = name};
  struct stat st;
  if (::stat(path.c_str(), &st) < 0) return sys_error("cannot look at " + path);
  file.size = static_cast<uint64_t>(st.st_size);
  ISOLA_TRY(file.sha256, sha256_file(path));
  return file;
}

Result<void> read_archive(const std::string& from, const ImageFile& file, const std::string& folder) {
  std::string path = from + "/" + file.name;
  ISOLA_TRY(std::string sum, sha256_file(path));
  if (sum != file.sha256) return fail(Code::corrupt, path + " is not what was written");
  auto argv = kTar;
  argv.insert(argv.end(), {"--use-compress-program=zstd -q", "--same-owner", "-p", "-C", folder, "-xf", path});
  return run({.argv = argv, .what = "cannot unpack the image", .contained = true});
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

Result<Image> pack(const ImageStore& store, LayerStore& layers, Image image, bool own_layer) {
  if (image.packed()) return image;
  const std::string folder = folder_of(store, image);
  if (image.memory) {
    // Only what is what was written is worth keeping, and says so when it comes back.
    ISOLA_CHECK(store.seal(image.id));
    ISOLA_TRY(image, store.find(image.id));
    ISOLA_TRY(auto file, write_archive(folder, kMemoryArchive, folder, "memory"));
    image.archives.push_back(std::move(file));
  } else if (own_layer && !image.layers.empty()) {
    ISOLA_TRY(std::string layer, layers.path(image.layers.front()));
    ISOLA_TRY(auto file, write_archive(folder, kLayerArchive, layer, "upper"));
    image.archives.push_back(std::move(file));
  } else {
    return fail(Code::unavailable, "others have the files of image " + image.id + ", too: nothing would be saved");
  }
  ISOLA_CHECK(store.commit(image));
  tidy(store, image);
  return image;
}

Result<void> make_layer(LayerStore& layers, const Image& image) {
  if (!has_packed_layer(image)) return {};
  const std::vector<std::string> below(image.layers.begin() + 1, image.layers.end());
  ISOLA_CHECK(layers.create(image.layers.front(), {.bytes = std::max(image.limits.disk, kSmallestLayer)}, below));
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
    ISOLA_CHECK(layers.sync(layer));
  }
  image.archives.clear();
  ISOLA_CHECK(store.commit(image));
  tidy(store, image);
  return image;
}

void tidy(const ImageStore& store, const Image& image) {
  const std::string folder = folder_of(store, image);
  for (const char* name : {kLayerArchive, kMemoryArchive})
    if (!archive(image, name)) ::unlink((folder + "/" + name).c_str());
  if (archive(image, kMemoryArchive)) (void)remove_tree(folder + "/memory");
}

}  // namespace isola::image
