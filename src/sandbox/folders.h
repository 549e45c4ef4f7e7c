// Folders that are kept as they were: volumes that are filled once, and only read from then on.
#pragma once

#include "store/records.h"

namespace isola::sandbox {

inline constexpr const char* kFolderLabel = "isola.folder";  // where it came from

inline bool is_kept_folder(const store::VolumeRecord& volume) { return volume.labels.contains(kFolderLabel); }

}  // namespace isola::sandbox
