#include "image/sync_all.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/fd.h"
#include "kernel/fault.h"

namespace isola::image {

namespace {

constexpr size_t kAtOnce = 16;

Result<void> sync_one(const std::string& path) {
  // Without waiting: it may be a pipe that an engine of a sandbox left there.
  Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) < 0) return sys_error("cannot put " + path + " on disk");
  return {};
}

}  // namespace

Result<void> sync_all(const std::vector<std::string>& paths) {
  // Faults are counted in the order of the calls, so not by the threads.
  for (const auto& path : paths)
    if (int e = kernel::fault::at("fsync")) return sys_error("cannot put " + path + " on disk", e);
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  Result<void> done;
  auto work = [&] {
    for (size_t i; (i = next++) < paths.size();) {
      auto synced = sync_one(paths[i]);
      if (synced) continue;
      std::lock_guard lock(mutex);
      if (done) done = synced;
    }
  };
  std::vector<std::thread> others;
  try {
    while (others.size() + 1 < std::min(paths.size(), kAtOnce)) others.emplace_back(work);
  } catch (const std::system_error&) {  // as many as there can be
  }
  work();
  for (auto& thread : others) thread.join();
  return done;
}

}  // namespace isola::image
