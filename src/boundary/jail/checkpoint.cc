#include "boundary/jail/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>
#include <vector>

#include "base/codec.h"
#include "base/file.h"
#include "boundary/jail/criu_rpc.h"
#include "boundary/jail/external_mounts.h"
#include "boundary/jail/stage.h"
#include "boundary/network.h"
#include "boundary/program_output.h"
#include "boundary/versions.h"
#include "kernel/helper.h"
#include "kernel/process.h"
#include "kernel/seccomp_digest.h"

namespace isola::boundary::jail {

namespace {

using kernel::Helper;

constexpr char kServant = 'S';

std::string folder_of_this_program() {
  char self[4096];
  ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  std::string path(self, n > 0 ? static_cast<size_t>(n) : 0);
  return path.substr(0, path.rfind('/') + 1);
}

Result<std::string> version_of(const std::string& program) {
  ISOLA_TRY(std::string text, output_of(program, "--version"));
  std::string version = version_in(text);
  if (version.empty()) return fail(Code::unsupported, program + " does not say which version it is");
  return version;
}

Result<std::string> cpu_flags() {
  ISOLA_TRY(std::string text, read_file("/proc/cpuinfo"));
  for (std::string_view label : {"\nflags", "\nFeatures"}) {
    size_t at = text.find(label);
    if (at == std::string::npos) continue;
    at = text.find(':', at) + 1;
    std::istringstream words(text.substr(at, text.find('\n', at) - at));
    std::set<std::string> flags;
    for (std::string word; words >> word;) flags.insert(word);
    std::string all;
    for (const auto& flag : flags) all += (all.empty() ? "" : " ") + flag;
    return all;
  }
  return fail(Code::unsupported, "this machine does not say what its processor can do");
}

class JailCheckpointing : public Checkpointing {
 public:
  explicit JailCheckpointing(Helper helper) : helper_(std::move(helper)), watch_(latency_) {}
  int fd() const override { return helper_.fd(); }
  pid_t pid() const override { return helper_.pid(); }
  const std::string& result() const override { return result_; }
  const Latency& latency() const override { return latency_; }

  Result<bool> advance() override {
    auto said = helper_.next();
    if (!said) {
      // Where the helper was killed, criu and its own helpers are nobody's, and what they hold of the sandbox would
      // stand in the way of its end. Where it failed by itself they are gone already.
      if (servant_ && said.error().code == Code::unavailable) kernel::kill_group(servant_pid_, servant_.get());
      return std::unexpected(said.error());
    }
    auto& word = *said;
    if (word.kind == kServant) {  // the helper waits: the number is criu's, still
      Reader in(word.bytes);
      servant_pid_ = in.i32();
      if (!in.done() || servant_pid_ <= 1) return fail(Code::corrupt, "a checkpoint named no process");
      ISOLA_TRY(servant_, kernel::open_pidfd(servant_pid_));
      ISOLA_CHECK(helper_.answer(true));
      return false;
    }
    if (word.kind == kAtRest) {
      watch_.lap(Step::dump);
      ISOLA_CHECK(helper_.answer(true));
      return false;
    }
    if (word.kind != Helper::kDone) return fail(Code::internal, "unexpected word from a checkpoint");
    result_ = std::move(word.bytes);
    return true;
  }

