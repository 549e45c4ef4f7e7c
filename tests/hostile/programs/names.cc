// Names and paths that break tools: what the host's file calls meet when they list, read and remove such trees.
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

// A path that no call takes whole; left for the runner to list and to remove. A recursive remover overflows here.
Outcome deep_path(const Args& args) {
  long goal = args.number(0, 100000);
  std::string top = work_dir() + "/isola-deep";
  ::mkdir(top.c_str(), 0755);
  int at = ::open(top.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (at < 0) return contained("open: " + errno_name(errno));
  long depth = 0;
  for (; depth < goal; ++depth) {
    if (::mkdirat(at, "d", 0755) != 0) break;
    int next = ::openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (next < 0) break;
    ::close(at);
    at = next;
  }
  int why = errno;
  ::close(at);
  if (args.number(1, 0) && depth == goal) return breach(fmt::format("{} folders deep", depth));
  if (depth < goal) return contained(fmt::format("{} at {} folders deep", errno_name(why), depth));
  return contained(fmt::format("{} is {} folders deep: listing and removing it must work or say no", top, depth));
}

Outcome odd_names(const Args& args) {
  std::string top = work_dir() + "/isola-odd";
  ::mkdir(top.c_str(), 0755);
  int dir = ::open(top.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return contained("open: " + errno_name(errno));
  std::vector<std::string> names = {"line\nbreak",
                                    "tab\tand\rreturn",
                                    "\xff\xfe\x80 not utf-8",
                                    std::string(255, 'x'),
                                    "-rf",
                                    "--",
                                    " ",
                                    "...",
                                    "\\",
                                    "\"'`$(id)",
                                    "%s%n",
                                    "\x1b[31mred",
                                    "\xe2\x80\xae"
                                    "rtl",
                                    "\xc0\xae\xc0\xae",
                                    "con.",
                                    "a\x01"
                                    "b",
                                    "*?[",
                                    "~",
                                    "\xed\xa0\x80"};
  int made = 0;
  for (const std::string& name : names) {
    int fd = ::openat(dir, name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0) ++made;
    if (fd >= 0) ::close(fd);
    // The same as targets of links that lead nowhere and outside.
    if (::symlinkat("/proc/1/root/etc/shadow", dir, (name.substr(0, 250) + ".ln").c_str()) != 0 && errno != EEXIST)
      continue;
  }
  ::close(dir);
  if (args.number(0, 0) && made == static_cast<int>(names.size())) return breach(fmt::format("{} odd names", made));
  return contained(fmt::format("{} holds {} odd names: lists must carry them unharmed", top, made));
}

// Swaps a folder and a link to the canary's folder as fast as it can, while somebody outside uses the path.
Outcome symlink_race(const Args& args) {
  long seconds = args.number(0, 5);
  std::string path = env("ISOLA_RACE_PATH");
  if (path.empty()) path = work_dir() + "/isola-race";
  std::string twin = path + ".twin", canary = canary_file();
  if (canary.empty()) canary = "/etc/passwd";
  std::string folder = canary.substr(0, canary.rfind('/')), name = canary.substr(canary.rfind('/') + 1);
  ::mkdir(path.c_str(), 0755);
  int fd = ::open((path + "/" + name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd >= 0) {
    if (::write(fd, "harmless\n", 9) != 9) return untried("write: " + errno_name(errno));
    ::close(fd);
  }
  if (::symlink(folder.c_str(), twin.c_str()) != 0 && errno != EEXIST) return untried("symlink: " + errno_name(errno));
  std::string witness = env("ISOLA_WITNESS");
  long end = now_ms() + seconds * 1000, swaps = 0;
  while (now_ms() < end) {
    for (int i = 0; i < 200; ++i, ++swaps) {
      if (::syscall(SYS_renameat2, AT_FDCWD, path.c_str(), AT_FDCWD, twin.c_str(), 2 /* RENAME_EXCHANGE */) == 0)
        continue;
      if (errno != EDQUOT && errno != ENOSPC) return contained("rename: " + errno_name(errno));
      ::sync();  // a quota counts what is under way, too: go on when it is on disk
    }
    if (!witness.empty() && ::access(witness.c_str(), F_OK) == 0)
      return breach(fmt::format("the host followed the link after {} swaps", swaps));
  }
  return contained(fmt::format("{} swaps of {}: no host-side call may have followed", swaps, path));
}

// Links in place of files that a host-side write or read might follow.
Outcome planted_links(const Args& args) {
  std::string top = work_dir() + "/isola-links";
  ::mkdir(top.c_str(), 0755);
  std::string canary = canary_file().empty() ? "/etc/shadow" : canary_file();
  int made = 0;
  struct {
    const char* name;
    std::string to;
  } links[] = {{"absolute", canary},
               {"relative", "../../../../../../../../../.." + canary},
               {"magic", "/proc/self/root" + canary},
               {"init", "/proc/1/root" + canary},
               {"loop", "loop"},
               {"cwd", "/proc/self/cwd"},
               {"fd", "/proc/self/fd/3"}};
  for (auto& [name, to] : links) {
    std::string path = top + "/" + name;
    ::unlink(path.c_str());
    made += ::symlink(to.c_str(), path.c_str()) == 0;
  }
  if (args.number(0, 0)) return made == 7 ? breach("7 links were planted") : contained("symlink: " + errno_name(errno));
  return contained(fmt::format("{} holds {} links: file calls on them must not leave the sandbox", top, made));
}

constexpr Program kNamePrograms[] = {
    {"deep-path", "names", "makes folders 100,000 deep", "listing and removing work, or say no", deep_path,
     Expect::killed_by_limit, kSlow | kNeedsDiskLimit | kNeedsMemoryLimit, "5000 1"},
    {"odd-names", "names", "makes files with newlines, bad UTF-8, escapes and dashes as names",
     "lists carry them unharmed", odd_names, Expect::judged_outside, 0, "1"},
    {"planted-links", "names", "plants links to the host's files where file calls will read", "file calls stay inside",
     planted_links, Expect::judged_outside, 0, "1"},
    {"symlink-race", "names", "swaps a folder and a link outwards while file calls use the path (CVE-2026-39861)",
     "file calls stay inside", symlink_race, Expect::judged_outside, kControlWitness | kControlNaiveReader, "10"},
};

}  // namespace

Family name_programs() { return kNamePrograms; }

}  // namespace isola::hostile
