#include "boundary/gvisor/runsc.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "base/fd.h"
#include "kernel/process.h"

namespace isola::boundary::gvisor {

namespace {

// Before this, `ls` of /proc and /dev fails inside, and there is no systrap.
constexpr int kOldestGood = 20230801;
constexpr size_t kMostOutput = 256 << 10;
constexpr auto kPatience = std::chrono::seconds(10);

// "0.0~20240729.0" or "release-20240729.0": the day it was made; 0: not to be seen.
int day_of(const std::string& version) {
  for (size_t at = 0; at + 8 <= version.size(); ++at) {
    std::string digits = version.substr(at, 8);
    if (digits.find_first_not_of("0123456789") == std::string::npos && digits.starts_with("20"))
      return std::atoi(digits.c_str());
  }
  return 0;
}

// What a program prints, on either output.
Result<std::string> output_of(const std::string& program, const std::string& argument) {
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  ISOLA_TRY(auto child, kernel::spawn(0, [&] {
              std::string name = program, word = argument;
              char* const argv[] = {name.data(), word.data(), nullptr};
              char* const env[] = {nullptr};
              if (::dup2(pipe.second.get(), 1) < 0 || ::dup2(pipe.second.get(), 2) < 0) return 1;
              ::execve(name.c_str(), argv, env);
              return 127;
            }));
  pipe.second.reset();
  std::string text;
  char buffer[8192];
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  bool over = false;
  while (!over && text.size() < kMostOutput) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ready{pipe.first.get(), POLLIN, 0};
    int n = left.count() > 0 ? ::poll(&ready, 1, static_cast<int>(left.count())) : 0;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    ssize_t got = ::read(pipe.first.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
    over = got <= 0;
  }
  pipe.first.reset();
  ::kill(child.pid, SIGKILL);  // of no use to anybody any more, if it still is there
  kernel::wait_for(child.pid);
  if (!over && text.size() < kMostOutput) return fail(Code::timeout, program + " " + argument + " does not end");
  return text;
}

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
  return words;
}

std::string Runsc::concern() const {
  int day = day_of(version);
  if (day == 0 || day >= kOldestGood) return "";
  return "runsc " + version +
         " is old: slower (ptrace), with system calls that are not right; 20230801 or newer is "
         "better (Debian 12 has one in its backports)";
}

}  // namespace isola::boundary::gvisor
