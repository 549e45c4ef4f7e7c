// The launcher's helper for what takes long: emptying and removing control groups, deleting writable layers. One
// process for the launcher's whole life, so that clearing up never makes a create wait. It is told names only, and
// every job can be done twice: a janitor that dies is replaced and gets its unfinished jobs again.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <set>
#include <string>

#include "base/error.h"
#include "base/fd.h"
#include "image/layer_store.h"
#include "kernel/cgroup.h"

namespace isola::launcher {

class Janitor {
 public:
  Janitor(const kernel::CgroupTree& cgroups, image::LayerStore& layers) : cgroups_(cgroups), layers_(layers) {}
  ~Janitor();
  Janitor(const Janitor&) = delete;
  Janitor& operator=(const Janitor&) = delete;

  Result<void> start();
  int fd() const { return socket_.get(); }
  // Removes the control group and the layer called `id`, if they exist.
  Result<void> clear(const std::string& id);
  // Closes descriptors whose closing takes long. Best effort: without a janitor they are closed here.
  void drop(std::vector<Fd> fds);
  // When fd() is readable: calls `done(id)` for each finished job. Fails with Code::unavailable when the janitor died:
  // then start() another after a pause, and it gets the unfinished jobs.
  // A job that failed is told with good = false and forgotten: clear() it again.
  Result<void> collect(const std::function<void(const std::string& id, bool good)>& done);
  size_t pending() const { return jobs_.size(); }
  pid_t pid() const { return pid_; }

 private:
  int work(int socket) const;  // in the helper

  const kernel::CgroupTree& cgroups_;
  image::LayerStore& layers_;
  Fd socket_;
  pid_t pid_ = -1;
  Result<void> hand_out();

  std::set<std::string> jobs_;       // all unfinished ones
  std::deque<std::string> waiting_;  // those not yet told to the helper: neither side's socket may ever fill up
};

}  // namespace isola::launcher
