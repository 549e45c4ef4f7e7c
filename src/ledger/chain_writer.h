// The one writer of a ledger: a bounded queue, and a thread that chains what is in it and commits it in groups: what
// came within a few milliseconds, and as soon as somebody waits.
//
// When the file cannot be written (the disk is full), entries that were taken without a promise stay in the queue and
// are tried again; those whose caller waits are refused and not written later, so that "refused" means "never
// happened". A full queue makes callers wait; a full queue that cannot be written refuses at once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ledger/event.h"
#include "ledger/ratchet.h"
#include "ledger/usage.h"
#include "store/sqlite.h"

namespace isola::ledger {

class ChainWriter {
 public:
  // Called once, on the writer's thread: the sequence number, or why it was not written. Must not wait for anything.
  using Done = std::function<void(Result<uint64_t>)>;
  struct Item {
    std::optional<Event> event;  // none: only asks to be told when what came before it is written
    std::optional<UsageRow> usage;
    Done done;             // none: no promise was made
    bool goes_on = false;  // the next one belongs to the same transaction
    uint64_t at = 0;       // the newest entry when it was its turn
  };

  struct Options {
    size_t most_items, most_bytes;
    sqlite::Sync sync = sqlite::Sync::normal;
    // With Sync::normal: an entry that somebody waits for is on the disk when he hears of it, with all before it. Those
    // that nobody waits for, and whoever only asks for the file, do not pay for that.
    bool awaited_on_disk = false;
    uint64_t checkpoint_entries = 0;                // a ledger.checkpoint after so many entries; 0: never
    std::chrono::milliseconds checkpoint_every{0};  // … and when so long after the last one something is written
    std::function<void(uint64_t)> written = {};     // hears the newest entry after each commit; must not wait
  };
  // The ratchet's key is the one of the entry after `head`.
  ChainWriter(sqlite::Database db, Head head, Ratchet ratchet, Options options);
  ~ChainWriter();  // writes what is queued
  ChainWriter(const ChainWriter&) = delete;
  ChainWriter& operator=(const ChainWriter&) = delete;

  Result<void> add(Item item);
  // All of these in one transaction: they are all in the file, or none is. Nobody waits for one of them.
  Result<void> add_together(std::vector<Item> items);
  // Runs on the writer's thread between two commits, with everything that is the thread's alone: what it leaves there
  // is what the next commit finds. A database that it takes away is opened again.
  using Turn = std::function<void(std::optional<sqlite::Database>& db, Ratchet& ratchet, Head& head)>;
  Result<void> between(Turn turn);
  Head head() const;
  // Why the last attempt failed, if it did.
  Result<void> health() const;

 private:
  void run();
  // Writes the batch in one transaction. The head moves only if all of it is there.
  Result<Head> commit(std::deque<Item>& batch, Head head);
  Result<void> open_again();
  Result<void> choose_sync(const std::deque<Item>& batch);
  Result<void> write(Item& item, Head& head, ChainKey& key);
  bool checkpoint_due(const Head& head) const;
  static constexpr size_t kMostPerCommit = 1024;
  bool full() const { return queue_.size() >= options_.most_items || bytes_ >= options_.most_bytes; }
  // There is enough for a commit of its own.
  bool hurried() const { return queue_.size() >= kMostPerCommit || full(); }
  static size_t weight(const Item& item);

  const std::string path_;
  std::optional<sqlite::Database> db_;  // the thread's alone
  bool syncs_ = false;                  // what `db_` was told last
  Ratchet ratchet_;                     // likewise
  uint64_t checkpoint_ = 0;
  std::chrono::steady_clock::time_point checkpoint_time_ = std::chrono::steady_clock::now();
  const Options options_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, room_;
  std::deque<Item> queue_;
  size_t bytes_ = 0;
  Head head_;
  Turn turn_;
  std::optional<Error> failure_;
  bool stop_ = false;
  bool awaited_ = false;  // somebody waits: try again now
  std::thread thread_;    // last: starts when all of the above is there
};

}  // namespace isola::ledger
