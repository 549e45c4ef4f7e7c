// The ledger: what happened, to whom, for which task, on whose behalf; append-only, in an order that cannot be changed
// unnoticed. One file, DIR/ledger.db, one process that writes; older ones beside it, once it was rotated (segments.h).
//
//   ISOLA_CHECK(ledger::provide_key(data + "/ledger.db", "/root/ledger.key", uid, gid));  // once, as root: ratchet.h
//   ISOLA_TRY(auto ledger, ledger::Ledger::open(data + "/ledger.db"));
//   ISOLA_CHECK(ledger->append({.project = p, .sandbox = id, .task = t, .actor = a, .kind = Kind::command_started,
//                               .data = R"({"argv":["ls"]})"}));                     // returns at once
//   ISOLA_TRY(uint64_t seq, ledger->append_durably({… .kind = Kind::secret_granted})); // is in the file when it
//   returns ISOLA_TRY(auto events, ledger->query({.sandbox = id})); ISOLA_TRY(auto verdict,
//   ledger->verify(head_kept_elsewhere));
//
// append() costs a few hundred nanoseconds and promises order, not survival: kill -9 can take what came in the last
// milliseconds. append_durably() promises both. Everything may be called from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "ledger/chain_writer.h"
#include "ledger/event.h"
#include "ledger/usage.h"
#include "store/sqlite.h"

namespace isola::ledger {

struct EventFilter {
  std::string project, sandbox, task;  // empty: any
  std::string kind_prefix;             // "sandbox.", or a whole word
  std::string secret;                  // what happened with the secret of this name; empty: everything
  Millis from = 0, to = 0;             // [from, to); 0: no bound
  uint64_t after = 0;                  // entries with a larger seq
  uint64_t before = 0;                 // … with a smaller one; 0: no bound
  size_t limit = 100;                  // at most 10000
  size_t bytes = 16 << 20;             // the page ends with the entry that makes it as heavy
  bool newest_first = false;
  Until until = {};  // then it is given up, with Code::timeout; none: never
};

struct Verdict {
  uint64_t entries = 0;  // that are right, from the first on
  uint64_t keyed = 0;    // of them: whose mac was checked
  Head head;             // the last of them
  std::optional<uint64_t> broken;
  std::string what;  // one sentence about the broken entry

  bool good() const { return !broken; }
};

struct LedgerOptions {
  sqlite::Sync sync = sqlite::Sync::normal;
  bool awaited_on_disk = false;  // append_durably() syncs the disk also with Sync::normal (chain_writer.h)
  size_t queue_items = 65536;    // beyond either, append() waits
  size_t queue_bytes = 64 << 20;
  uint64_t checkpoint_entries = 0;                // a ledger.checkpoint after so many entries; 0: never
  std::chrono::milliseconds checkpoint_every{0};  // and after so long; 0: never
  std::function<void(uint64_t)> written = {};     // hears the newest entry after each commit, on the writer's thread
};

struct Rotation {
  std::string file;  // of what was ended; its path
  Head head;         // where it ended
};

// Whether entries may follow this page, which the filter's question was answered with: it has as many as were asked
// for, or is heavy enough. Whoever goes on behind its last one misses none.
bool goes_on(const std::vector<Event>& page, const EventFilter& filter);

// Of one file, through a connection of the caller's own.
Result<std::vector<Event>> query_events(sqlite::Database& db, const EventFilter& filter);

class Ledger {
 public:
  // unavailable: another process has it open. denied: it has no key. corrupt: what is in it was not written with it.
  static Result<std::unique_ptr<Ledger>> open(const std::string& path, const LedgerOptions& options = {});

  // Waits only while the queue is full. exhausted and others: the file cannot be written and the queue is full.
  Result<void> append(Event event);
  Result<uint64_t> append_durably(Event event);
  // The same without waiting: `done` hears, on the writer's thread, the sequence number or why it was not written.
  Result<void> append_durably(Event event, ChainWriter::Done done);
  // An event of kind usage.sample, and its amounts where usage() sums them. The rows of one sample are in the file
  // together or not at all: whoever was killed goes on behind the newest sample that he finds.
  Result<void> record_usage(std::span<const UsageRow> rows);
  Result<void> record_usage(const UsageRow& row) { return record_usage(std::span(&row, 1)); }
  // Everything that was appended before is in the file.
  Result<void> flush();
  // The same without waiting: `done` hears, on the writer's thread, the newest entry that is in the file then.
  Result<void> flush(ChainWriter::Done done);
  // Ends the file and goes on in a new one (segments.h), while it is in use. unavailable: another process reads it.
  Result<Rotation> rotate();
  // Why nothing can be written at the moment, if so.
  Result<void> health() const { return writer_->health(); }

  // These see what is in the file: flush() first where the very latest matters. Those that have an `until` may take
  // long, and stand in nobody's way but their like's.
  Result<std::vector<Event>> query(const EventFilter& filter);
  Result<std::vector<UsageTotals>> usage(const UsageFilter& filter, GroupBy group);  // ordered by key
  Head head() const { return writer_->head(); }
  // Walks the whole chain. With a head that was kept elsewhere it also notices a cut-off end and a rewritten ledger. An
  // Error is a file that cannot be read; a chain that is broken is a Verdict.
  Result<Verdict> verify(const std::optional<Head>& expected = std::nullopt);

 private:
  Ledger(std::string path, Fd lock, std::unique_ptr<ChainWriter> writer, sqlite::Database reader)
      : path_(std::move(path)), lock_(std::move(lock)), writer_(std::move(writer)) {
    quick_.db = std::move(reader);
  }
  Result<ChainWriter::Item> item_of(Event event, std::optional<UsageRow> usage, ChainWriter::Done done) const;
  Result<void> submit(Event event, ChainWriter::Done done);
  struct Reader {
    std::mutex mutex;
    std::optional<sqlite::Database> db;
  };
  Result<void> each_file(const EventFilter& filter, const std::function<Result<bool>(sqlite::Database&)>& look);

  std::string path_;
  Fd lock_;  // held as long as the writer lives
  std::unique_ptr<ChainWriter> writer_;
  Reader patient_, quick_;  // locked in this order
};

struct VerifyOptions {
  std::optional<Head> expected = std::nullopt;  // that was kept elsewhere
  const VerificationKeys* keys = nullptr;       // none: macs are not checked
  std::optional<Head> follows = std::nullopt;   // where the file before it ended; none: what it says itself
  // Of several files: where those that were moved away ended. Only who keeps them elsewhere can say it.
  std::optional<Head> begins = std::nullopt;
};
// verify() for a file that no Ledger has open, such as a backup; also beside a server that writes to it.
Result<Verdict> verify_file(const std::string& path, const VerifyOptions& options = {});

}  // namespace isola::ledger
