// Cells: what is done beside everything else, by helpers at their leisure: images are read through, sealed, packed and
// unpacked, and what nobody needs any more is cleared away (the janitor). A few helpers at a time: whoever asks for a
// thousand has them done one after the other.
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
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

void Cells::read_through(const std::string& name, std::function<Result<void>()> body, Done done) {
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
  in_turn(images_line_, [this, work, over] { do_aside({.name = "isola-check"}, work, over); });
}

void Cells::do_aside(const kernel::Helper::Options& options, const kernel::Helper::Body& body, Done done) {
  ask_aside(options, body, [done = std::move(done)](const Result<std::string>& answer) {
    done(answer ? Result<void>() : std::unexpected(answer.error()));
  });
}

void Cells::ask_aside(const kernel::Helper::Options& options, const kernel::Helper::Body& body, Answered done) {
  auto helper = kernel::Helper::start(options, body);
  if (!helper) return done(std::unexpected(helper.error()));
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
  if (watched) return;
  auto told = std::move(checking_[fd].done);
  checking_.erase(fd);
  told(std::unexpected(watched.error()));
}

void Cells::verify_image(const std::string& id, bool thorough, Done done) {
  auto image = store_.find(id);
  if (!image) return done(std::unexpected(image.error()));
  if (packing_.contains(id)) return done(fail(Code::unavailable, "image " + id + " is just being packed or unpacked"));
  for (const auto& layer : image->layers)
    if (!image->packed() && !parts_.layers.path(layer))
      return done(fail(Code::corrupt, "image " + id + ": its layer " + layer + " is gone"));
  // A scrub is about what was written, whoever could use it.
  if (auto usable = thorough ? Result<void>() : fits_here(*image); !usable) return done(usable);
  read_through(
      "image " + id, [store = store_, image = *image, thorough] { return store.verify(image, thorough); },
      [this, id, packed = image->packed(), done = std::move(done)](const Result<void>& result) {
        auto now = store_.find(id);
        // What was not found where it was is not damaged for that.
        if (!result && (packing_.contains(id) || (now && now->packed() != packed)))
          return done(fail(Code::unavailable, "image " + id + " was packed or unpacked meanwhile"));
        done(result);
      });
}

// SHA-256 takes longer than a sandbox should wait for its pause: it is added afterwards, one image at a time.
void Cells::seal_next() {
  if (!sealing_.empty() || to_seal_.empty()) return;
  std::string id = *to_seal_.begin();
  to_seal_.erase(to_seal_.begin());
  sealing_ = id;
  read_through(
      "image " + id, [store = store_, id] { return store.seal(id); },
      [this, id](const Result<void>& sealed) {
        sealing_.clear();
        if (!sealed && sealed.error().code != Code::not_found && kept_.contains(id))
          log::error("launcher", "image {}: {}", id, sealed.error().message);
        if (auto waits = std::exchange(after_seal_, nullptr)) waits();
        seal_next();
      });
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
