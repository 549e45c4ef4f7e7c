#include "image/sums_ahead.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <system_error>

#include "image/tree.h"

namespace isola::image {

void SumsAhead::start() {
  changes_ = Fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  stop_ = Fd(::eventfd(0, EFD_CLOEXEC));
  if (!changes_ || !stop_ || ::inotify_add_watch(changes_.get(), folder_.c_str(), IN_CREATE | IN_MODIFY) < 0) return;
  try {
    thread_ = std::thread([this] { follow(); });
  } catch (const std::system_error&) {  // no thread to be had
  }
}

KnownSums SumsAhead::finish() {
  if (thread_.joinable()) {
    uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }
  open_.clear();
  return std::move(known_);
}

void SumsAhead::follow() {
  pollfd both[] = {{stop_.get(), POLLIN, 0}, {changes_.get(), POLLIN, 0}};
  for (;;) {
    // What happens from here on is said anew.
    char events[4096];
    while (::read(changes_.get(), events, sizeof events) > 0) {
    }
    const bool more = look();
    // With nothing new there is nothing to do before the next change.
    int said = ::poll(both, 2, more ? 0 : -1);
    if (said < 0 && errno != EINTR) return;
    if (both[0].revents != 0) return;
  }
}

bool SumsAhead::look() {
  auto names = list_dir(folder_);
  if (!names) return false;
  bool more = false;
  for (const auto& name : *names) {
    if (!name.starts_with(prefix_)) continue;
    Fd& file = open_[name];
    if (!file) file = Fd(::openat(AT_FDCWD, (folder_ + "/" + name).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    struct stat st{};
    if (!file || ::fstat(file.get(), &st) < 0 || !S_ISREG(st.st_mode)) continue;
    auto& sums = known_[name];
    // One at a time: whoever waits for the end of this waits for one chunk at most.
    const uint64_t end = (sums.size() + 1) * kChunk;
    if (static_cast<uint64_t>(st.st_size) < end) continue;
    auto sum = sum_chunk(file.get(), end - kChunk, kChunk);
    if (!sum) continue;
    sums.push_back(*sum);
    ++chunks_;
    (void)::sync_file_range(file.get(), static_cast<off_t>(end - kChunk), kChunk, SYNC_FILE_RANGE_WRITE);
    more = true;
  }
  return more;
}

}  // namespace isola::image
