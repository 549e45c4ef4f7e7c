#include "bench/stage.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>

#include "base/file.h"
#include "image/mount_blob.h"
#include "image/template_cache.h"
#include "image/tree.h"
#include "kernel/mount.h"

namespace isola::bench {

namespace {

constexpr uint64_t kOutsideBytes = 8ull << 30;
constexpr auto kPatience = std::chrono::seconds(60);
// The kernel takes namespaces apart in the background, some tens of milliseconds later; every contender of a round
// waits for so long before it starts, so that nobody pays for the one before.
constexpr auto kPause = std::chrono::milliseconds(20);

Result<void> attach_at(const Fd& mount, const std::string& point) {
  Fd folder(::open(point.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return sys_error("cannot open " + point);
  return kernel::attach(mount.get(), folder.get(), ".");
}

Result<void> mount_overlay(const std::string& lower, const std::string& layer, const std::string& point) {
  ISOLA_CHECK(make_dirs(point));
  ISOLA_TRY(Fd mount, kernel::make_filesystem("overlay", {{"source", "isola-bench"},
                                                          {"lowerdir", lower},
                                                          {"upperdir", layer + "/upper"},
                                                          {"workdir", layer + "/work"},
                                                          {"volatile", ""},
                                                          {"index", "on"},
                                                          {"nfs_export", "on"},
                                                          {"redirect_dir", "on"}}));
  return attach_at(mount, point);
}

Result<void> copy_file(const std::string& from, const std::string& to, mode_t mode) {
  ISOLA_TRY(std::string bytes, read_file(from, 64 << 20));
  return replace_file(to, bytes, static_cast<int>(mode));
}

// A root that programs can be chrooted into needs /proc and /dev, too.
Result<void> furnish(const std::string& root) {
  if (::mount("proc", (root + "/proc").c_str(), "proc", 0, nullptr) < 0 ||
      ::mount("/dev", (root + "/dev").c_str(), nullptr, MS_BIND, nullptr) < 0)
    return sys_error("cannot furnish " + root);
  return {};
}

}  // namespace

std::string own_folder() {
  char self[4096];
  ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  std::string path(self, n > 0 ? static_cast<size_t>(n) : 0);
  return path.substr(0, path.rfind('/') + 1);
}

unsigned Stage::cores() const { return static_cast<unsigned>(::sysconf(_SC_NPROCESSORS_ONLN)); }

Result<std::string> Stage::mount_lower(const std::string& digest) {
  std::string point = scratch_ + "/lower/" + digest.substr(0, 16);
  if (::access(point.c_str(), F_OK) == 0) return point;
  ISOLA_TRY(Fd mount, image::mount_blob(scratch_ + "/cache/blobs/" + digest + ".erofs"));
  ISOLA_CHECK(make_dirs(point));
  ISOLA_CHECK(attach_at(mount, point));
  return point;
}

Result<std::string> Stage::borrow_template(const std::string& name) {
  image::TemplateCache machine;
  ISOLA_TRY(auto found, machine.find(name));
  std::string here = scratch_ + "/cache/blobs/" + found.digest + ".erofs";
  const std::string there = machine.blob_path(found.digest);
  // A hard link where that is possible: a boundary that takes the file as a disk is not led elsewhere by a symbolic
  // one.
  if (::access(here.c_str(), F_OK) != 0 && ::link(there.c_str(), here.c_str()) < 0 &&
      ::symlink(there.c_str(), here.c_str()) < 0)
    return sys_error("cannot refer to the template " + name);
  return found.digest;
}

// minimal, seen through an overlay in which isola-hello lies, packed as an image of its own: the very same file for
// everybody.
Result<void> Stage::make_image() {
  ISOLA_CHECK(make_dirs(scratch_ + "/cache/blobs"));
  ISOLA_TRY(std::string minimal, borrow_template("minimal"));
  ISOLA_TRY(std::string lower, mount_lower(minimal));
  std::string layer = scratch_ + "/image-layer", tree = scratch_ + "/image-tree";
  ISOLA_CHECK(make_dirs(layer + "/upper"));
  ISOLA_CHECK(make_dirs(layer + "/work"));
  ISOLA_CHECK(mount_overlay(lower, layer, tree));
  ISOLA_CHECK(copy_file(own_folder() + "isola-hello", tree + kHello, 0755));
  image::TemplateCache cache(scratch_ + "/cache");
  ISOLA_TRY(auto made, cache.import_tree("bench", tree, "bench", {}));
  digest_ = made.digest;
  return kernel::detach(tree);
}

Result<std::string> Stage::outside_root(const std::string& name, const std::string& digest, bool on_store) {
  ISOLA_TRY(std::string lower, mount_lower(digest));
  std::string layer = scratch_ + "/plain/" + name, root = scratch_ + "/roots/" + name;
  if (on_store) {
    ISOLA_TRY(layer, store_->create(name, {.bytes = kOutsideBytes}));
  } else {
    ISOLA_CHECK(make_dirs(layer + "/upper"));
    ISOLA_CHECK(make_dirs(layer + "/work"));
  }
  ISOLA_CHECK(mount_overlay(lower, layer, root));
  ISOLA_CHECK(furnish(root));
  return root;
}

Result<void> Stage::start_launcher() {
  ::setenv("ISOLA_CACHE", (scratch_ + "/cache").c_str(), 1);
  ISOLA_TRY(auto client,
            launcher::Client::connect_or_start({.data_dir = scratch_ + "/data", .program = own_folder() + "isola"}));
  launcher_ = std::make_unique<launcher::Client>(std::move(client));
  ISOLA_TRY(auto info, launcher_->info());
  report_.note("boundary: jail (a shared kernel) where a row does not name another; writable layers: " +
               info.layer_store);
  double load = 0;
  if (::getloadavg(&load, 1) == 1 && load > 0.5 * cores())
    report_.note("the machine was busy with other things when this began (load " + std::to_string(load).substr(0, 4) +
                 "): no number here is a quiet machine's");
  return {};
}

Result<std::unique_ptr<Stage>> Stage::make(const std::string& scratch, Mode mode, Report& report) {
  std::unique_ptr<Stage> stage(new Stage(scratch, mode, report));
  if (::unshare(CLONE_NEWNS) < 0) return sys_error("cannot make a mount namespace (this must run as root)");
  ISOLA_CHECK(kernel::make_all_private());
  report.progress("making the image (minimal + isola-hello)");
  ISOLA_CHECK(stage->make_image());
  ISOLA_CHECK(stage->start_launcher());
  ISOLA_TRY(auto info, stage->launcher().info());
  ISOLA_TRY(stage->store_, image::open_layer_store(scratch + "/outside",
                                                   {.provider = info.layer_store, .store_bytes = 4 * kOutsideBytes},
                                                   image::AllowUnquotaedDisk{}));
  // Root of a user namespace must be able to walk there (crun and runc in theirs).
  for (const char* folder : {"", "/roots", "/outside"})
    if (::chmod((scratch + folder).c_str(), 0755) < 0 && errno != ENOENT) return sys_error("cannot open up " + scratch);
  ISOLA_TRY(stage->root_, stage->outside_root("bench", stage->digest_, true));
  return stage;
}

Result<launcher::Client> Stage::connect() const { return launcher::Client::connect(scratch_ + "/data"); }

Result<void> Stage::settle(uint32_t parked) { return settle(parked, UINT32_MAX); }
Result<void> Stage::settle_with_none_parked() { return settle(0, 0); }

Result<void> Stage::settle(uint32_t least, uint32_t most) {
  auto give_up = Clock::now() + kPatience;
  for (;;) {
    ISOLA_TRY(auto info, launcher_->info());
    bool rests = info.cleaning == 0 && info.parked >= least && info.parked <= most;
    if (rests && most == 0) {  // nor is one being made, which was wanted a moment ago
      ISOLA_TRY(auto all, launcher_->list());
      rests = std::ranges::none_of(all, [](const auto& one) { return one.parked; });
    }
    if (rests) break;
    if (Clock::now() > give_up) return fail(Code::timeout, "the launcher does not come to rest");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(kPause);
  return {};
}

Result<void> Stage::park(uint32_t count) {
  ISOLA_CHECK(launcher_->park(digest_, count));
  return settle(count);
}

void sweep(const std::string& scratch) {
  if (auto client = launcher::Client::connect(scratch + "/data"); client) (void)client->shutdown(true);
  if (auto removed = image::remove_tree(scratch); !removed)
    std::fprintf(stderr, "isola-bench: %s stays behind: %s\n", scratch.c_str(), removed.error().message.c_str());
}

Result<Timing> run_in(guest::PipeClient& guest, const std::vector<std::string>& argv, const std::string& expected,
                      Clock::time_point start) {
  Timing timing;
  std::string output;
  auto hear = [&](std::string_view bytes) {
    if (timing.first == 0) timing.first = micros_since(start);
    if (output.size() < 4096) output.append(bytes);
  };
  guest::Start command{.argv = argv, .announce = false};
  ISOLA_TRY(auto exit, guest.run(command, {.out = hear, .err = hear}));
  timing.exit = micros_since(start);
  if (timing.first == 0) timing.first = timing.exit;
  if (exit.code != 0 || (!expected.empty() && output != expected))
    return fail(Code::internal,
                argv[0] + " failed inside (" + std::to_string(exit.code) + "): " + output.substr(0, 300));
  return timing;
}

Result<Ran> create_and_run(launcher::Client& client, const std::string& digest, bool cold) {
  auto start = Clock::now();
  ISOLA_TRY(auto sandbox, client.launch({.digest = digest, .cold = cold, .allow_unquotaed = true}));
  Ran ran{.reply = sandbox.reply,
          .guest = std::make_unique<guest::PipeClient>(std::move(sandbox.link.from_guest),
                                                       std::move(sandbox.link.to_guest))};
  ISOLA_TRY(ran.timing, run_in(*ran.guest, {kHello}, kHelloSays, start));
  return ran;
}

Result<void> in_parallel(unsigned threads, const std::function<Result<void>(unsigned)>& work) {
  std::mutex mutex;
  std::optional<Error> first;
  std::vector<std::thread> all;
  for (unsigned i = 0; i < threads; ++i)
    all.emplace_back([&, i] {
      if (auto done = work(i); !done) {
        std::lock_guard lock(mutex);
        if (!first) first = done.error();
      }
    });
  for (auto& thread : all) thread.join();
  if (first) return std::unexpected(*first);
  return {};
}

}  // namespace isola::bench
