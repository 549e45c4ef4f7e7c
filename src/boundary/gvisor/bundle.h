// What runsc is told: the OCI description of one sandbox, and where its parts are in the box.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "boundary/boundary.h"

namespace isola::boundary::gvisor {

// In the box.
inline constexpr char kBundle[] = "bundle";
inline constexpr char kRootfs[] = "bundle/rootfs";
inline constexpr char kConfig[] = "bundle/config.json";
inline constexpr char kPrograms[] = "guest";  // isola-guest and what goes with it
inline constexpr char kEngine[] = "engine/runsc";
inline constexpr char kWire[] = "wire";
inline constexpr char kState[] = "/run";
inline constexpr char kMeminfo[] = "meminfo";
inline constexpr char kImage[] = "image";  // of one that is restored: what the checkpoint wrote
inline constexpr char kContainer[] = "isola";
std::string shown_at(size_t number);

// In the sandbox.
inline constexpr char kProgramsInside[] = "/dev/.isola";

// config.json. Process 1 is isola-guest, which speaks over standard input and output. Nothing in it names the sandbox:
// what is restored as another one must find the description that it was made with.
std::string describe_bundle(const LaunchSpec& spec, uint64_t capabilities);
// What runsc takes for the machine's /proc/meminfo: it tells the guest how much memory there is.
std::string describe_memory(uint64_t bytes);

}  // namespace isola::boundary::gvisor
