// What stands around a control run: services, objects of others, victims. See the kControl… flags in program.h.
#pragma once

#include <string>
#include <vector>

#include "program.h"

namespace isola::hostile {

struct Stage {
  std::string top, root, shared, canary, secret;  // folders of this run; the program's root is a tmpfs at `root`
  std::vector<std::string> variables;             // the program's environment
  int host_root = -1;
};

// Leaves the control with a sentence: the parent reads it as output with exit code 99.
[[noreturn]] void give_up(const char* what);
void must(bool worked, const char* what);

// Inside all namespaces but the pid namespace: the host's services. Failures end the process with code 99.
void prepare_outside(const Program& program, Stage& stage);
// In process 1: victims, objects of others, signal handlers.
void prepare_fixtures(const Program& program, Stage& stage);
// One careless read of the race path, by name, from the host's root; leaves the witness when it got the secret.
void naive_read(const Stage& stage);

}  // namespace isola::hostile
