// What the first process of a jail does to itself between its birth and the guest's first instruction. It reads like a
// checklist; any point that fails ends the launch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "boundary/jail/protections.h"
#include "boundary/state.h"
#include "kernel/cgroup.h"
#include "kernel/seccomp_program.h"

namespace isola::boundary::jail {

// The words of the conversation between the launcher and the unborn jail, over a SOCK_SEQPACKET pair:
//   launcher: kFurnish + fds (root, shown folders; or disks), whenever it has them
//   child:    kFurnished                           the network hand, asked by the child: kNetworked + fds
//   (network_hand.h) launcher: kExec (+ the TAP), when it has heard both child: closes by exec; or kFailed + error at
//   any time, as the hand may say, too
inline constexpr char kFurnish = 'F', kFurnished = 'D', kExec = 'X', kFailed = 'E';

// A box is a jail around an engine (gVisor, user-mode Linux) instead of around the guest: process 1 is the relay
// (guest/agent/relay.h), which starts the engine. This is what it has that a jail has not.
struct Outfit {
  BoundaryKind kind = BoundaryKind::gvisor;
  std::vector<std::string> engine;  // its program, as the box has it, and the arguments
  // How the relay is told to speak with it, and what both find in their environment.
  std::vector<std::string> relay = {"--relay"};
  std::vector<std::string> environment;
  // Its network is a descriptor, which the relay finds as its number 8; else a namespace (MountRule::From::wire).
  bool tapped = false;
  std::string handle;  // CellName's
  // What has to be done before the engine starts and may take a while: in a process of its own, without privileges.
  std::function<Result<void>()> prepare;
  // Put into the root of the box: path, text. A path that ends with a slash is a folder.
  std::vector<std::pair<std::string, std::string>> files;
};

struct Furnishing {
  std::string id;
  const Protections* protections = nullptr;
  const kernel::SeccompProgram* filter = nullptr;
  const kernel::CgroupDoors* cgroup = nullptr;
  int control = -1;                // the child's end of the conversation
  int hand = -1;                   // NetworkHand::socket()
  int link[4] = {};                // guest's fds 3–6: in-read, out-write, in-write, out-read
  const Outfit* outfit = nullptr;  // of a box
  int complaints = -1;             // of a box: what the engine writes when it fails
};

// Runs in the child, as process 1 of the new namespaces. Returns only on failure, with the exit code.
int become_guest(const Furnishing& furnishing);

std::string encode_error(const Error& error);
Error decode_error(std::string_view bytes);

}  // namespace isola::boundary::jail
