// The commands of `isola`: each takes its options as data and returns the exit code. register.h has what parses.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace isola::cli {

// Exit codes of our own, where the command inside has none to give (the same as env, timeout and docker use).
inline constexpr int kLeaveAfter = 3;  // so many interrupts: the user wants to be gone
inline constexpr int kTimedOut = 124, kFailed = 125, kCannotRun = 126, kNoSuchCommand = 127;
// Nobody reads our output any more: as if the command itself had died of it (128 + SIGPIPE), and as silently.
inline constexpr int kReaderLeft = 141;

struct Common {
  std::string data_dir = "/var/lib/isola";
  std::string cache_dir = "/var/cache/isola";
  bool data_given = false, cache_given = false;  // on the command line
  bool json = false;
  // Of commands that talk to a server (api.h says what stands in for them).
  std::string url, key_file;
};

struct RunOptions {
  std::string template_name;              // empty: base, or the server's default
  std::string boundary;                   // a BoundaryWish; empty: auto
  std::string memory, disk, timeout, io;  // as written; parsed by run()
  std::optional<double> cpus;
  std::optional<uint32_t> pids, open_files;
  std::vector<std::string> env;
  std::string net;                  // as net_choice() reads it; empty: no network
  std::vector<std::string> mounts;  // HOST[:INSIDE]
  std::string cwd, user;
  bool terminal = false;
  bool cold = false;
  bool latency = false;
  bool allow_unquotaed = false;
  std::vector<std::string> command;
};
int run(const Common& common, const RunOptions& options);
// The same through a server, if there is one and nothing was asked for that only the launcher can do.
std::optional<int> run_on_server(const Common& common, const RunOptions& options);

// What a sandbox may reach, and what its programs need to know to get there.
struct NetChoice {
  std::string policy;                        // as text
  std::vector<std::string> env;              // NAME=value
  std::map<std::string, std::string> files;  // path inside → content
};
// none, all, package-registries, @FILE with a policy, or rules separated by ';'.
Result<NetChoice> net_choice(const std::string& text);

int net_show(const Common& common, const std::string& id);
int net_set(const Common& common, const std::string& id, const std::string& text, bool cut);
int net_add(const Common& common, const std::string& id, const std::string& rule, bool cut);  // "allow a.example"
int net_learn(const Common& common, const std::string& id);
int net_watch(const Common& common, const std::string& id);  // empty: all sandboxes

int template_list(const Common& common);
int template_build(const Common& common, const std::vector<std::string>& names, bool again);
// `pull`: `source` is an image by reference, else a folder or a file.
int template_import(const Common& common, const std::string& source, const std::string& name, bool pull);
int template_verify(const Common& common, const std::string& name);
int template_remove(const Common& common, const std::string& name);

int doctor(const Common& common);

struct ProveOptions {
  std::vector<std::string> templates;  // empty: all that are built
  std::vector<std::string> programs;   // empty: all
  std::vector<std::string> births;     // empty: all that can be had here
  std::string boundary = "jail";
  bool verbose = false;
};
int prove(const Common& common, const ProveOptions& options);

int launcher_status(const Common& common);
int launcher_stop(const Common& common, bool end_all);

// "isola: MESSAGE" on standard error; returns kFailed.
int complain(const std::string& message);
// Of a command that ended by SIGKILL which nobody sent from outside.
inline constexpr char kKilledText[] =
    "the command was killed (SIGKILL): by something inside, or because the memory limit was reached";

}  // namespace isola::cli
