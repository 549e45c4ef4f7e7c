// How QEMU is called: a machine of the type microvm with two disks, a serial line, a network device and nothing else
// that a guest could talk to. No firmware menus, no graphics, no USB, no PCI, nothing that listens.
//
//   /engine/      QEMU and its libraries      /image   the template's blob, read-only
//   /kernel       the guest's                 /disk    the sandbox's own files: an ext4 in a file of its layer
//   /initrd       isola-guest as /init        /memory  of one that is restored: the image's memory and state
//
// The descriptors 3 to 8 are the relay's to hand over (guest/agent/machine_ends.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "boundary/boundary.h"
#include "boundary/microvm/machine.h"

namespace isola::boundary::microvm {

// In the box.
inline constexpr char kEngine[] = "engine", kKernel[] = "kernel", kInitrd[] = "initrd", kImage[] = "image",
                      kDisk[] = "disk", kMemory[] = "memory";
// Of an image, in its folder.
inline constexpr char kRamFile[] = "ram.img", kStateFile[] = "state.img", kShapeFile[] = "machine.img";

// With less, the guest's kernel does not come up beside QEMU.
inline constexpr uint64_t kLeastMemory = 192 << 20;
// QEMU's own threads and the relay. A process inside is none of the host's.
inline constexpr uint32_t kLeastProcesses = 48;

// How much of a sandbox's memory is its kernel's to give out; the rest is what QEMU itself needs. Whole MiB.
uint64_t guest_memory(uint64_t limit);

// What a machine is and stays, whatever limits it is restored with.
struct Shape {
  uint64_t memory = 0;  // bytes
  unsigned processors = 0;
  bool operator==(const Shape&) const = default;
};
Shape shape_for(const Limits& limits);
// As it is written down in an image.
std::string describe(const Shape& shape);
Result<Shape> parse_shape(const std::string& text);

// The program with its arguments, as the box has it.
std::vector<std::string> command_line(const Machine& machine, const Shape& shape, const LaunchSpec& spec, bool ipv6);

// The same outside of a box, for a machine that switches itself off as soon as it has come up, with this code.
inline constexpr int kProbeCode = 43;  // (the device makes 2n + 1 of the n that it is told)
std::vector<std::string> probe_line(const Machine& machine, const std::string& archive);

}  // namespace isola::boundary::microvm
