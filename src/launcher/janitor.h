// The launcher's helper for what takes long: emptying and removing control groups, deleting layers and images. A few
// processes ("hands") for the launcher's whole life, so that clearing up never makes a create wait, and one large tree
// keeps no other sandbox from its end. They are told names only, and every job can be done twice: a hand that dies is
// replaced, and its unfinished jobs are given out again.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "image/layer_store.h"
#include "kernel/cgroup.h"

namespace isola::launcher {

class Janitor {
 public:
  // Where, besides the layer store, there are folders to remove; empty: nowhere.
  struct Places {
    std::string images;   // one folder per image
    std::string scratch;  // one per sandbox, of a restore
  };
  Janitor(const kernel::CgroupTree& cgroups, image::LayerStore& layers, Places places = {})
      : cgroups_(cgroups), layers_(layers), places_(std::move(places)) {}
  ~Janitor();
  Janitor(const Janitor&) = delete;
  Janitor& operator=(const Janitor&) = delete;

  Result<void> start();  // all hands, or those that died
  int fd() const { return ready_.get(); }
  // A job is a text: what collect() tells when it is done, and what can be given out again.
  using Job = std::string;
  // The control group called `id`, and a layer; an empty name: none. What does not exist is fine.
  // `helpers`: first the group of those who serve its buckets, for whom its processes may be waiting.
  static Job group_and_layer(const std::string& id, const std::string& layer, bool helpers = false) {
    return id + "/" + layer + (helpers ? "/" : "");
  }
  static Job image_folder(const std::string& image) { return "%" + image; }
  static Job scratch_folder(const std::string& id) { return "~" + id; }
  // The sandbox whose group (and layer) a job removes; empty: of none.
  static std::string sandbox_of(const Job& job) {
    return job[0] == '%' || job[0] == '~' ? "" : job.substr(0, job.find('/'));
  }

  Result<void> take(const Job& job);
  // The control group and the layer that are both called `id`.
  Result<void> clear(const std::string& id) { return take(group_and_layer(id, id)); }
  // Closes descriptors whose closing takes long. Best effort: without a janitor they are closed here.
  void drop(std::vector<Fd> fds);
  // When fd() is readable: calls `done(job)` for each finished job. Fails with Code::unavailable when a hand died: then
  // start() another after a pause; the others go on, with its unfinished jobs, too.
  // A job that failed is told with good = false and forgotten: take() it again.
  Result<void> collect(const std::function<void(const Job& job, bool good)>& done);
  size_t pending() const { return jobs_.size(); }
  std::vector<pid_t> pids() const;

 private:
  struct Hand {
    pid_t pid = -1;
    Fd socket;
    std::set<Job> jobs;  // under way
  };
  Result<Hand> start_hand();
  int work(int socket) const;  // in a hand
  bool work_on(const Job& job) const;

  const kernel::CgroupTree& cgroups_;
  image::LayerStore& layers_;
  Places places_;
  Fd ready_;  // epoll, of all hands' sockets
  std::vector<Hand> hands_;
  Hand* least_busy();
  void hand_out();
  void lose(Hand& hand);

  std::set<Job> jobs_;       // all unfinished ones
  std::deque<Job> waiting_;  // those that no hand has yet: neither side's socket may ever fill up
};

}  // namespace isola::launcher
