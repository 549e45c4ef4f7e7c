#include "boundary/uml/uml.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "boundary/box/disk.h"
#include "boundary/uml/syscall_policy.h"

namespace isola::boundary::uml {

namespace {

using jail::MountRule;

// In the box.
constexpr char kEngine[] = "engine/linux", kInitrd[] = "initrd", kImage[] = "image", kDisk[] = "disk", kRam[] = "ram";
constexpr char kRun[] = "run";
// On the stage.
constexpr char kArchive[] = "uml.initrd";

// With less the kernel itself does not come up.
constexpr uint64_t kLeastMemory = 96 << 20;
// Threads of the program's own, and the relay. Each process inside is one of the host's.
constexpr uint32_t kOwnProcesses = 16;
constexpr uint32_t kLeastProcesses = 48;

std::vector<MountRule> box_mounts(const UmlKernel& kernel) {
  using From = MountRule::From;
  return {
      box::bare_root("1m", "256"),
      {"proc", From::filesystem, "proc", box::kQuiet, {{"subset", "pid"}}},
      {"dev", From::stage, "dev", box::kDevices, {}},
      {kEngine, From::host, kernel.program, box::kPrograms, {}},
      {kInitrd, From::stage, kArchive, box::kSealed, {}},
  };
}

// What belongs to one sandbox.
std::vector<MountRule> own_mounts(const LaunchSpec& spec, const std::string& disk) {
  using From = MountRule::From;
  return {
      {kImage, From::disk, spec.blob, box::kSealed, {}},
      {kDisk, From::disk, disk, box::kQuiet, {}},
      // The guest's memory is a file, and its programs run in it. It counts against the sandbox's limit.
      {kRam,
       From::filesystem,
       "tmpfs",
       {.nosuid = true, .nodev = true},
       {{"size", fmt::format("{}k", spec.limits.memory / 1024)}, {"nr_inodes", "16"}, {"mode", "0700"}}},
  };
}

}  // namespace

uint64_t guest_memory(uint64_t limit) { return limit - (24 << 20) - limit / 16; }

std::vector<std::string> command_line(const LaunchSpec& spec, bool ipv6) {
  std::vector<std::string> words = {
      fmt::format("mem={}M", guest_memory(spec.limits.memory) >> 20),
      fmt::format("ubd0r=/{}", kImage),
      fmt::format("ubd1=/{}", kDisk),
      fmt::format("initrd=/{}", kInitrd),
      fmt::format("uml_dir=/{}/", kRun),
      "umid=isola",
      // What the kernel has to say goes to standard error, and nowhere else; nobody types.
      "con=null",
      "con0=null,fd:2",
      "ssl=null",
      "quiet",
      // The sandbox's network and its link: descriptors that the relay hands over (guest/agent/relay.h).
      "vec0:transport=fd,fd=4,vec=0",
      "vec1:transport=fd,fd=3,mtu=8192,depth=32",
      // The guest's first program finds these in its environment.
      "ISOLA_ID=" + spec.id,
      fmt::format("ISOLA_PROCESSES={}", spec.limits.pids - kOwnProcesses),
      fmt::format("ISOLA_FILES={}", spec.limits.open_files),
  };
  if (!ipv6) words.emplace_back("ipv6.disable=1");
  return words;
}

Result<std::unique_ptr<Uml>> Uml::make(jail::Jail& jail, UmlKernel kernel) {
  ISOLA_TRY(auto filter, kernel_syscall_program());
  ISOLA_TRY(auto network, IslandNetwork::prepare(IslandNetwork::Shape::tapped));
  std::unique_ptr<Uml> uml(new Uml(jail, std::move(kernel), std::move(network), std::move(filter)));
  ISOLA_CHECK(uml->protect(0, Limits{}.open_files, uml->filter_.hash()));
  uml->protections_.mounts = box_mounts(uml->kernel_);
  ISOLA_CHECK(box::put_archive(kArchive));
  cpu_set_t ours;
  CPU_ZERO(&ours);
  if (::sched_getaffinity(0, sizeof ours, &ours) == 0)
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &ours)) uml->processors_.push_back(i);
  return uml;
}

// One after the other: such a kernel has one processor, and is several times faster when it does not change it.
int Uml::next_processor() { return processors_.empty() ? -1 : processors_[next_++ % processors_.size()]; }

Result<std::unique_ptr<Launching>> Uml::begin(LaunchSpec spec) {
  if (spec.memory) return std::unexpected(memory_host().error());
  if (!spec.shown.empty())
    return fail(Code::unsupported,
                "a sandbox with the boundary uml cannot be shown folders or volumes in this version; the boundaries "
                "jail and gvisor can");
  if (spec.lowers.size() != 1)
    return fail(Code::unsupported, "a sandbox with the boundary uml can only start from a template");
  if (spec.limits.memory < kLeastMemory)
    return fail(Code::invalid, "a sandbox with the boundary uml needs at least 96 MiB of memory");
  if (spec.limits.pids < kLeastProcesses)
    return fail(Code::invalid,
                fmt::format("a sandbox with the boundary uml needs at least {} processes", kLeastProcesses));
  if (spec.limits.disk < box::kLeastDisk)
    return fail(Code::invalid, "a sandbox with the boundary uml needs at least 20 MiB of disk");
  const std::string disk = spec.layer + "/upper/disk";
  ISOLA_CHECK(box::make_disk(kernel_.disk, disk, box::disk_size(spec.limits.disk)));
  jail::Protections wanted = protections_;
  for (auto& rule : own_mounts(spec, disk)) wanted.mounts.push_back(std::move(rule));
  jail::Outfit outfit{.kind = BoundaryKind::uml,
                      .engine = {std::string("/") + kEngine},
                      .relay = {"--relay-packets", std::to_string(next_processor())},
                      .environment = {std::string("TMPDIR=/") + kRam},
                      .tapped = true,
                      .files = {{std::string(kRun) + "/", {}}}};
  const bool ipv6 = ::access("/proc/sys/net/ipv6", F_OK) == 0;
  for (auto& word : command_line(spec, ipv6)) outfit.engine.push_back(std::move(word));
  return jail_.begin_box(std::move(spec), std::move(wanted), std::move(outfit), &filter_);
}

Result<MemoryHost> Uml::memory_host() {
  return fail(Code::unsupported,
              "a sandbox with the boundary uml cannot be paused, snapshotted or forked: nothing can save the memory "
              "of a kernel that runs as a program, and its files are on a disk of its own; the boundary jail can");
}

Result<std::unique_ptr<Checkpointing>> Uml::checkpoint(Cell&, CheckpointSpec) {
  return std::unexpected(memory_host().error());
}

}  // namespace isola::boundary::uml
