// What the boundaries with an engine have in common (gvisor, uml, microvm): the engine is an ordinary program in a box
// that the jail makes (jail/furnish.h), with the sandbox's range of ids, its own namespaces and control groups, and a
// root that holds what that engine needs and nothing of the host. Each says what is in its box and how the engine is
// called; everything else is here.
//
//   class Uml : public box::Boxed { … };
//   uml->protections_.mounts = {box::bare_root("1m"), …};
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "boundary/boundary.h"
#include "boundary/jail/jail.h"
#include "kernel/mount.h"

namespace isola::boundary::box {

// How things are mounted in a box: nothing that lies in it can be run, but for the engine.
inline constexpr kernel::MountAttributes kQuiet{.nosuid = true, .nodev = true, .noexec = true};
inline constexpr kernel::MountAttributes kSealed{.read_only = true, .nosuid = true, .nodev = true, .noexec = true};
inline constexpr kernel::MountAttributes kPrograms{.read_only = true, .nosuid = true, .nodev = true};
inline constexpr kernel::MountAttributes kDevices{.read_only = true, .nosuid = true};

// The root of a box, empty.
jail::MountRule bare_root(const std::string& size, const std::string& inodes);

class Boxed : public Boundary {
 public:
  std::string describe_protections() const override { return protections_.describe(); }
  Result<void> verify_limits(const Limits& wanted, const kernel::CgroupLimits& installed) const override;
  Result<std::unique_ptr<Cell>> adopt(const CellName& name) override;

 protected:
  // The jail makes the boxes, and lives longer.
  Boxed(jail::Jail& jail, IslandNetwork network) : jail_(jail), network_(std::move(network)) {}
  // What every box of this kind has installed; the mounts are the boundary's own.
  Result<void> protect(uint64_t capabilities, uint32_t open_files, std::string filter_hash);

  jail::Jail& jail_;
  IslandNetwork network_;
  jail::Protections protections_;
};

// The archive that a kernel of the sandbox's own starts from, put on the stage under that name: isola-guest as /init,
// what every sandbox is given, and the files of the folder `modules`, if that is not empty.
Result<void> put_archive(const std::string& name, const std::string& modules = {});

// How many files a program inside may have open: the cell's handle says it, since it can be read from none of the
// engine's processes.
Result<uint32_t> open_files_of(const CellName& name);

}  // namespace isola::boundary::box
