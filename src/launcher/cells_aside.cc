// Cells: what is done beside everything else, by helpers at their leisure: images are read through, sealed, packed and
// unpacked, and what nobody needs any more is cleared away (the janitor). A few helpers at a time: whoever asks for a
// thousand has them done one after the other.
#include <linux/capability.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "image/tree_read.h"
#include "launcher/cells.h"

namespace isola::launcher {

namespace {

constexpr size_t kMostTurns = 4;  // of each line
constexpr auto kClearAgain = std::chrono::seconds(2);

}  // namespace

void Cells::in_turn(Line& line, std::function<void()> begin) {
  line.waiting.push_back(std::move(begin));
  next_turn(line);
}

void Cells::turn_over(Line& line) {
  --line.under_way;
  next_turn(line);
}

// In the order in which they came. One that is over at once is not the end of this loop, nor begins another.
void Cells::next_turn(Line& line) {
  if (std::exchange(line.giving, true)) return;
  while (line.under_way < kMostTurns && !line.waiting.empty()) {
    auto begin = std::move(line.waiting.front());
    line.waiting.pop_front();
    ++line.under_way;
    begin();
  }
  line.giving = false;
}

void Cells::read_through(const std::string& name, uint64_t capabilities, std::function<Result<void>()> body,
                         Done done) {
  auto work = [body = std::move(body)](kernel::Helper::Talk&) -> Result<std::string> {
    (void)::nice(10);
    auto read = body();
    if (!read) return std::unexpected(read.error());
    return "";
  };
  auto over = [this, name, done = std::move(done)](const Result<void>& result) {
    done(result || result.error().code != Code::internal ? result : std::unexpected(result.error().in(name)));
    turn_over(images_line_);
  };
  in_turn(images_line_, [this, capabilities, work, over] {
    do_aside({.name = "isola-check", .capabilities = capabilities}, work, over);
  });
}

void Cells::do_aside(const kernel::Helper::Options& options, const kernel::Helper::Body& body, Done done) {
  ask_aside(options, body, [done = std::move(done)](const Result<std::string>& answer) {
    done(answer ? Result<void>() : std::unexpected(answer.error()));
  });
}

int Cells::ask_aside(const kernel::Helper::Options& options, const kernel::Helper::Body& body, Answered done) {
  auto helper = kernel::Helper::start(options, body);
  if (!helper) {
    done(std::unexpected(helper.error()));
    return -1;
  }
  int fd = helper->fd();
  checking_[fd] = {std::move(*helper), std::move(done)};
  auto watched = parts_.loop.watch(fd, EPOLLIN, [this, fd](uint32_t) {
    auto it = checking_.find(fd);
    if (it == checking_.end()) return;
    auto word = it->second.helper.next();
    parts_.loop.unwatch(fd);
    auto told = std::move(it->second.done);
    checking_.erase(it);
    reap_soon();
    told(word ? Result<std::string>(std::move(word->bytes)) : std::unexpected(word.error()));
    if (on_change) on_change();
  });
  if (watched) return fd;
  auto told = std::move(checking_[fd].done);
  checking_.erase(fd);
  told(std::unexpected(watched.error()));
  return -1;
}

void Cells::verify_image(const std::string& id, bool thorough, std::optional<LaunchRequest> wanted, Done done) {
  auto image = store_.find(id);
  if (!image) return done(std::unexpected(image.error()));
  if (packing_.contains(id)) return done(fail(Code::unavailable, "image " + id + " is just being packed or unpacked"));
  for (const auto& layer : image->layers)
    if (!image->packed() && !parts_.layers.path(layer))
      return done(fail(Code::corrupt, "image " + id + ": its layer " + layer + " is gone"));
  // A scrub is about what was written, whoever could use it.
  if (auto usable = thorough ? Result<void>() : fits_here(*image); !usable) return done(usable);
  if (auto usable = wanted ? resolve_image(*wanted) : Result<void>(); !usable) return done(usable);
  // Of the files there are no sums but those of the filesystem, which it compares when somebody reads them.
  std::vector<std::string> trees;
  for (const auto& layer : image->layers)
    if (auto path = parts_.layers.path(layer); path && thorough) trees.push_back(*path + "/upper");
  auto body = [store = store_, image = *image, thorough, trees = std::move(trees)]() -> Result<void> {
    ISOLA_CHECK(store.verify(image, thorough));
    for (const auto& tree : trees)
      if (auto read = image::read_tree(tree); !read) return std::unexpected(read.error().in("image " + image.id));
    return {};
  };
  read_through("image " + id, thorough ? kernel::capability(CAP_DAC_READ_SEARCH) : 0, std::move(body),
               [this, id, packed = image->packed(), done = std::move(done)](const Result<void>& result) {
                 auto now = store_.find(id);
                 // What was not found where it was is not damaged for that.
                 if (!result && (packing_.contains(id) || (now && now->packed() != packed)))
                   return done(fail(Code::unavailable, "image " + id + " was packed or unpacked meanwhile"));
                 if (!result && !now && now.error().code == Code::not_found)
                   return done(fail(Code::not_found, "image " + id + " was dropped meanwhile"));
                 done(result);
               });
}

// SHA-256 takes longer than a sandbox should wait for its pause: it is added afterwards, one image at a time. It reads
// all of the image, as the restore of it does: whoever resumes it goes first, and it is sealed when that is over (and
// the image is there still: most that are resumed are used up).
void Cells::seal_next() {
  if (!sealing_.empty() || to_seal_.empty()) return;
  auto next = std::ranges::find_if(to_seal_, [this](const auto& id) { return !is_being_launched(id); });
  if (next == to_seal_.end()) return seal_later(std::chrono::seconds(1));
  std::string id = *next;
  to_seal_.erase(next);
  sealing_ = id;
  auto over = [this, id](const Result<std::string>& sealed, bool begun) {
    const bool stopped = std::exchange(sealing_stopped_, false), there = kept_.contains(id);
    sealing_.clear();
    sealing_fd_ = -1;
    turn_over(images_line_);
    // Nor is one given up for which there was no process to be had.
    if (!sealed && (stopped || !begun) && there && !packing_.contains(id)) to_seal_.insert(id);
    if (!sealed && !stopped && sealed.error().code != Code::not_found && there)
      log::error("launcher", "image {}: {}", id, sealed.error().message);
    if (auto waits = std::exchange(after_seal_, nullptr)) waits();
    begun || stopped ? seal_next() : seal_later(std::chrono::seconds(1));
  };
  in_turn(images_line_, [this, id, over] {
    if (is_being_launched(id)) {
      sealing_stopped_ = true;
      return over(fail(Code::unavailable, "it is being launched"), false);
    }
    auto work = [store = store_, id](kernel::Helper::Talk&) -> Result<std::string> {
      (void)::nice(10);
      ISOLA_CHECK(store.seal(id));
      return "";
    };
    auto begun = std::make_shared<bool>(false);
    auto done = [over, begun](const Result<std::string>& sealed) { over(sealed, *begun); };
    const int fd = ask_aside({.name = "isola-check"}, work, done);
    *begun = fd >= 0;
    if (*begun && sealing_ == id) sealing_fd_ = fd;
  });
}

void Cells::seal_later(std::chrono::milliseconds pause) {
  if (seal_timer_) return;
  seal_timer_ = parts_.loop.after(pause, [this] { seal_timer_.reset(), seal_next(); });
}

bool Cells::is_being_launched(const std::string& image) const {
  return std::ranges::any_of(cells_, [&](const auto& cell) {
    const One& one = *cell.second;
    return one.restored && !one.cell && one.entry.image == image;
  });
}

void Cells::stop_sealing(const std::string& image) {
  if (sealing_ != image || sealing_fd_ < 0) return;
  sealing_stopped_ = true;
  checking_.at(std::exchange(sealing_fd_, -1)).helper.kill();
}

// ---- the janitor ----------------------------------------------------------------------------------------------------

Result<void> Cells::watch_janitor() {
  return parts_.loop.watch(janitor_.fd(), EPOLLIN, [this](uint32_t) {
    std::vector<Janitor::Job> done, failed;
    auto collected =
        janitor_.collect([&](const Janitor::Job& job, bool good) { (good ? done : failed).push_back(job); });
    if (!collected) {
      log::error("launcher", "{}", collected.error().message);
      restart_janitor();
    }
    for (const auto& job : done) {
      to_clear_again_.erase(job);
      going_.erase(job);
      if (std::string id = Janitor::sandbox_of(job); !id.empty())
        cleared(id);
      else if (on_change)
        on_change();
      if (auto waits = after_jobs_.extract(job)) waits.mapped()({});
    }
    // Its ids and its journal entry are kept until nothing of it is left.
    for (const auto& job : failed) {
      to_clear_again_.insert(job);
      // It is tried again, but nobody is kept waiting for what may never be.
      if (auto waits = after_jobs_.extract(job))
        waits.mapped()(fail(Code::unavailable, "what lay there before cannot be removed"));
      parts_.loop.after(kClearAgain, [this, job] {
        if (to_clear_again_.erase(job)) (void)janitor_.take(job);
      });
    }
  });
}

// After a pause: whatever killed it may still be there.
void Cells::restart_janitor() {
  parts_.loop.after(std::chrono::milliseconds(200), [this] {
    if (auto started = janitor_.start(); !started) {
      log::error("launcher", "{}", started.error().message);
      restart_janitor();
    }
  });
}

}  // namespace isola::launcher
