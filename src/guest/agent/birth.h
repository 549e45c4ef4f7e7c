// The first moments of a kernel of the sandbox's own (user-mode Linux, a
// virtual machine): this program is in the archive that the kernel
// unpacks first, as its /init, and becomes the guest when the sandbox around it is as programs expect it.
//
//   auto born = come_to_life();   // disks, root, network, limits; then the guest begins on born->line
//
// What it is given: two disks (the image, read-only; and the sandbox's own, an ext4 that it makes as large as the
// disk), a network device, a link, and words on the kernel's command line that arrive in its environment
// (ISOLA_PROCESSES, ISOLA_FILES, and ISOLA_ID where the link does not tell it). There is nothing of the host besides.
//
//                      user-mode Linux                       a virtual machine (ISOLA_MACHINE)
//   disks              /dev/ubda, /dev/ubdb                  those with the serial numbers "image" and "disk"
//   network, link      vec0; vec1, which speaks packets      eth0; a serial line (/dev/vport…)
//   modules            none                                  /modules, loaded in the order of their names
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/fd.h"

namespace isola::guest {

inline constexpr char kFirstProgram[] = "/init";

struct Born {
  std::string id;  // empty: the link tells it
  Fd line;
  bool packets = false;  // it is for PacketLine
};
Result<Born> come_to_life();

// Part of it: the devices (birth_network.cc). The link's stays in a network namespace that nobody else is in; the
// sandbox's, called eth0, is in the one that the caller has afterwards.
Result<Fd> open_line();
Result<void> take_device_apart();  // of user-mode Linux, where the link is a network device, too
Result<void> set_up_network();

// Part of it, in a virtual machine (birth_machine.cc).
Result<void> load_modules();
Result<std::string> disk_with(std::string_view serial);
Result<Fd> open_serial_line();
// Ends a machine that was only started to see whether it comes up.
void say_that_it_works();
// A kernel that was halted looks like one that has nothing to do, and the sandbox would never end.
Result<void> forbid_halting();

}  // namespace isola::guest
