// A jail turned into a memory image, and a jail made from one: the sequence of steps that the launcher will follow,
// here in the hands of a test.
//
// The caller's surroundings are the launcher's: root, single-threaded, in a private copy of the launcher's mount
// namespace, with the stage as working folder.
//
//   Checkpointer checkpointer({.criu = …, .stage = …, .scratch = …, …});
//   ISOLA_TRY(Image image, checkpointer.dump(jail, keep_files));   // the jail ends
//   ISOLA_TRY(Jail next, checkpointer.restore(image));             // another id range, root, network, cgroup
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "boundary/jail/cell.h"
#include "boundary/jail/protections.h"
#include "boundary/network.h"
#include "criu_rpc.h"
#include "image/layer_store.h"
#include "kernel/cgroup.h"
#include "launcher/id_ranges.h"

namespace isola::criu {

struct Image {
  std::string folder;               // criu's files
  std::vector<std::string> lowers;  // what its root was made of, the uppermost first; all of it read-only from now on
};

// A child process; killed and waited for when this goes.
class OwnChild {
 public:
  explicit OwnChild(pid_t pid = 0) : pid_(pid) {}
  OwnChild(OwnChild&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  OwnChild& operator=(OwnChild&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~OwnChild();
  pid_t get() const { return pid_; }
  void wait();  // for an end that is on its way

 private:
  pid_t pid_;
};

// A living restored jail. Whatever is left of it when this goes, goes too.
struct Restored {
  OwnChild pid;
  uint32_t id_base = 0;
  std::string layer_id, upper;      // the writable layer
  std::vector<std::string> lowers;  // below it
  kernel::Cgroup cgroup;
  boundary::IslandSockets sockets;
  std::unique_ptr<boundary::jail::JailCell> cell;
  std::vector<std::string> points;  // what criu announced, in order
};

class Checkpointer {
 public:
  struct Parts {
    std::string criu;     // program
    std::string preload;  // its library, where one is needed
    std::string stage;    // where the launcher's stage is mounted: a path that everybody can walk
    std::string scratch;  // a folder for image files
    image::LayerStore& layers;
    const kernel::CgroupTree& cgroups;
    launcher::IdRanges& ranges;
    const boundary::IslandNetwork& network;
    std::vector<boundary::jail::MountRule> mounts;
    boundary::Limits limits;
  };
  explicit Checkpointer(Parts parts) : parts_(std::move(parts)) {}
  ~Checkpointer();

  // `frozen`: called while everything is stopped; gives the layers of the image, the uppermost first.
  Result<Image> dump(pid_t pid, const std::function<Result<std::vector<std::string>>()>& frozen);
  Result<Restored> restore(const Image& image);
  // Copies a writable layer as it is now into one of its own; gives its path.
  Result<std::string> copy_upper(const std::string& upper);

 private:
  Result<Fd> make_root(const Restored& next);
  Result<std::string> scratch_folder();

  Parts parts_;
  int count_ = 0;
  std::vector<std::string> layer_ids_;
  std::vector<uint32_t> bases_;
};

}  // namespace isola::criu
