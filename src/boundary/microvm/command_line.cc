#include "boundary/microvm/command_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace isola::boundary::microvm {

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr unsigned kMostProcessors = 64;

// Enough for the code that runs all the time; QEMU's own default is a part of the host's memory.
constexpr int kTranslatedMiB = 32;

unsigned processors_for(double cpus) {
  const long here = std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN));
  return static_cast<unsigned>(
      std::clamp(std::ceil(cpus), 1.0, static_cast<double>(std::min<long>(here, kMostProcessors))));
}

std::string accelerator(bool kvm) { return kvm ? "kvm" : fmt::format("tcg,thread=multi,tb-size={}", kTranslatedMiB); }

// What the kernel is told, however it is run.
std::string kernel_words(bool kvm) {
  // It restarts when it panics, which ends QEMU (-no-reboot). Its own tests of its ciphers are for those who built it.
  std::string words =
      "console=ttyS0 quiet loglevel=1 panic=-1 cryptomgr.notests audit=0 8250.nr_uarts=1 ISOLA_MACHINE=1";
  // A translated guest sees the host's counter of ticks; measured under translation it is anything. There is no
  // speculation to be guarded against, and the guards cost much.
  if (!kvm)
    words += fmt::format(" tsc_early_khz={} tsc=reliable no_timer_check mitigations=off", ticks_per_millisecond());
  return words;
}

std::vector<std::string> bare_machine(const std::string& engine, bool kvm) {
  return {engine + "/lib/ld-linux-x86-64.so.2",
          "--library-path",
          engine + "/lib",
          engine + "/qemu",
          "-nodefaults",
          "-no-user-config",
          "-display",
          "none",
          "-no-reboot",
          "-L",
          engine + "/share",
          "-accel",
          accelerator(kvm),
          "-cpu",
          kvm ? "host" : "max",
          "-global",
          "virtio-mmio.force-legacy=false"};
}

void add(std::vector<std::string>& words, std::initializer_list<std::string> more) {
  words.insert(words.end(), more.begin(), more.end());
}

}  // namespace

uint64_t guest_memory(uint64_t limit) { return (limit - 64 * kMiB - limit / 32) / kMiB * kMiB; }

Shape shape_for(const Limits& limits) {
  return {.memory = guest_memory(limits.memory), .processors = processors_for(limits.cpus)};
}

std::string describe(const Shape& shape) {
  return fmt::format("memory {}\nprocessors {}\n", shape.memory, shape.processors);
}

Result<Shape> parse_shape(const std::string& text) {
  unsigned long long memory = 0;
  Shape shape;
  if (std::sscanf(text.c_str(), "memory %llu\nprocessors %u\n", &memory, &shape.processors) != 2 || memory == 0 ||
      memory % kMiB != 0 || shape.processors == 0 || shape.processors > kMostProcessors)
    return fail(Code::corrupt, "the image does not say what its machine was");
  shape.memory = memory;
  return shape;
}

std::vector<std::string> command_line(const Machine& machine, const Shape& shape, const LaunchSpec& spec, bool ipv6) {
  const bool restored = spec.memory.has_value();
  auto words = bare_machine(std::string("/") + kEngine, machine.kvm);
  const uint64_t memory = shape.memory / kMiB;
  add(words, {"-M", "microvm,x-option-roms=off,acpi=on,pit=off,pic=off,isa-serial=on,memory-backend=ram"});
  add(words, {"-m", fmt::format("{}M", memory), "-smp", std::to_string(shape.processors)});
  // The guest's memory is a file: one of its own, or the image's, of which only what changes is its own. Its pages are
  // not for the host to merge with a neighbour's equal ones: how long a write takes would tell what he has.
  add(words, {"-object",
              restored ? fmt::format("memory-backend-file,id=ram,size={}M,mem-path=/{}/{},share=off,merge=off", memory,
                                     kMemory, kRamFile)
                       : fmt::format("memory-backend-file,id=ram,size={}M,mem-path=/proc/self/fd/6,share=on,merge=off",
                                     memory)});
  add(words, {"-object", "main-loop,id=loop,thread-pool-max=8"});
  std::string told = kernel_words(machine.kvm) +
                     fmt::format(" ISOLA_PROCESSES={} ISOLA_FILES={}", spec.limits.pids, spec.limits.open_files);
  if (!ipv6) told += " ipv6.disable=1";
  add(words, {"-kernel", std::string("/") + kKernel, "-initrd", std::string("/") + kInitrd, "-append", told});
  add(words, {"-blockdev",
              fmt::format("driver=raw,node-name=image,read-only=on,file.driver=file,file.filename=/{},"
                          "file.locking=off",
                          kImage),
              "-device", "virtio-blk-device,drive=image,serial=image"});
  // Nobody counts on the disk after a crash of the host: what was written is in the host's memory, and that is enough.
  add(words, {"-blockdev",
              fmt::format("driver=raw,node-name=disk,cache.no-flush=on,discard=unmap,file.driver=file,"
                          "file.filename=/{},file.locking=off",
                          kDisk),
              "-device", "virtio-blk-device,drive=disk,serial=disk"});
  add(words, {"-device", "virtio-serial-device,max_ports=2", "-chardev", "socket,id=link,fd=3", "-device",
              "virtserialport,chardev=link,nr=1,name=isola"});
  add(words, {"-netdev", "tap,id=net,fd=4", "-device", "virtio-net-device,netdev=net,mac=52:69:73:6f:6c:61"});
  // What the guest's kernel has no use for goes back to the host.
  add(words, {"-device", "virtio-balloon-device,free-page-reporting=on"});
  add(words, {"-chardev", "socket,id=monitor,fd=5", "-mon", "chardev=monitor,mode=control"});
  add(words, {"-chardev", "socket,id=console,fd=7", "-serial", "chardev:console"});
  if (restored) add(words, {"-incoming", "defer"});
  return words;
}

std::vector<std::string> probe_line(const Machine& machine, const std::string& archive) {
  auto words = bare_machine(machine.engine(), true);
  add(words, {"-M", "microvm,x-option-roms=off,acpi=on,pit=off,pic=off,isa-serial=off", "-m", "128M", "-device",
              "isa-debug-exit,iobase=0xf4,iosize=1", "-kernel", machine.kernel(), "-initrd", archive, "-append",
              kernel_words(true) + " ISOLA_PROBE=1"});
  return words;
}

}  // namespace isola::boundary::microvm
