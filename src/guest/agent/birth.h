// The first moments of a kernel of the sandbox's own (user-mode Linux): this program is in the archive that the kernel
// unpacks first, as its /init, and becomes the guest when the sandbox around it is as programs expect it.
//
//   auto born = come_to_life();   // disks, root, network, limits; then the guest begins on born->line
//
// What it is given: two disks (/dev/ubda the image, read-only; /dev/ubdb the sandbox's own, an ext4 that it makes as
// large as the disk), two network devices (vec0 the sandbox's, vec1 the link), and words on the kernel's command line
// that arrive in its environment (ISOLA_ID, ISOLA_PROCESSES, ISOLA_FILES). There is nothing of the host besides.
#pragma once

#include <string>

#include "base/error.h"
#include "base/fd.h"

namespace isola::guest {

inline constexpr char kFirstProgram[] = "/init";

struct Born {
  std::string id;
  Fd line;  // for PacketLine
};
Result<Born> come_to_life();

// Part of it: the devices (birth_network.cc). The link's stays in a network namespace that nobody else is in; the
// sandbox's, called eth0, is in the one that the caller has afterwards.
Result<Fd> open_line();
Result<void> set_up_network();

}  // namespace isola::guest
