// Other runtimes, each with a configuration that gives about what a jail gives: all namespaces with a user namespace,
// the same system calls allowed, limits for memory, processor and processes, the same root file system.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "bench/program.h"
#include "bench/stage.h"

namespace isola::bench {

struct Peer {
  std::string name;  // "crun run"
  Program program;
  Fd filter;  // what program.extra refers to
};

// The configuration of an OCI bundle that runs this on that root.
std::string oci_config(const std::string& root, const std::vector<std::string>& argv);

// Those that are installed and work here; a note in the report for each that does not.
Result<std::vector<Peer>> make_peers(Stage& stage);

}  // namespace isola::bench
