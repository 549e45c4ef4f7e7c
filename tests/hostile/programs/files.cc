// Reading the host's files by every road that does not need a mount or a device.
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

const std::string kUp = "../../../../../../../../../../../../../../../..";

std::string link_of(const std::string& path) {
  char target[PATH_MAX] = {};
  return ::readlink(path.c_str(), target, sizeof target - 1) < 0 ? "" : target;
}

Outcome plain_path(const Args&) {
  Attempts attempts;
  if (canary_file().empty()) return untried("ISOLA_CANARY_FILE is not set");
  read_host_file(attempts, canary_file());
  read_host_file(attempts, "/" + kUp + canary_file());
  read_host_file(attempts, "/proc/self/root" + canary_file());
  read_host_file(attempts, "/proc/thread-self/root" + canary_file());
  return attempts.outcome();
}

Outcome via_init_root(const Args&) {
  Attempts attempts;
  if (canary_file().empty()) return untried("ISOLA_CANARY_FILE is not set");
  read_host_file(attempts, "/proc/1/root" + canary_file());
  read_host_file(attempts, "/proc/1/task/1/root" + canary_file());
  return attempts.outcome();
}

Outcome via_any_root(const Args&) {
  Attempts attempts;
  if (canary_file().empty()) return untried("ISOLA_CANARY_FILE is not set");
  for (int pid : all_pids()) {
    if (read_host_file(attempts, fmt::format("/proc/{}/root{}", pid, canary_file()))) break;
  }
  return attempts.outcome();
}

Outcome via_any_cwd(const Args&) {
  Attempts attempts;
  if (canary_file().empty()) return untried("ISOLA_CANARY_FILE is not set");
  for (int pid : all_pids()) {
    if (read_host_file(attempts, fmt::format("/proc/{}/cwd/{}{}", pid, kUp, canary_file()))) break;
  }
  return attempts.outcome();
}

Outcome via_any_fd(const Args&) {
  Attempts attempts;
  if (canary_file().empty()) return untried("ISOLA_CANARY_FILE is not set");
  for (int pid : all_pids()) {
    std::string folder = fmt::format("/proc/{}/fd", pid);
    DIR* dir = ::opendir(folder.c_str());
    if (!dir) {
      attempts.add("list " + folder, -1);
      continue;
    }
    while (dirent* entry = ::readdir(dir)) {
      std::string link = folder + "/" + entry->d_name;
      struct stat status{};
      if (entry->d_name[0] == '.' || ::stat(link.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) continue;
      read_host_file(attempts, link + "/" + kUp + canary_file());
    }
    ::closedir(dir);
  }
  return attempts.outcome();
}

// Every descriptor above 2 that was inherited is one too many; a folder among them is a door.
Outcome leaked_fds(const Args&) {
  Attempts attempts;
  for (int fd = 3; fd < 4096; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) continue;
    std::string where = link_of(fmt::format("/proc/self/fd/{}", fd));
    attempts.worked(fmt::format("fd {} was inherited: {}", fd, where));
    if (!canary_file().empty()) {
      Attempts inner;
      read_host_file(inner, fmt::format("/proc/self/fd/{}/{}{}", fd, kUp, canary_file()));
    }
  }
  if (!attempts.any_worked()) return contained("no descriptor above 2 was inherited");
  return attempts.outcome();
}

// CVE-2024-21626: a cwd that lies outside of the root, or that can be put there through a leaked descriptor.
Outcome cwd_outside(const Args&) {
  Attempts attempts;
  char here[PATH_MAX] = {};
  if (!::getcwd(here, sizeof here)) {
    attempts.add("getcwd", -1);
  } else if (here[0] != '/') {
    attempts.worked(fmt::format("the cwd is outside: {}", here));
  } else {
    attempts.refused("cwd", here);
  }
  for (int fd = 3; fd < 64; ++fd) {
    std::string door = fmt::format("/proc/self/fd/{}", fd);
    if (::chdir(door.c_str()) == 0 && !::getcwd(here, sizeof here)) attempts.worked("chdir " + door);
  }
  if (!canary_file().empty()) read_host_file(attempts, kUp.substr(0) + canary_file());
  return attempts.outcome();
}

// The classic: a second chroot leaves the cwd above the root, and .. then climbs to the real one.
Outcome double_chroot(const Args&) {
  if (canary_file().empty()) return untried("ISOLA_CANARY_FILE is not set");
  std::string cell = work_dir() + "/isola-chroot";
  ::mkdir(cell.c_str(), 0755);
  if (::chroot(cell.c_str()) != 0) return judge("chroot", -1);
  for (int i = 0; i < 64; ++i) {
    if (::chdir("..") != 0) break;
  }
  if (::chroot(".") != 0) return judge("chroot back", -1);
  Attempts attempts;
  read_host_file(attempts, canary_file());
  return attempts.outcome();
}

