// The files of an image that almost every sandbox opens first, read once by somebody whose memory nobody takes back.
//
//   image::warm_core(point);
//   ISOLA_TRY(uint64_t read, image::warm(point, image::warm_budget()));
//
// The page cache belongs to the control group that read a page first, and a sandbox's group is emptied when it ends:
// without this each sandbox would lose, at its end, what the next one is about to read, and that one would wait for the
// disk. Whatever else a sandbox reads stays its own. It is a cache: memory that runs short takes it back.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace isola::image {

// What a shell needs before it has said anything: a few megabytes, read at once, before the first sandbox can.
void warm_core(const std::string& root);

// A thirty-second of the machine's memory, at most 512 MiB.
uint64_t warm_budget();

// Shells, tools, libraries, interpreters below `root`, smallest first within each folder, until `most` bytes were read.
// What cannot be read is passed over, and so is what is in memory already. Gives the bytes that were read.
Result<uint64_t> warm(const std::string& root, uint64_t most);

}  // namespace isola::image
