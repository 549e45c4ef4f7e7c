// Starts one program: CLONE_VM|CLONE_VFORK and exec, so that the cost does not depend on the size of anything.
//
// The child shares our memory until it execs: it runs on a stack of its own, makes only system calls, and writes to
// nothing but the Spawn it was given. Everything that needs memory (argv, env, the list of paths to try) is made
// before.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "guest/agent/users.h"
#include "guest/messages.h"

namespace isola::guest {

struct Stdio {
  int in = -1, out = -1, err = -1;  // fds ≥ 3; -1 = closed
  bool pty = false;                 // in = out = err = the terminal, which becomes the controlling one
};

// `defaults` are further "NAME=value", stronger than ours and weaker than Start::env.
Result<pid_t> spawn(const Start& start, const User& user, const std::vector<std::string>& defaults, const Stdio& stdio);

// Raises what children inherit above our own score, so that the kernel takes them before pid 1. Reads our score once.
void prepare_oom_score();

}  // namespace isola::guest
