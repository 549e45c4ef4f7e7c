#include "store/checkpointer.h"

#include "base/log.h"

namespace isola::store {

namespace {
constexpr int kPages = 1000;  // 4 MiB: worth a copy
constexpr int kTooMany =
    16 * kPages;  // writers who never pause would let the log grow for ever: now they do it themselves
}  // namespace

Result<std::unique_ptr<Checkpointer>> Checkpointer::start(sqlite::Database& writer) {
  ISOLA_TRY(auto own, sqlite::Database::open_copier(writer.path()));
  return std::unique_ptr<Checkpointer>(new Checkpointer(writer, std::move(own)));
}

Checkpointer::Checkpointer(sqlite::Database& writer, sqlite::Database own)
    : own_(std::move(own)), writer_(writer), thread_([this] { run(); }) {
  writer_.on_log_growth([this](sqlite::Database& db, int pages) {
    if (pages < kPages) return;
    if (pages >= kTooMany) {
      // The commit itself is done: a failure here is the next attempt's business.
      if (auto done = db.checkpoint(); !done) log::warn("store", "{}", done.error().message);
      return;
    }
    {
      std::lock_guard lock(mutex_);
      wanted_ = true;
    }
    wake_.notify_one();
  });
}

Checkpointer::~Checkpointer() {
  writer_.on_log_growth([](sqlite::Database&, int) {});
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Checkpointer::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || wanted_; });
    if (stop_) return;
    wanted_ = false;
    lock.unlock();
    if (auto done = own_.checkpoint(); !done) log::warn("store", "{}", done.error().message);
    lock.lock();
  }
}

}  // namespace isola::store
