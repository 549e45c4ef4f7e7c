// The counter-proof: a hostile program that can never succeed proves nothing. Here each one runs *without* the jail: as
// the machine's real root, all capabilities, no filter, no user namespace; only in throw-away mount, pid, net, ipc, uts
// and cgroup namespaces and a control group of its own, so that it cannot harm the machine. There it must succeed.
//
//   ControlRun run = run_control(*find_program("mount-tmpfs"), "/path/to/isola-hostile");
//   run.exit_code == 0, run.output == "BREACH mount-tmpfs: …"
//
// What it stands on: a folder with a secret (the canary) outside of the program's root, which is a private tmpfs
// entered by a mere chroot; a process 1 that keeps the host's root and is as naive as can be: it does not hide its
// memory, collects no orphans, believes si_pid, reads files by their names. See the kControl… flags for what else can
// be asked.
#pragma once

#include <string>

#include "base/error.h"
#include "program.h"

namespace isola::hostile {

struct ControlRun {
  int exit_code = -1;  // of the hostile program; 128 + signal when one ended it
  std::string output;  // its stdout and stderr, the first 64 KiB
  bool timed_out = false;
  bool secret_seen = false;  // the canary's secret was in the output
};

// `binary` is isola-hostile on this machine. Needs root.
Result<ControlRun> run_control(const Program& program, const std::string& binary);

}  // namespace isola::hostile