// "shocker": a file handle names an inode past every root; 2 is the root folder of ext4, 128 and 256 of XFS and btrfs.
Outcome open_by_handle(const Args&) {
  Attempts attempts;
  for (const char* door : {"/", "/isola-hostile", "/etc", "/etc/resolv.conf", "/tmp", "/proc/self/exe"}) {
    int at = ::open(door, O_RDONLY | O_CLOEXEC);
    if (at < 0) continue;
    for (unsigned inode : {2u, 128u, 256u}) {
      alignas(file_handle) unsigned char space[sizeof(file_handle) + 8] = {};
      auto* handle = reinterpret_cast<file_handle*>(space);
      handle->handle_bytes = 8;
      handle->handle_type = 1;  // FILEID_INO32_GEN
      ::memcpy(handle->f_handle, &inode, sizeof inode);
      int fd = ::open_by_handle_at(at, handle, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (fd < 0) {
        attempts.add(fmt::format("open_by_handle_at {} inode {}", door, inode), -1);
        continue;
      }
      attempts.worked(fmt::format("inode {} behind {}", inode, door));
      if (!canary_file().empty()) {
        Attempts inner;
        read_host_file(inner, fmt::format("/proc/self/fd/{}{}", fd, canary_file()));
      }
      ::close(fd);
    }
    ::close(at);
  }
  return attempts.outcome();
}

// A handle that the kernel itself gave out, opened again: the road of open-by-handle without a guess in it.
Outcome reopen_handle(const Args&) {
  alignas(file_handle) unsigned char space[sizeof(file_handle) + MAX_HANDLE_SZ] = {};
  auto* handle = reinterpret_cast<file_handle*>(space);
  handle->handle_bytes = MAX_HANDLE_SZ;
  int mount_id = 0;
  int named = ::name_to_handle_at(AT_FDCWD, "/", handle, &mount_id, 0);
  if (named != 0) return judge("name_to_handle_at", -1);
  int at = ::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return judge("open_by_handle_at", ::open_by_handle_at(at, handle, O_RDONLY | O_CLOEXEC));
}

// The writable layer of an overlay must not be reachable beside the overlay itself.
Outcome overlay_upper(const Args&) {
  auto info = slurp("/proc/self/mountinfo");
  if (!info) return contained("mountinfo: " + errno_name(errno));
  Attempts attempts;
  bool seen = false;
  for (std::string_view key : {"upperdir=", "workdir=", "lowerdir="}) {
    for (size_t at = info->find(key); at != std::string::npos; at = info->find(key, at + 1)) {
      size_t from = at + key.size();
      std::string path = info->substr(from, info->find_first_of(",: \n", from) - from);
      seen = true;
      attempts.add("open " + path, ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    }
  }
  return seen ? attempts.outcome() : contained("mountinfo names no layer");
}

constexpr Program kFilePrograms[] = {
    {"host-file-plain", "host-files", "reads the host's canary by its plain path and with many ..",
     "no such file inside", plain_path, Expect::contained, 0, "",
     "a root folder of its own is all that stands against it: there is nothing to switch off"},
    {"host-file-init-root", "host-files", "reads the canary through /proc/1/root",
     "EACCES, or process 1 has the same root", via_init_root},
    {"host-file-any-root", "host-files", "reads the canary through the root link of every visible process",
     "same root everywhere", via_any_root},
    {"host-file-any-cwd", "host-files", "reads the canary through the cwd link of every visible process and ..",
     "same root everywhere", via_any_cwd},
    {"host-file-any-fd", "host-files", "reads the canary through any folder that any visible process holds open",
     "no process holds an outside folder", via_any_fd, Expect::contained, kControlLeakedFd},
    {"leaked-fds", "host-files", "looks for inherited descriptors above 2", "none", leaked_fds, Expect::contained,
     kControlLeakedFd | kRunsBare},
    {"cwd-outside", "host-files", "checks that the cwd is inside the root and cannot be put outside (CVE-2024-21626)",
     "cwd is inside", cwd_outside, Expect::contained, kControlCwdOutside | kRunsBare},
    {"double-chroot", "host-files", "climbs out by a second chroot and ..", "chroot refused, or / is really the top",
     double_chroot},
    {"open-by-handle", "host-files", "opens the root folder of the filesystem by file handle (shocker)", "EPERM",
     open_by_handle},
    {"reopen-handle", "host-files", "opens a folder by the handle that the kernel gave out for it", "EPERM",
     reopen_handle},
    {"overlay-layers", "host-files", "opens the layers that mountinfo names", "not reachable, or not named",
     overlay_upper, Expect::contained, 0, "",
     "a stand-in would need an overlay whose layers are visible inside; nothing but the path look-up of "
     "host-file-plain is tried"},
};

}  // namespace

Family file_programs() { return kFilePrograms; }

}  // namespace isola::hostile