 private:
  Helper helper_;
  pid_t servant_pid_ = 0;  // criu
  Fd servant_;
  std::string result_;
  Latency latency_;
  Stopwatch watch_;
};

// Where nothing can be written any more, criu's own log may be cut off before it says so, or lack just those lines: it
// goes on once others have given room back (an image beside it that failed as well). criu writes large pieces, so a
// disk on which one has no room any more can have some megabytes left.
std::string full_disk(const Fd& folder, const std::string& log) {
  struct statvfs disk{};
  bool full = ::fstatvfs(folder.get(), &disk) == 0 && uint64_t{disk.f_bavail} * disk.f_frsize < (16 << 20);
  if (full) return ": No space left on device";
  return lost_words(log) ? ": its log could not be written, the disk is full or was until now" : "";
}

// Are there TCP connections, be it half of one? What only listens sends nothing.
Result<bool> has_tcp(pid_t pid) {
  constexpr std::string_view kListens = "0A";
  for (const char* table : {"tcp", "tcp6"}) {
    auto text = read_file(fmt::format("/proc/{}/net/{}", pid, table));
    if (!text && text.error().code == Code::not_found) continue;  // a kernel without IPv6
    if (!text) return std::unexpected(text.error());
    std::istringstream lines(*text);
    std::string line, slot, local, remote, state;
    std::getline(lines, line);  // the names of the columns
    while (std::getline(lines, line))
      if (std::istringstream(line) >> slot >> local >> remote >> state && state != kListens) return true;
  }
  return false;
}

// What holds them, if there are any.
Result<std::vector<kernel::NetlinkSocket>> hold_connections(pid_t pid) {
  std::vector<kernel::NetlinkSocket> held;
  ISOLA_TRY(const bool any, has_tcp(pid));
  if (!any) return held;
  ISOLA_TRY(Fd netns, kernel::open_namespace(pid, "net"));
  ISOLA_TRY(auto holder, hold_inner_connections(netns.get()));
  held.push_back(std::move(holder));
  return held;
}

Result<std::string> save(Helper::Talk& talk, const Criu& criu, const std::vector<MountRule>& mounts, pid_t pid,
                         const CheckpointSpec& spec) {
  Result<std::string> kept;
  auto at_rest = [&]() -> Result<void> {
    // A launcher that died meanwhile will not know of this checkpoint: then it must not be.
    ISOLA_CHECK(talk.ask(kAtRest, ""));
    kept = spec.at_rest();
    if (!kept) return std::unexpected(kept.error());
    return {};
  };
  if (!spec.memory) {
    ISOLA_CHECK(at_rest());
    return kept;
  }
  Fd folder(::open(spec.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return sys_error("cannot open " + spec.folder);
  ISOLA_CHECK(criu::enter_criu_world(kCriuRun));
  ISOLA_TRY(auto servant, criu::Servant::start({criu.program, criu.preload}, {}));
  Writer name;
  name.i32(servant.pid());
  ISOLA_CHECK(talk.ask(kServant, name.take()));
  ISOLA_TRY(auto held, hold_connections(pid));  // until this helper ends, however it does
  if (spec.begun) spec.begun();
  criu::Hooks hooks;
  hooks.on_notify = [&](const std::string& point, pid_t) -> Result<void> {
    return point == "post-dump" ? at_rest() : Result<void>{};
  };
  criu::Options options{
      .images = folder.get(),
      .external = criu::external_for_dump(mounts),
      .ghost_limit = static_cast<uint32_t>(std::min<uint64_t>(spec.largest_deleted_file, INT32_MAX)),
  };
  auto dumped = servant.dump(options, pid, spec.keep_running, hooks);
  if (!kept) return kept;  // what criu says then is only that we refused
  if (!dumped) {
    std::string log = read_file_at(folder.get(), "dump.log").value_or("");
    return std::unexpected(
        dumped.error().in("the memory of the sandbox cannot be saved" + full_disk(folder, log) + reasons_of(log)));
  }
  return kept;
}

}  // namespace

Criu Criu::find() {
  Criu criu;
  if (const char* named = ::getenv("ISOLA_CRIU"); named && *named) {
    criu.program = named;
  } else {
    for (const char* path : {"/var/cache/isola/tools/criu", "/usr/sbin/criu", "/usr/bin/criu", "/usr/local/sbin/criu"})
      if (criu.program.empty() && ::access(path, X_OK) == 0) criu.program = path;
  }
  std::string preload = folder_of_this_program() + kPreload;
  if (::access(preload.c_str(), R_OK) == 0) criu.preload = preload;
  return criu;
}

Result<MemoryHost> memory_host(const Criu& criu) {
  if (criu.program.empty() || ::access(criu.program.c_str(), X_OK) < 0)
    return fail(Code::unsupported,
                "there is no criu on this machine, so the memory of a sandbox cannot be kept (its files can); "
                "`./dev criu` provides one, ISOLA_CRIU names another");
  // Before anything is paused: what could not be resumed would be lost.
  if (criu.preload.empty())
    return fail(Code::unsupported, std::string(Criu::kPreload) +
                                       " is not beside this program, and nothing that criu restores without it passes "
                                       "the checks: so the memory of a sandbox cannot be kept (its files can)");
  ISOLA_TRY(MemoryHost host, memory_of_this_machine());
  ISOLA_TRY(std::string version, version_of(criu.program));
  host.checkpointer = "criu " + version;
  return host;
}

Result<MemoryHost> memory_of_this_machine() {
  MemoryHost host;
  utsname names{};
  if (::uname(&names) < 0) return sys_error("cannot ask for the kernel's release");
  host.kernel = names.release;
  ISOLA_TRY(host.cpu, cpu_flags());
  // On the stage, which is the working folder.
  ISOLA_TRY(std::string guest, read_file(std::string(".") + kGuestProgram, 64 << 20));
  host.guest = kernel::sha256_hex(guest);
  return host;
}

std::unique_ptr<Checkpointing> watch_checkpoint(Helper helper) {
  return std::make_unique<JailCheckpointing>(std::move(helper));
}

namespace {

// "(00.012345) Error (criu/files.c:12): what": the place says nothing to a reader.
std::vector<std::string> errors_in(const std::string& log) {
  std::vector<std::string> errors;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    size_t at = line.find("Error");
    if (at == std::string::npos) continue;
    size_t colon = line.find("): ", at);
    errors.push_back(colon == std::string::npos ? line.substr(at) : line.substr(colon + 3));
  }
  return errors;
}

}  // namespace

bool lost_words(const std::string& log) {
  // A criu that was killed says nothing about an error; one that failed has said why before this, its last word.
  auto errors = errors_in(log);
  bool only_last = std::ranges::all_of(errors, [](const std::string& error) { return error == "Dumping FAILED."; });
  return log.empty() || (!errors.empty() && only_last);
}

std::string reasons_of(const std::string& log) {
  std::string all;
  for (const auto& error : errors_in(log))
    if (all.size() <= 1000) all += "; " + error;
  return all.empty() ? "" : " (" + all.substr(2) + ")";
}

Result<std::unique_ptr<Checkpointing>> begin_checkpoint(const Criu& criu, const std::vector<MountRule>& mounts,
                                                        pid_t pid, CheckpointSpec spec) {
  // Never killed with the launcher, and never on a timer: a criu that dies in the middle can take the sandbox along.
  ISOLA_TRY(auto helper,
            Helper::start({.name = "isola-keeper", .capabilities = kernel::kAllButMachine, .keep = spec.keep},
                          [&](Helper::Talk& talk) { return save(talk, criu, mounts, pid, spec); }));
  return watch_checkpoint(std::move(helper));
}

}  // namespace isola::boundary::jail
