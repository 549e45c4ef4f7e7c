// The images that sandboxes start from: mounted once, and their first pages kept in memory.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "image/blob_users.h"
#include "image/mount_blob.h"
#include "image/warm.h"
#include "kernel/mount.h"
#include "launcher/cells.h"

namespace isola::launcher {

namespace {
constexpr auto kWarmPause = std::chrono::seconds(5);
}

Result<std::string> Cells::mount_image(const std::string& digest) {
  std::string blob = parts_.blobs + "/" + digest + ".erofs";
  auto it = images_.find(digest);
  // One that was cleared from the cache lives on here as long as it is mounted, but what is made of it would not.
  if (::access(blob.c_str(), R_OK) < 0) {
    if (it != images_.end()) drop_mount(digest);
    return fail(Code::not_found, "there is no image " + digest + " on this machine");
  }
  if (it != images_.end()) return it->second;
  // First: whoever clears the cache must see that it is wanted.
  if (!parts_.kept.empty())
    ISOLA_CHECK(image::note_user(parts_.blobs, digest, parts_.kept.substr(0, parts_.kept.rfind('/'))));
  ISOLA_TRY(Fd mount, image::mount_blob(blob));
  std::string point = parts_.images + "/" + digest;
  ISOLA_CHECK(make_dirs(point));
  ISOLA_CHECK(kernel::attach(mount.get(), AT_FDCWD, point));
  images_[digest] = point;
  image::warm_core(point);
  warm(digest);
  return point;
}

// Sandboxes that run have mounts of their own of it; only its name here goes, and the cache's room with the last of
// them.
void Cells::drop_mount(const std::string& digest) {
  auto it = images_.find(digest);
  if (it == images_.end()) return;
  if (auto gone = kernel::detach(it->second); !gone) {
    log::warn("launcher", "image {}: {}", digest, gone.error().message);
    return;
  }
  ::rmdir(it->second.c_str());
  images_.erase(it);
}

// In a process of its own; failing costs nothing but time.
void Cells::warm(const std::string& digest) {
  auto mounted = images_.find(digest);
  if (mounted == images_.end()) return;  // cleared from the cache meanwhile
  auto [at, first] = warming_.try_emplace(digest, false);
  at->second = !first;  // once more when this is over
  if (!first) return;
  read_through(
      "image " + digest, 0,
      [point = mounted->second]() -> Result<void> {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        auto read = image::warm(point, image::warm_budget());
        return read ? Result<void>() : std::unexpected(read.error());
      },
      [this, digest](const Result<void>&) {
        parts_.loop.after(kWarmPause, [this, digest] {
          bool again = warming_.extract(digest).mapped();
          if (again) warm(digest);
        });
      });
}

}  // namespace isola::launcher
