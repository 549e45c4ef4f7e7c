#include "image/layer_store_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/ids.h"
#include "image/provider.h"
#include "image/tree.h"

namespace isola::image {

namespace {

#ifndef XFS_SUPER_MAGIC
constexpr uint32_t kXfsMagic = 0x58465342;
#else
constexpr uint32_t kXfsMagic = XFS_SUPER_MAGIC;
#endif

std::string filesystem_name(const std::string& dir) {
  struct statfs s;
  if (::statfs(dir.c_str(), &s) < 0) return "unknown";
  switch (static_cast<uint32_t>(s.f_type)) {
    case EXT4_SUPER_MAGIC: return "ext4";
    case kXfsMagic: return "xfs";
    case BTRFS_SUPER_MAGIC: return "btrfs";
    case TMPFS_MAGIC: return "tmpfs";
    case OVERLAYFS_SUPER_MAGIC: return "overlay";
    default: return fmt::format("{:#x}", static_cast<uint32_t>(s.f_type));
  }
}

std::string advice_for(std::string_view provider, const std::string& filesystem) {
  if (provider == "project-quota") {
    if (filesystem == "xfs") return "mount the filesystem with -o prjquota (the kernel needs CONFIG_XFS_QUOTA)";
    if (filesystem == "ext4")
      return "unmounted: tune2fs -O project,quota -Q prjquota DEVICE (the kernel needs CONFIG_QFMT_V2)";
    return "keep the data directory on XFS or ext4 with project quotas";
  }
  if (provider == "btrfs") return "install btrfs-progs; the kernel needs btrfs and loop devices";
  if (provider == "ext4-file") return "install e2fsprogs; the kernel needs ext4 and loop devices";
  return "";
}

// Opens the provider in a fresh folder and over-fills a layer.
Result<void> try_provider(const std::string& dir, const std::string& provider) {
  StoreOptions options{.provider = provider, .store_bytes = uint64_t{512} << 20, .reserve_bytes = 1};
  ISOLA_TRY(auto store, open_layer_store(dir, options, std::nullopt));
  return prove_enforcement(*store);
}

// In a child with a mount namespace of its own, so that nothing it mounts is ever seen (or left) outside.
Result<void> try_contained(const std::string& dir, const std::string& provider) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return sys_error("cannot make a pipe");
  Fd in(ends[0]), out(ends[1]);
  pid_t pid = ::fork();
  if (pid < 0) return sys_error("cannot start a probe");
  if (pid == 0) {
    std::string words;
    if (::unshare(CLONE_NEWNS) < 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0)
      words = sys_error("cannot make a mount namespace").error().message;
    else if (auto tried = try_provider(dir, provider); !tried)
      words = tried.error().message;
    (void)write_all(out.get(), words);
    ::_exit(words.empty() ? 0 : 1);
  }
  out.reset();
  std::string words;
  char buffer[1024];
  for (ssize_t n; (n = ::read(in.get(), buffer, sizeof buffer)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    words.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return fail(Code::unsupported, words.empty() ? "the probe died" : words);
}

}  // namespace

Result<StoreReport> probe_layer_stores(const std::string& dir) {
  StoreReport report{.dir = dir, .filesystem = filesystem_name(dir), .providers = {}, .chosen = ""};
  for (const char* provider : {"project-quota", "btrfs", "ext4-file"}) {
    std::string folder = dir + "/.probe-" + new_sandbox_id();
    ISOLA_CHECK(make_dirs(folder, 0700));
    auto tried = try_contained(folder, provider);
    ISOLA_CHECK(remove_tree(folder));
    ProviderReport entry{.name = provider, .works = tried.has_value(), .why = "", .advice = ""};
    if (tried) {
      entry.why = "a layer was made, over-filled and stopped at its limit";
      if (report.chosen.empty()) report.chosen = provider;
    } else {
      entry.why = tried.error().message;
      entry.advice = advice_for(provider, report.filesystem);
    }
    report.providers.push_back(std::move(entry));
  }
  return report;
}

}  // namespace isola::image
