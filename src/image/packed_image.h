// An image that nobody needs soon takes little room: its memory or, where it has none, the files of its uppermost layer
// lie in archives beside the manifest, packed with zstd, and nowhere else.
//
//   ISOLA_TRY(auto trial, make_trial(layers, image));
//   ISOLA_TRY(image, pack(store, layers, std::move(image), true, trial));  // then
//   layers->destroy(image.layers.front()) ISOLA_CHECK(layers->destroy(trial)); ISOLA_CHECK(make_layer(layers, image));
//   ISOLA_TRY(image, unpack(store, layers, std::move(image)));
//
// Before anything goes, what was packed is unpacked once on trial and compared: what would not come back as it was is
// not packed at all. A crash leaves it packed or not: the manifest decides, and what it does not name is removed by
// tidy(). The layer below memory stays as it is: processes have files of it open, and are given them back by their
// numbers.
#pragma once

#include "image/image_store.h"
#include "image/layer_store.h"

namespace isola::image {

inline constexpr const char* kLayerArchive = "layer.tar.zst";
inline constexpr const char* kMemoryArchive = "memory.tar.zst";

// Its uppermost layer is in an archive, and in the layer store no more.
bool has_packed_layer(const Image& image);
// What it takes: the sizes of its archives, or of what is not packed.
uint64_t memory_size(const Image& image);
uint64_t layer_size(const Image& image);

// Where the files of an image are unpacked on trial: a layer that is removed afterwards, whatever came of it. Made by
// the one process that makes layers, unless the image has memory, which needs none.
Result<std::string> make_trial(LayerStore& layers, const Image& image);  // its name: another one each time
// `own_layer`: nobody else has its uppermost layer, so that it can be packed. Code::unsupported: it would not come back
// as it was, and is left as it is.
Result<Image> pack(const ImageStore& store, LayerStore& layers, Image image, bool own_layer, const std::string& trial);
// Where its files are to go, if they are packed: by the one process that makes layers.
Result<void> make_layer(LayerStore& layers, const Image& image);
Result<Image> unpack(const ImageStore& store, LayerStore& layers, Image image);
// Removes archives and memory that a pack or unpack which was cut off left behind.
void tidy(const ImageStore& store, const Image& image);

}  // namespace isola::image
