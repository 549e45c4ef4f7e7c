#include "jail_image.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/ids.h"
#include "boundary/jail/jail.h"
#include "boundary/jail/root.h"
#include "boundary/jail/stage.h"
#include "external_mounts.h"
#include "image/spawn.h"
#include "kernel/mount.h"
#include "userns_image.h"

namespace isola::criu {

namespace {

// A user namespace with nobody in it, for its map: the restored one exists only once criu is at work, and the root must
// be mounted before.
Result<Fd> user_namespace(uint32_t base) {
  ISOLA_TRY(auto child, kernel::spawn(CLONE_NEWUSER, [] {
              for (;;) ::pause();
              return 0;
            }));
  OwnChild owned(child.pid);
  ISOLA_CHECK(kernel::write_id_maps(child.pid, base, boundary::jail::kIdCount));
  return kernel::open_namespace(child.pid, "user");
}

// The last lines of criu's log, for the error message.
std::string why(const std::string& folder, const char* log) {
  auto text = read_file(folder + "/" + log);
  if (!text) return "";
  std::string errors;
  for (size_t at = 0; at < text->size();) {
    size_t end = std::min(text->find('\n', at), text->size());
    std::string line = text->substr(at, end - at);
    if (line.find("Error") != std::string::npos) errors += "\n" + line;
    at = end + 1;
  }
  return errors;
}

Result<Fd> open_folder(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return sys_error("cannot open " + path);
  return fd;
}

}  // namespace

OwnChild::~OwnChild() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
  wait();
}

void OwnChild::wait() {
  if (pid_ > 0)
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  pid_ = 0;
}

Checkpointer::~Checkpointer() {
  for (const auto& id : layer_ids_) (void)parts_.layers.destroy(id);
  for (uint32_t base : bases_) parts_.ranges.give_back(base);
}

Result<std::string> Checkpointer::scratch_folder() {
  ISOLA_CHECK(make_dirs(parts_.scratch, 0700));
  std::string folder = parts_.scratch + "/" + std::to_string(++count_);
  // The parent is closed to everybody; the folder itself is read by a restored process 1, through a descriptor.
  ISOLA_CHECK(make_dirs(folder, 0755));
  return folder;
}

Result<std::string> Checkpointer::copy_upper(const std::string& upper) {
  std::string id = new_sandbox_id();
  ISOLA_TRY(std::string layer, parts_.layers.create(id, {.bytes = parts_.limits.disk}));
  layer_ids_.push_back(id);
  std::string copy = layer + "/upper";
  ISOLA_CHECK(image::run({.argv = {"cp", "-a", "--reflink=auto", upper + "/.", copy}, .what = "copying the files"}));
  return copy;
}

Result<Image> Checkpointer::dump(pid_t pid, const std::function<Result<std::vector<std::string>>()>& frozen) {
  Image image;
  ISOLA_TRY(image.folder, scratch_folder());
  ISOLA_TRY(Fd folder, open_folder(image.folder));
  Hooks hooks;
  hooks.on_notify = [&](const std::string& point, pid_t) -> Result<void> {
    if (point != "post-dump") return {};
    ISOLA_TRY(image.lowers, frozen());
    return {};
  };
  Options options{.program = parts_.criu,
                  .preload = parts_.preload,
                  .images = folder.get(),
                  .external = external_for_dump(parts_.mounts)};
  auto dumped = criu::dump(options, pid, false, hooks);
  if (!dumped) return std::unexpected(dumped.error().in(why(image.folder, "dump.log")));
  return image;
}

Result<Fd> Checkpointer::make_root(const Restored& next) {
  ISOLA_TRY(Fd userns, user_namespace(next.id_base));
  std::string layer = next.upper.substr(0, next.upper.rfind('/'));
  ISOLA_TRY(auto root,
            boundary::jail::make_root(next.lowers, layer, userns.get(), next.id_base, parts_.mounts[0].attributes));
  return std::move(root.mount);
}

Result<Restored> Checkpointer::restore(const Image& image) {
  Restored next;
  next.lowers = image.lowers;
  ISOLA_TRY(next.id_base, parts_.ranges.take());
  bases_.push_back(next.id_base);
  next.layer_id = new_sandbox_id();
  ISOLA_TRY(std::string layer, parts_.layers.create(next.layer_id, {.bytes = parts_.limits.disk}));
  layer_ids_.push_back(next.layer_id);
  next.upper = layer + "/upper";
  ISOLA_TRY(next.cgroup, parts_.cgroups.create(
                             next.layer_id,
                             {.cpus = parts_.limits.cpus, .memory = parts_.limits.memory, .pids = parts_.limits.pids}));
  ISOLA_TRY(Fd root, make_root(next));
  ISOLA_CHECK(kernel::attach(root.get(), AT_FDCWD, boundary::jail::kNewRoot));
  ISOLA_TRY(std::string folder, scratch_folder());
  ISOLA_CHECK(link_image(image.folder, folder, next.id_base, boundary::jail::kIdCount));
  ISOLA_TRY(Fd images, open_folder(folder));

  Hooks hooks;
  // The restored processes are children of criu's: what it is in, they are in.
  hooks.before_exec = [&]() -> Result<void> {
    ISOLA_CHECK(next.cgroup.attach(0));
    if (::unshare(CLONE_NEWCGROUP) < 0) return sys_error("cannot make a cgroup namespace");
    return {};
  };
  hooks.on_notify = [&](const std::string& point, pid_t pid) -> Result<void> {
    next.points.push_back(point);
    if (point != "setup-namespaces") return {};
    ISOLA_TRY(Fd netns, kernel::open_namespace(pid, "net"));
    ISOLA_TRY(next.sockets, parts_.network.make(netns.get()));
    return {};
  };
  Options options{.program = parts_.criu,
                  .preload = parts_.preload,
                  .images = images.get(),
                  .external = external_for_restore(parts_.mounts, parts_.stage)};
  ISOLA_TRY(Fd userns, user_namespace(next.id_base));
  ISOLA_CHECK(prepare_dev(parts_.mounts, userns.get()));
  auto pid = criu::restore(options, parts_.stage + "/" + boundary::jail::kNewRoot, hooks);
  ISOLA_CHECK(kernel::detach(boundary::jail::kNewRoot));
  ISOLA_CHECK(kernel::detach(boundary::jail::kRestoredDev));
  if (!pid) return std::unexpected(pid.error().in(why(folder, "restore.log")));
  next.pid = OwnChild(*pid);
  ISOLA_TRY(Fd pidfd, kernel::open_pidfd(*pid));
  ISOLA_TRY(uint64_t started, kernel::start_time(*pid));
  next.cell = std::make_unique<boundary::jail::JailCell>(kernel::ProcessName{*pid, started}, std::move(pidfd), true);
  return next;
}

}  // namespace isola::criu
