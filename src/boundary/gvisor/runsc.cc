#include "boundary/gvisor/runsc.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "boundary/program_output.h"
#include "boundary/versions.h"

namespace isola::boundary::gvisor {

namespace {

// The oldest one that is known to let a sandbox go on after a checkpoint: one that failed, too. Before, a sandbox that
// holds a deleted file open, or a connection, ends with the attempt.
constexpr int kOldestForMemory = 20240729;

std::string look_for() {
  if (const char* named = ::getenv("ISOLA_RUNSC"); named && *named) return named;
  for (const char* path : {"/var/cache/isola/tools/runsc", "/usr/local/bin/runsc", "/usr/bin/runsc"})
    if (::access(path, X_OK) == 0) return path;
  return "";
}

}  // namespace

Result<Runsc> parse_runsc(const std::string& version_text, const std::string& flags_text) {
  constexpr std::string_view kBefore = "runsc version ";
  Runsc runsc;
  size_t at = version_text.find(kBefore);
  if (at == std::string::npos) return fail(Code::unsupported, "that is no runsc: it does not tell its version");
  at += kBefore.size();
  runsc.version = version_text.substr(at, version_text.find_first_of(" \r\n", at) - at);
  // "specifies which platform to use: systrap (default), ptrace, kvm."
  constexpr std::string_view kChoice = "which platform to use:";
  size_t choice = flags_text.find(kChoice);
  std::string words =
      choice == std::string::npos ? "" : flags_text.substr(choice, flags_text.find('\n', choice) - choice);
  for (const char* platform : {"ptrace", "systrap"})
    if (words.find(platform) != std::string::npos) runsc.platform = platform;
  if (runsc.platform.empty()) return fail(Code::unsupported, "this runsc has neither the platform systrap nor ptrace");
  runsc.has_directfs = flags_text.find("-directfs") != std::string::npos;
  runsc.has_overlay2 = flags_text.find("-overlay2") != std::string::npos;
  runsc.cuts_connections = flags_text.find("-net-disconnect-ok") != std::string::npos;
  return runsc;
}

Result<Runsc> Runsc::find() {
  std::string path = look_for();
  if (path.empty() || path == "none")
    return fail(Code::not_found,
                "runsc is not installed (`./dev up --boundary gvisor` installs it; ISOLA_RUNSC names another)");
  std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), ::free);
  if (!real || ::access(real.get(), X_OK) < 0) return sys_error("cannot use " + path);
  ISOLA_TRY(std::string version, output_of(real.get(), "--version"));
  ISOLA_TRY(std::string flags, output_of(real.get(), "flags"));
  auto runsc = parse_runsc(version, flags);
  if (!runsc) return std::unexpected(runsc.error().in(path));
  runsc->program = real.get();
  return runsc;
}

std::vector<std::string> Runsc::flags(const std::string& state_folder) const {
  // Limits are those of the group that it is in. It takes over the cable's end that it finds in its network namespace.
  std::vector<std::string> words = {"--root=" + state_folder, "--ignore-cgroups", "--network=sandbox",
                                    "--platform=" + platform};
  // Files are opened by its helper (gofer), not by the process that runs the guest's system calls.
  if (has_directfs) words.push_back("--directfs=false");
  // Writes go to the sandbox's layer, where they are limited and kept, and not to a file beside it.
  if (has_overlay2) words.push_back("--overlay2=none");
  if (cuts_connections) words.push_back("--net-disconnect-ok=true");
  return words;
}

Result<void> Runsc::keeps_memory() const {
  const int day = std::atoi(std::string(day_in(version)).c_str());  // 0: not to be seen
  if (cuts_connections && (day == 0 || day >= kOldestForMemory)) return {};
  return fail(
      Code::unsupported,
      fmt::format("runsc {} cannot keep the memory of a sandbox (its files can be kept): it ends a sandbox whose "
                  "checkpoint fails; {} or newer does not (Debian 12 has one in its backports)",
                  version, kOldestForMemory));
}

std::string Runsc::concern() const { return known_concern(Program::runsc, version); }

}  // namespace isola::boundary::gvisor
