// The launcher's stage: a small tmpfs in its private mount namespace that holds what all jails share (device nodes, a
// made-up /sys, the guest's program, stand-ins for masked files) and the mount points that a launch needs for a moment.
#pragma once

#include <string>

#include "base/error.h"

namespace isola::boundary::jail {

struct StageOptions {
  std::string folder;         // where it is mounted
  std::string guest_program;  // the host's isola-guest, copied in
  std::string programs;       // the folder with isola-rand.so and isola-openssl.cnf, with a slash; empty: without them
};

// Mounts and fills the stage, then changes the working folder to it: overlay mounts are given relative names, which is
// all that a sandbox can read of them in its mount table. The caller has its own mount namespace already.
Result<void> set_stage(const StageOptions& options);

// Names below the stage.
inline constexpr const char* kGuestProgram = "/dev/.isola-guest";  // as the sandbox sees it
inline constexpr const char* kRestoredDev = "dev.restored";        // mount point: /dev through the ids of one restore
inline constexpr const char* kShown = "shown";      // mount points shown/0…: folders that one restore shows
inline constexpr const char* kBoxPrograms = "box";  // for a guest inside an engine, which has a /dev of its own
inline constexpr const char* kNewRoot = "root";
inline constexpr const char* kUpperPoint = "upper";
inline constexpr const char* kImages = "images";
inline constexpr const char* kCriuRun = "criu.run";  // what criu has for /run

}  // namespace isola::boundary::jail
