#include "boundary/microvm/microvm.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/file.h"
#include "boundary/box/disk.h"
#include "boundary/jail/stage.h"
#include "boundary/microvm/checkpoint.h"
#include "boundary/microvm/command_line.h"
#include "boundary/microvm/syscall_policy.h"

namespace isola::boundary::microvm {

namespace {

using jail::MountRule;

// On the stage.
constexpr char kArchive[] = "microvm.initrd", kDev[] = "microvm.dev", kPreload[] = "microvm.preload.so";
// In the box.
constexpr char kPreloaded[] = "preload.so";

// Descriptors: its own files and sockets, none of the guest's.
constexpr uint32_t kEngineFiles = 1024;

std::vector<MountRule> box_mounts(const Machine& machine) {
  using From = MountRule::From;
  return {
      box::bare_root("1m", "256"),
      {"proc", From::filesystem, "proc", box::kQuiet, {{"subset", "pid"}}},
      {"dev", From::stage, kDev, box::kDevices, {}},
      {kEngine, From::host, machine.engine(), box::kPrograms, {}},
      {kPreloaded, From::stage, kPreload, box::kPrograms, {}},
      {kKernel, From::host, machine.kernel(), box::kSealed, {}},
      {kInitrd, From::stage, kArchive, box::kSealed, {}},
  };
}

Result<void> put_node(const std::string& path, unsigned int major, unsigned int minor) {
  if (::mknod(path.c_str(), S_IFCHR | 0666, makedev(major, minor)) < 0 || ::chmod(path.c_str(), 0666) < 0)
    return sys_error("cannot make " + path);
  return {};
}

// What the relay and QEMU find as /dev: nothing, or the processor's help as well.
Result<void> put_devices(bool kvm) {
  const std::string dev = std::string(kDev) + "/";
  ISOLA_CHECK(make_dirs(kDev));
  ISOLA_CHECK(put_node(dev + "null", 1, 3));
  ISOLA_CHECK(put_node(dev + "urandom", 1, 9));
  if (kvm) ISOLA_CHECK(put_node(dev + "kvm", 10, 232));
  const std::string guest = jail::kGuestProgram + 4;  // behind "/dev"
  if (::link(("dev" + guest).c_str(), (kDev + guest).c_str()) < 0)
    return sys_error("cannot put the relay on the stage");
  return {};
}

Result<void> put_preload() {
  char self[4096];
  const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  std::string path(self, n > 0 ? static_cast<size_t>(n) : 0);
  path.resize(path.rfind('/') + 1);
  ISOLA_TRY(std::string library, read_file(path + "microvm-preload.so", 8 << 20));
  Fd file(::open(kPreload, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0555));
  if (!file) return sys_error("cannot put a library on the stage");
  return write_all(file.get(), library);
}

// Of an image: its uppermost layer has the disk as it was. That one is never written to again.
std::string disk_below(const LaunchSpec& spec) { return spec.lowers.size() > 1 ? spec.lowers.front() + "/disk" : ""; }

// A machine cannot be made larger or smaller while it runs, and what is restored runs.
Result<Shape> shape_of(const LaunchSpec& spec) {
  ISOLA_TRY(std::string text, read_file(spec.memory->folder + "/" + kShapeFile, 4096));
  ISOLA_TRY(Shape shape, parse_shape(text));
  if (shape.memory > guest_memory(spec.limits.memory))
    return fail(Code::invalid,
                fmt::format("the machine in the image has {} MiB of memory: that does not fit into the limit",
                            shape.memory >> 20));
  return shape;
}

}  // namespace

Result<std::unique_ptr<Microvm>> Microvm::make(jail::Jail& jail, Machine machine) {
  ISOLA_CHECK(box::put_archive(kArchive, machine.modules()));
  machine.look_for_kvm(kArchive);
  ISOLA_CHECK(put_devices(machine.kvm));
  ISOLA_CHECK(put_preload());
  ISOLA_TRY(auto filter, machine_syscall_program(machine.kvm));
  ISOLA_TRY(auto network, IslandNetwork::prepare(IslandNetwork::Shape::tapped));
  std::unique_ptr<Microvm> made(new Microvm(jail, std::move(machine), std::move(network), std::move(filter)));
  ISOLA_CHECK(made->protect(0, kEngineFiles, made->filter_.hash()));
  made->protections_.mounts = box_mounts(made->machine_);
  return made;
}

Result<std::unique_ptr<Launching>> Microvm::begin(LaunchSpec spec) {
  using From = MountRule::From;
  if (spec.memory) ISOLA_CHECK(memory_host());
  if (!spec.shown.empty())
    return fail(
        Code::unsupported,
        "a sandbox with the boundary microvm cannot be shown folders or volumes in this version; the boundaries "
        "jail and gvisor can");
  if (spec.limits.memory < kLeastMemory)
    return fail(Code::invalid,
                fmt::format("a sandbox with the boundary microvm needs at least {} MiB of memory", kLeastMemory >> 20));
  if (spec.limits.pids < kLeastProcesses)
    return fail(Code::invalid,
                fmt::format("a sandbox with the boundary microvm needs at least {} processes", kLeastProcesses));
  if (spec.limits.disk < box::kLeastDisk)
    return fail(Code::invalid, "a sandbox with the boundary microvm needs at least 20 MiB of disk");
  jail::Outfit outfit{.kind = BoundaryKind::microvm,
                      .engine = {},
                      .relay = {},
                      .environment = {fmt::format("QEMU_MODULE_DIR=/{}/lib", kEngine)},
                      .tapped = true,
                      .handle = std::to_string(spec.limits.open_files),
                      .files = {}};
  Shape shape = shape_for(spec.limits);
  if (spec.memory) {
    ISOLA_TRY(shape, shape_of(spec));
  }
  const std::string disk = spec.layer + "/upper/disk";
  uint64_t size = box::disk_size(spec.limits.disk);
  if (::access(disk.c_str(), F_OK) < 0) {  // else the sandbox goes on with its own
    const std::string below = disk_below(spec);
    if (below.empty()) {
      ISOLA_CHECK(box::make_disk(machine_.disk(), disk, size));
    } else {
      // Its kernel goes on with the disk that it knows.
      struct stat st{};
      if (spec.memory && ::stat(below.c_str(), &st) == 0 && static_cast<uint64_t>(st.st_size) <= size)
        size = static_cast<uint64_t>(st.st_size);
      ISOLA_CHECK(box::begin_disk(below, disk, size, outfit.prepare));
    }
  }
  jail::Protections wanted = protections_;
  wanted.mounts.push_back({kImage, From::disk, spec.blob, box::kSealed, {}});
  wanted.mounts.push_back({kDisk, From::disk, disk, box::kQuiet, {}});
  const bool ipv6 = ::access("/proc/sys/net/ipv6", F_OK) == 0;
  outfit.engine = command_line(machine_, shape, spec, ipv6);
  if (spec.memory) {
    // Shown to QEMU alone, and read-only: it maps the memory privately (preload/preload_open.cc).
    ISOLA_TRY(Fd image, kernel::clone_tree(AT_FDCWD, spec.memory->folder));
    spec.shown.push_back({.tree = std::move(image), .target = std::string("/") + kMemory});
    wanted.mounts.push_back({.target = kMemory,
                             .from = From::shown,
                             .source = {},
                             .attributes = {.read_only = true, .nosuid = true, .nodev = true},
                             .options = {}});
    outfit.environment.push_back(fmt::format("LD_PRELOAD=/{}", kPreloaded));
    outfit.relay = {"--relay-machine", "0", fmt::format("/{}/{}", kMemory, kStateFile), "--rename", spec.id};
  } else {
    outfit.relay = {"--relay-machine", std::to_string(shape.memory), "-", "--name", spec.id};
  }
  return jail_.begin_box(std::move(spec), std::move(wanted), std::move(outfit), &filter_);
}

Result<MemoryHost> Microvm::memory_host() {
  if (!host_) {
    ISOLA_TRY(host_, jail::memory_of_this_machine());
    host_->checkpointer = fmt::format("qemu {} ({})", machine_.qemu_version, machine_.kvm ? "kvm" : "tcg");
    host_->kernel = machine_.kernel_version;  // the guest's: it is in the image, and is named on the command line
  }
  return *host_;
}

Result<std::unique_ptr<Checkpointing>> Microvm::checkpoint(Cell& cell, CheckpointSpec spec) {
  if (!spec.memory)
    return fail(
        Code::unsupported,
        "of a sandbox with the boundary microvm files are only kept together with its memory: what its programs "
        "wrote may still be there and not on its disk");
  return begin_checkpoint(cell.name().process.pid, std::move(spec));
}

}  // namespace isola::boundary::microvm
