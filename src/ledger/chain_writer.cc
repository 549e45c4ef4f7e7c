#include "ledger/chain_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/log.h"
#include "ledger/schema.h"

namespace isola::ledger {

namespace {
constexpr auto kRetry = std::chrono::seconds(1);
// What nobody waits for is left to gather: one commit instead of one for each, and not in the way of what it tells of.
constexpr auto kGather = std::chrono::milliseconds(5);
}  // namespace

ChainWriter::ChainWriter(sqlite::Database db, Head head, Ratchet ratchet, Options options)
    : path_(db.path()),
      db_(std::move(db)),
      ratchet_(std::move(ratchet)),
      checkpoint_(head.seq),
      options_(std::move(options)),
      head_(std::move(head)),
      thread_([this] { run(); }) {}

ChainWriter::~ChainWriter() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  room_.notify_all();
  thread_.join();
}

size_t ChainWriter::weight(const Item& item) {
  if (!item.event) return 0;
  const Event& e = *item.event;
  return sizeof(Item) + e.project.size() + e.sandbox.size() + e.task.size() + e.actor.size() + e.key.size() +
         e.data.size();
}

Result<void> ChainWriter::add(Item item) {
  std::vector<Item> one;
  one.push_back(std::move(item));
  return add_together(std::move(one));
}

Result<void> ChainWriter::add_together(std::vector<Item> items) {
  if (items.empty()) return {};
  const bool awaited = std::ranges::any_of(items, [](const Item& item) { return bool(item.done); });
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] { return stop_ || !full() || failure_; });
  if (stop_) return fail(Code::unavailable, "the ledger is closed");
  // Whoever waits for an answer gets it from the attempt itself, even now.
  if (full() && !awaited) return std::unexpected(failure_->in("the ledger cannot take more"));
  const bool first = queue_.empty();
  awaited_ = awaited_ || awaited;
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].goes_on = i + 1 < items.size();
    bytes_ += weight(items[i]);
    queue_.push_back(std::move(items[i]));
  }
  const bool wake = first || awaited_ || hurried();
  lock.unlock();
  if (wake) wake_.notify_one();
  return {};
}

Result<void> ChainWriter::between(Turn turn) {
  {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return stop_ || !turn_; });
    if (stop_) return fail(Code::unavailable, "the ledger is closed");
    turn_ = std::move(turn);
  }
  wake_.notify_one();
  return {};
}

Head ChainWriter::head() const {
  std::lock_guard lock(mutex_);
  return head_;
}

Result<void> ChainWriter::health() const {
  std::lock_guard lock(mutex_);
  if (failure_) return std::unexpected(*failure_);
  return {};
}

void ChainWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (failure_)
      wake_.wait_for(lock, kRetry, [&] { return stop_ || awaited_ || turn_; });
    else
      wake_.wait(lock, [&] { return stop_ || turn_ || !queue_.empty(); });
    if (turn_) {
      Turn turn = std::exchange(turn_, nullptr);
      Head head = head_;
      lock.unlock();
      (void)open_again();  // if it cannot be opened, there is none for whoever has the turn
      turn(db_, ratchet_, head);
      lock.lock();
      head_ = head;
      room_.notify_all();
      continue;
    }
    if (queue_.empty() && stop_) return;
    if (!failure_) wake_.wait_for(lock, kGather, [&] { return stop_ || awaited_ || hurried(); });
    awaited_ = false;
    std::deque<Item> batch;
    // After a failure all of it: whoever waits at the end of the queue must hear of this attempt.
    size_t most = failure_ ? queue_.size() : kMostPerCommit;
    while (!queue_.empty() && (batch.size() < most || batch.back().goes_on)) {
      bytes_ -= weight(queue_.front());
      batch.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    Head from = head_;
    lock.unlock();

    auto done = commit(batch, from);
    std::vector<Done> answers;
    std::vector<Result<uint64_t>> said;
    for (auto& item : batch) {
      if (!item.done) continue;
      answers.push_back(std::move(item.done));
      said.push_back(done ? Result<uint64_t>(item.at) : std::unexpected(done.error()));
      item.event.reset();  // answered: not to be tried again
    }

    lock.lock();
    if (done) {
      if (failure_) log::info("ledger", "writes again");
      failure_.reset();
      head_ = *done;
    } else {
      if (!failure_) log::error("ledger", "cannot write: {}", done.error().message);
      failure_ = done.error();
      for (auto item = batch.rbegin(); item != batch.rend(); ++item) {
        if (!item->event) continue;
        bytes_ += weight(*item);
        queue_.push_front(std::move(*item));
      }
    }
    uint64_t newest = done && done->seq != from.seq ? done->seq : 0;
    bool give_up = stop_ && failure_;
    if (give_up) {
      log::error("ledger", "closed with {} entries that could not be written", queue_.size());
      for (auto& item : queue_) {
        if (!item.done) continue;
        answers.push_back(std::move(item.done));
        said.push_back(std::unexpected(*failure_));
      }
    }
    lock.unlock();
    room_.notify_all();
    for (size_t i = 0; i < answers.size(); ++i) answers[i](std::move(said[i]));
    if (newest && options_.written) options_.written(newest);
    if (give_up) return;
    lock.lock();
  }
}

