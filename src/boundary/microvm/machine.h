// The virtual machine's program (QEMU), its kernel and what goes with them, as they are found on this machine:
// `./dev up --boundary microvm` puts them into one folder (scripts/dev/microvm.sh).
//
//   auto machine = Machine::find();
//   if (!machine) say(machine.error().message);    // what is missing
//
// ISOLA_MICROVM names another folder than that of the usual place; "none" is none at all.
//
// Whether the processor helps (KVM) is not to be seen from /dev/kvm, which may be there and not work: a guest is
// started with it, and it counts if that guest comes up. That is tried once for each start of the host and remembered
// (/run/isola); ISOLA_MICROVM_ACCEL=tcg or kvm decides it instead. Without it QEMU translates the guest's instructions
// (TCG), which is many times slower.
#pragma once

#include <string>

#include "base/error.h"

namespace isola::boundary::microvm {

struct Machine {
  std::string folder;          // without symbolic links
  std::string kernel_version;  // "6.1.0-55-cloud-amd64"
  std::string kernel_build;    // "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2 (2026-11-16)", or empty
  std::string qemu_version;    // "7.2.22"
  std::string source;          // which QEMU of this machine that is
  bool outdated = false;       // that one is another by now: an update does not help before it is copied again
  bool kvm = false;
  std::string why_not;  // if not: what is in the way of KVM

  std::string kernel() const { return folder + "/kernel"; }
  std::string modules() const { return folder + "/modules"; }
  std::string disk() const { return folder + "/disk.ext4"; }
  std::string engine() const { return folder + "/engine"; }

  // Without the question for KVM.
  static Result<Machine> find();
  // Asks, or remembers. `archive`: what the kernel starts from, with isola-guest in it.
  void look_for_kvm(const std::string& archive);
  // The same, of those who only want to know what was found: nothing is tried.
  void recall_kvm();
  // It works, but newer ones mend much; empty: recent enough.
  std::string concern() const;
  std::string staleness() const;  // that part of it that is about the copy alone; empty: it is as new as its source
  std::string kernel_concern() const;  // of the guest's kernel alone
};

// From the file `versions` of such a folder.
Result<Machine> parse_versions(const std::string& text);

// How many of the processor's ticks (TSC) are in a second, in thousands: a translated guest sees the host's counter,
// and may hang when it measures that by itself.
uint64_t ticks_per_millisecond();

}  // namespace isola::boundary::microvm
