#include "bench/jail_peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/securebits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "boundary/jail/external_mounts.h"
#include "boundary/jail/root.h"
#include "boundary/jail/stage.h"
#include "image/tree.h"
#include "kernel/mount.h"
#include "kernel/process.h"

namespace isola::bench {

namespace {

namespace jail = boundary::jail;

constexpr const char* kPlace = "/mnt";  // everybody can walk there: criu looks the root up as the sandbox's root

// The first host id of a process's user namespace.
Result<uint32_t> id_base_of(pid_t pid) {
  ISOLA_TRY(std::string map, read_file(fmt::format("/proc/{}/uid_map", pid)));
  unsigned inside = 1, outside = 0;
  if (std::sscanf(map.c_str(), "%u %u", &inside, &outside) != 2 || inside != 0)
    return fail(Code::corrupt, "unreadable uid_map");
  return outside;
}

// With that map, and nobody in it.
Result<Fd> user_namespace(uint32_t base) {
  ISOLA_TRY(auto child, kernel::spawn(CLONE_NEWUSER, [] {
              for (;;) ::pause();
              return 0;
            }));
  auto opened = [&]() -> Result<Fd> {
    ISOLA_CHECK(kernel::write_id_maps(child.pid, base, 65536));
    return kernel::open_namespace(child.pid, "user");
  }();
  (void)kernel::send_signal(child.pidfd.get(), SIGKILL);
  kernel::wait_for(child.pid);
  return opened;
}

// What is slow and not needed is left out (docs/design-notes/checkpoint.md).
const std::vector<std::string> kTuned = {"--manage-cgroups=ignore",
                                         "--network-lock",
                                         "skip",
                                         "--tcp-established",
                                         "--skip-in-flight",
                                         "--empty-ns",
                                         "net",
                                         "--link-remap",
                                         "--file-locks",
                                         "--ghost-limit",
                                         "536870912"};

}  // namespace

Result<std::unique_ptr<JailPeer>> JailPeer::make(Stage& stage, const jail::Criu& criu, const std::string& digest) {
  std::unique_ptr<JailPeer> peer(new JailPeer);
  peer->criu_ = criu;
  ISOLA_CHECK(peer->prepare(stage, digest));
  return peer;
}

Result<void> JailPeer::prepare(Stage& stage, const std::string& digest) {
  folder_ = stage.scratch() + "/jail-peer";
  (void)image::remove_tree(folder_);
  ISOLA_TRY(lower_, stage.mount_lower(digest));
  layer_ = folder_ + "/layer";
  // As the launcher has it, but in this process's mount namespace. Whoever sets a stage stands on it.
  stage_folder_ = folder_ + "/stage";
  ISOLA_CHECK(make_dirs(stage_folder_));
  Fd here(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  auto set = jail::set_stage(
      {.folder = stage_folder_, .guest_program = own_folder() + "isola-guest", .programs = own_folder()});
  if (::fchdir(here.get()) < 0) return sys_error("cannot go back");
  return set;
}

Result<void> JailPeer::mount_root(uint32_t id_base) {
  if (id_base_ != 0) {
    (void)::umount2(kPlace, MNT_DETACH);
    (void)image::remove_tree(layer_);
  }
  id_base_ = id_base;
  ISOLA_CHECK(make_dirs(layer_ + "/upper"));
  ISOLA_CHECK(make_dirs(layer_ + "/work"));
  ISOLA_TRY(Fd userns, user_namespace(id_base));
  const auto rules = jail::standard_mounts();
  ISOLA_TRY(Fd stage, kernel::clone_tree(AT_FDCWD, stage_folder_));
  Fd point(::open(kPlace, O_PATH | O_DIRECTORY | O_CLOEXEC)), here(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!point || !here) return sys_error("cannot open " + std::string(kPlace));
  ISOLA_CHECK(kernel::attach(stage.get(), point.get(), "."));
  if (::chdir(kPlace) < 0) return sys_error("cannot enter " + std::string(kPlace));
  auto made = [&]() -> Result<void> {
    // As the launcher: whoever takes the sandbox's ids for its files keeps its capabilities.
    const int bits = ::prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);
    ::prctl(PR_SET_SECUREBITS, bits | SECBIT_NO_SETUID_FIXUP, 0, 0, 0);
    auto root = jail::make_root({lower_}, layer_, userns.get(), id_base, rules[0].attributes);
    ::prctl(PR_SET_SECUREBITS, bits, 0, 0, 0);
    if (!root) return std::unexpected(root.error());
    ISOLA_CHECK(kernel::attach(root->mount.get(), AT_FDCWD, jail::kNewRoot));
    ISOLA_CHECK(criu::prepare_sources(rules));
    return criu::prepare_dev(rules, userns.get());
  }();
  if (::fchdir(here.get()) < 0) return sys_error("cannot go back");
  return made;
}

Result<double> JailPeer::run(std::vector<std::string> words) const {
  words.insert(words.begin(), criu_.program);
  words.insert(words.end(), kTuned.begin(), kTuned.end());
  Program program{.argv = std::move(words)};
  // Where the machine needs the library; without what makes it faster.
  if (!criu_.preload.empty()) program.environment = {"LD_PRELOAD=" + criu_.preload, "ISOLA_CRIU_PLAIN=1"};
  ISOLA_TRY(auto timing, run_program(program));
  return timing.exit;
}

Result<double> JailPeer::dump(pid_t pid) {
  end();
  std::string images = folder_ + "/images";
  (void)image::remove_tree(images);
  ISOLA_CHECK(make_dirs(images, 0755));
  ISOLA_TRY(uint32_t base, id_base_of(pid));
  std::vector<std::string> words = {"dump", "-t", std::to_string(pid), "-D", images, "-o", "log"};
  for (const auto& external : criu::external_for_dump(jail::standard_mounts()))
    words.insert(words.end(), {"--external", external});
  ISOLA_TRY(double time, run(std::move(words)));
  ISOLA_CHECK(mount_root(base));
  return time;
}

Result<double> JailPeer::restore() {
  std::string images = folder_ + "/images";
  ::unlink((images + "/pid").c_str());
  std::vector<std::string> words = {
      "restore", "-D",        images, "-o",     "log",
      "-d",      "--pidfile", "pid",  "--root", std::string(kPlace) + "/" + jail::kNewRoot};
  for (const auto& external : criu::external_for_restore(jail::standard_mounts(), kPlace))
    words.insert(words.end(), {"--external", external});
  ISOLA_TRY(double time, run(std::move(words)));
  ISOLA_TRY(std::string pid, read_file(images + "/pid"));
  restored_ = std::atoi(pid.c_str());
  return time;
}

void JailPeer::end() {
  if (restored_ <= 1) return;
  auto pidfd = kernel::open_pidfd(restored_);
  ::kill(restored_, SIGKILL);  // process 1 of its namespace: the others go with it
  if (pidfd) {
    pollfd gone{pidfd->get(), POLLIN, 0};
    ::poll(&gone, 1, 10000);
  }
  ::waitpid(restored_, nullptr, WNOHANG);
  restored_ = -1;
}

Result<void> JailPeer::forget() { return image::remove_tree(folder_ + "/images"); }

JailPeer::~JailPeer() {
  end();
  if (id_base_ != 0) (void)::umount2(kPlace, MNT_DETACH);
  (void)::umount2(stage_folder_.c_str(), MNT_DETACH);
}

}  // namespace isola::bench