Result<Head> ChainWriter::commit(std::deque<Item>& batch, Head head) {
  if (std::none_of(batch.begin(), batch.end(), [](const Item& item) { return item.event.has_value(); })) {
    for (auto& item : batch) item.at = head.seq;
    return head;
  }
  ISOLA_CHECK(open_again());
  ISOLA_CHECK(choose_sync(batch));
  ISOLA_TRY(auto change, sqlite::Transaction::begin(*db_));
  ChainKey key = ratchet_.key();
  for (auto& item : batch) {
    if (item.event) ISOLA_CHECK(write(item, head, key));
    item.at = head.seq;
  }
  bool checkpoint = checkpoint_due(head);
  if (checkpoint) {
    Item item{.event = Event{.kind = Kind::ledger_checkpoint}};
    item.event->time = milliseconds_now();
    item.event->data = fmt::format(R"({{"head":"{}"}})", to_text(head));
    ISOLA_CHECK(write(item, head, key));
  }
  ISOLA_CHECK(change.commit());
  if (checkpoint) {
    checkpoint_ = head.seq;
    checkpoint_time_ = std::chrono::steady_clock::now();
  }
  // What was committed stays, whatever becomes of the key: an older one leads to every later one.
  if (auto moved = ratchet_.move_to(key); !moved) log::error("ledger", "{}", moved.error().message);
  return head;
}

Result<void> ChainWriter::open_again() {
  if (db_) return {};
  // Not made anew where it is missing: that would be another ledger.
  if (::access(path_.c_str(), F_OK) < 0) return sys_error("cannot open the ledger " + path_);
  ISOLA_TRY(db_, sqlite::Database::open(path_, kLedgerSchema, options_.sync));
  syncs_ = options_.sync == sqlite::Sync::full;
  return {};
}

Result<void> ChainWriter::choose_sync(const std::deque<Item>& batch) {
  if (options_.sync == sqlite::Sync::full || !options_.awaited_on_disk) return {};
  const bool wanted = std::ranges::any_of(batch, [](const Item& item) { return item.done && item.event; });
  if (wanted == syncs_) return {};
  ISOLA_CHECK(db_->run(wanted ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL"));
  syncs_ = wanted;
  return {};
}

bool ChainWriter::checkpoint_due(const Head& head) const {
  if (options_.checkpoint_entries && head.seq - checkpoint_ >= options_.checkpoint_entries) return true;
  return options_.checkpoint_every.count() > 0 &&
         std::chrono::steady_clock::now() - checkpoint_time_ >= options_.checkpoint_every;
}

Result<void> ChainWriter::write(Item& item, Head& head, ChainKey& key) {
  Event& e = *item.event;
  e.seq = head.seq + 1;
  std::string_view kind = to_string(e.kind);
  if (key.seq() != e.seq) return fail(Code::internal, "the ledger's key is not the one of its next entry");
  ISOLA_TRY(e.hash, chain_hash(e, kind, head.hash, true));
  ISOLA_TRY(e.mac, key.mac(e.hash));
  ISOLA_CHECK(key.forward());
  ISOLA_TRY(auto insert, db_->prepare("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  ISOLA_CHECK(
      insert.bind(e.seq, e.time, e.project, e.sandbox, e.task, e.actor, kind, e.data, head.hash, e.hash, e.key, e.mac)
          .run());
  if (item.usage) {
    const UsageRow& row = *item.usage;
    const Usage& u = row.used;
    ISOLA_TRY(auto sample, db_->prepare("INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
    ISOLA_CHECK(sample
                    .bind(e.seq, row.project, row.sandbox, row.task, row.from, row.to, u.cpu_usec,
                          u.memory_byte_seconds, u.disk_byte_seconds, u.bytes_out, u.commands, u.wall_ms)
                    .run());
  }
  head = {.seq = e.seq, .hash = e.hash};
  return {};
}

}  // namespace isola::ledger
