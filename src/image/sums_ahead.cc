#include "image/sums_ahead.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "image/tree.h"

namespace isola::image {

namespace {
constexpr uint64_t kLargestStep = 8 << 20;  // to the disk
}

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

bool SumsAhead::files_came() {
  bool came = false;
  alignas(inotify_event) char events[4096];
  for (ssize_t n; (n = ::read(changes_.get(), events, sizeof events)) > 0;)
    for (ssize_t at = 0; at < n;) {
      const auto* event = reinterpret_cast<const inotify_event*>(events + at);
      came |= (event->mask & (IN_CREATE | IN_Q_OVERFLOW)) != 0;
      at += static_cast<ssize_t>(sizeof *event + event->len);
    }
  return came;
}

void SumsAhead::follow() {
  pollfd both[] = {{stop_.get(), POLLIN, 0}, {changes_.get(), POLLIN, 0}};
  for (bool first = true;; first = false) {
    // What happens from here on is said anew.
    if (files_came() || first) list();
    const bool more = look();
    // With nothing new there is nothing to do before the next change.
    int said = ::poll(both, 2, more ? 0 : -1);
    if (said < 0 && errno != EINTR) return;
    if (both[0].revents != 0) return;
  }
}

void SumsAhead::list() {
  ++lists_;
  auto names = list_dir(folder_);
  if (!names) return;
  for (const auto& name : *names) {
    if (!name.starts_with(prefix_) || open_.contains(name)) continue;
    Fd file(::openat(AT_FDCWD, (folder_ + "/" + name).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    struct stat st{};
    if (file && ::fstat(file.get(), &st) == 0 && S_ISREG(st.st_mode)) open_[name].file = std::move(file);
  }
}

bool SumsAhead::look() {
  bool more = false;
  for (auto& [name, followed] : open_) {
    const int file = followed.file.get();
    struct stat st{};
    if (::fstat(file, &st) < 0) continue;
    auto& sums = known_[name];
    // One at a time: whoever waits for the end of this waits for one chunk at most.
    const uint64_t end = (sums.size() + 1) * kChunk;
    if (static_cast<uint64_t>(st.st_size) < end) continue;
    auto sum = sum_chunk(file, end - kChunk, kChunk);
    if (!sum) continue;
    sums.push_back(*sum);
    ++chunks_;
    more = true;
    // In steps that grow with the file: each is a request to the disk, and a small file shall be on its way, too.
    if (const uint64_t left = end - followed.sent; left >= std::clamp(end / 2, kChunk, kLargestStep)) {
      (void)::sync_file_range(file, static_cast<off_t>(followed.sent), static_cast<off_t>(left), SYNC_FILE_RANGE_WRITE);
      followed.sent = end;
    }
  }
  return more;
}

}  // namespace isola::image
