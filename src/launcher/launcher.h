// The small privileged process: makes and unmakes boundaries for whoever may ask over DIR/launcher.sock. Single thread,
// small address space, no network, no HTTP, no JSON.
#pragma once

#include <chrono>
#include <string>

#include "base/error.h"

namespace isola::launcher {

struct LauncherOptions {
  std::string data_dir = "/var/lib/isola";
  std::string cache_dir = "/var/cache/isola";
  std::string guest_program;  // empty: isola-guest beside this program
  std::string layer_store;    // empty: the first that works
  // A name or a uid: who, besides root, may ask for sandboxes (a server without privileges). The socket is that user's
  // alone, and the data directory lets others pass to it and nowhere else. Empty: root only.
  std::string user;
  std::string name_servers;        // for the gate, as "192.0.2.53:53"; empty: the host's
  std::string authorities;         // a PEM file: whom the gate trusts upstream beside the machine's own; empty: nobody
  std::chrono::seconds linger{0};  // 0: stays until told to go; else leaves when idle for so long
  bool daemon = false;             // detach, log into DIR/launcher.log
  int ready_fd = -1;               // told "ready\n", or why not, and closed
};

// Runs until it is told to stop (SIGTERM, a shutdown request, or lingering for nothing). Sandboxes that are not
// ephemeral live on and are adopted by the next launcher on the same data directory.
Result<void> run_launcher(const LauncherOptions& options);

}  // namespace isola::launcher
