// The host ids of a checkpoint. All ids in criu's image files are those of inside, but for one file, userns-<n>.img,
// which holds the map of the user namespace. So a restore into another range of ids is: a folder of hard links to the
// image, with that one file written anew.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace isola::criu {

// Makes the folder `to`: the checkpoint in `from`, to be restored with ids 0…count-1 as base…base+count-1.
Result<void> link_image(const std::string& from, const std::string& to, uint32_t base, uint32_t count);

}  // namespace isola::criu
