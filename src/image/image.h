// An image: what a sandbox can be made from again. A paused sandbox, a snapshot and the parent of forks are all images;
// only who keeps them differs.
//
//   DIR/images/<id>/manifest.json   this, as JSON; written last, so an image without one never was
//   DIR/images/<id>/memory/         the processes and their memory (criu's files), if it has any
//
// Its files are layers of the layer store, named here, uppermost first, over the blob of a template. A layer belongs to
// every image that names it and is removed with the last one (and the last sandbox that uses it).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace isola::image {

inline constexpr int kImageFormat = 3;  // 2: packed ones; 3: outrun ones
inline constexpr uint64_t kChunk = 1 << 20;

// A file of the memory, with what it must still be when it is read: a fast checksum per chunk for every load, and
// SHA-256 for a scrub (empty until it has been computed, soon after the image was made).
struct ImageFile {
  std::string name;
  uint64_t size = 0;
  std::vector<uint64_t> chunks;  // XXH3
  std::string sha256;
  bool operator==(const ImageFile&) const = default;
};

// What its memory was saved by and on. Where these differ, it cannot be restored.
struct ImageHost {
  std::string checkpointer, kernel, cpu, guest;
  bool operator==(const ImageHost&) const = default;
};

// As they were when it was made; what a sandbox made from it may have is up to whoever makes it.
struct ImageLimits {
  uint64_t milli_cpus = 0, memory = 0, disk = 0, io_bytes_per_second = 0;
  uint32_t pids = 0, open_files = 0;
  bool operator==(const ImageLimits&) const = default;
};

struct Image {
  std::string id;
  int64_t created = 0;   // seconds since 1970
  std::string sandbox;   // what it was made of
  std::string verb;      // "pause" or "snapshot"
  std::string parent;    // the image that the sandbox came from; empty: a template
  std::string boundary;  // "jail"
  std::string version;   // of Isola
  std::string digest;    // of the template's blob, which lies below all layers
  std::vector<std::string> layers;
  ImageLimits limits;
  bool roots_own = false;   // of a sandbox that root ran for itself: nobody else's
  std::string protections;  // what was installed, as text (boundary/jail/protections.h)
  bool memory = false;
  std::vector<std::string> volumes;            // with memory: where the sandbox had volumes, sorted
  ImageHost host;                              // with memory
  std::vector<ImageFile> files;                // of the memory
  uint64_t memory_bytes = 0, layer_bytes = 0;  // of the files of the memory; of its uppermost layer
  // Packed, to take little room (packed_image.h): the archives in its folder, with what they must still be. While there
  // are any, what they hold is not where it belongs.
  std::vector<ImageFile> archives;
  // Its programs ran on and wrote to its files, before what was resumed of it failed: memory and files do not belong
  // together any more, and only the files can be used.
  bool outrun = false;
  bool packed() const { return !archives.empty(); }
  bool operator==(const Image&) const = default;
};

// With a checksum of itself.
std::string to_json(const Image& image);
// Code::corrupt for anything that to_json did not write, Code::unsupported for a newer format.
Result<Image> parse_image(std::string_view text);

// Can this machine make a sandbox of it, with its memory? Code::unsupported says in a sentence why not. (Its files can
// always be used.)
Result<void> check_host(const Image& image, const ImageHost& here, std::string_view boundary);

}  // namespace isola::image
