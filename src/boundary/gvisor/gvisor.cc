#include "boundary/gvisor/gvisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>

#include <algorithm>

#include "boundary/gvisor/bundle.h"
#include "boundary/gvisor/checkpoint.h"
#include "boundary/jail/stage.h"
#include "kernel/capability.h"
#include "kernel/mount.h"

namespace isola::boundary::gvisor {

namespace {

using jail::MountRule;
using kernel::capability;

// What runsc needs in the box, where none of it reaches anything else: mounts, namespaces, a socket on its end of the
// cable, the memory of the processes that it runs the guest's code in. Its sentry gives up all but the last.
const uint64_t kEngineCapabilities = jail::kCapabilities | capability(CAP_SYS_ADMIN) | capability(CAP_NET_ADMIN) |
                                     capability(CAP_NET_RAW) | capability(CAP_SYS_PTRACE) |
                                     capability(CAP_DAC_READ_SEARCH) | capability(CAP_MKNOD);

// Its own descriptors, not the guest's: each file that the guest has open is one of them, and there are others.
constexpr uint32_t kEngineFiles = 65536;

// With less the engine itself does not come up.
constexpr uint64_t kLeastMemory = 64 << 20;
constexpr uint32_t kLeastProcesses = 64;

std::vector<MountRule> box_mounts(const Runsc& runsc) {
  using From = MountRule::From;
  const auto root = box::bare_root("16m", "4096");
  return {
      root,
      {"proc", From::filesystem, "proc", box::kQuiet, {}},
      // runsc takes a namespace that has these for the host's, and does not go on. Newer kernels have them in every
      // one.
      {"proc/sys/net", From::stage, "empty", box::kSealed, {}},
      {"proc/meminfo", From::own, kMeminfo, box::kSealed, root.options},
      {"dev", From::stage, "dev", box::kDevices, {}},
      {kPrograms, From::stage, jail::kBoxPrograms, box::kPrograms, {}},
      {kEngine, From::host, runsc.program, box::kPrograms, {}},
      {kWire, From::wire, "", {}, {}},
      {kRootfs, From::root, "", {.nodev = true}, {}},
  };
}

}  // namespace

Result<std::unique_ptr<Gvisor>> Gvisor::make(jail::Jail& jail, Runsc runsc) {
  ISOLA_TRY(auto network, IslandNetwork::prepare(IslandNetwork::Shape::wired));
  std::unique_ptr<Gvisor> gvisor(new Gvisor(jail, std::move(runsc), std::move(network)));
  ISOLA_CHECK(gvisor->protect(kEngineCapabilities, kEngineFiles, ""));
  gvisor->protections_.mounts = box_mounts(gvisor->runsc_);
  return gvisor;
}

Result<std::unique_ptr<Launching>> Gvisor::begin(LaunchSpec spec) {
  if (spec.memory) ISOLA_CHECK(memory_host());
  ISOLA_CHECK(jail::check_shown(spec.shown));
  if (spec.limits.memory < kLeastMemory)
    return fail(Code::invalid, "a sandbox with the boundary gvisor needs at least 64 MiB of memory");
  if (spec.limits.pids < kLeastProcesses)
    return fail(Code::invalid,
                fmt::format("a sandbox with the boundary gvisor needs at least {} processes", kLeastProcesses));
  jail::Protections wanted = protections_;
  wanted.open_files = std::max(kEngineFiles, spec.limits.open_files);
  for (size_t i = 0; i < spec.shown.size(); ++i)
    wanted.mounts.push_back({.target = shown_at(i),
                             .from = MountRule::From::shown,
                             .source = {},
                             .attributes = {.read_only = spec.shown[i].read_only, .nosuid = true, .nodev = true},
                             .options = {}});
  jail::Outfit outfit{.kind = BoundaryKind::gvisor, .engine = {std::string("/") + kEngine}, .files = {}};
  for (auto& flag : runsc_.flags(kState)) outfit.engine.push_back(std::move(flag));
  for (const char* word : {spec.memory ? "restore" : "run", "--bundle", "/bundle"}) outfit.engine.emplace_back(word);
  if (spec.memory) outfit.engine.push_back(std::string("--image-path=/") + kImage);
  outfit.engine.emplace_back(kContainer);
  outfit.handle = std::to_string(spec.limits.open_files);
  outfit.relay = {"--relay", spec.memory ? "--rename" : "--name", spec.id};
  outfit.files = {{kConfig, describe_bundle(spec, jail::kCapabilities)},
                  {kMeminfo, describe_memory(spec.limits.memory)},
                  {"tmp/", {}}};  // where the sentry makes its own root
  if (spec.memory) {
    // Shown to the engine alone: the description knows nothing of it.
    ISOLA_TRY(Fd image, kernel::clone_tree(AT_FDCWD, spec.memory->folder));
    spec.shown.push_back({.tree = std::move(image), .target = std::string("/") + kImage});
    wanted.mounts.push_back({.target = kImage,
                             .from = MountRule::From::shown,
                             .source = {},
                             .attributes = {.read_only = true, .nosuid = true, .nodev = true},
                             .options = {}});
  }
  return jail_.begin_box(std::move(spec), std::move(wanted), std::move(outfit));
}

Result<MemoryHost> Gvisor::memory_host() {
  ISOLA_CHECK(runsc_.keeps_memory());
  if (!host_) {
    ISOLA_TRY(host_, jail::memory_of_this_machine());
    host_->checkpointer = fmt::format("runsc {} ({})", runsc_.version, runsc_.platform);
    host_->kernel.clear();  // the one that its processes know is in the image
  }
  return *host_;
}

Result<std::unique_ptr<Checkpointing>> Gvisor::checkpoint(Cell& cell, CheckpointSpec spec) {
  const pid_t relay = cell.name().process.pid;
  // Files alone are the same affair everywhere.
  if (!spec.memory) return jail::begin_checkpoint({}, {}, relay, std::move(spec));
  return gvisor::begin_checkpoint(runsc_, relay, kEngineCapabilities, std::move(spec));
}

}  // namespace isola::boundary::gvisor
