#include "ledger/ledger.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <chrono>
#include <cmath>
#include <future>

#include "base/clock.h"
#include "base/hash/sha256.h"
#include "base/log.h"
#include "ledger/schema.h"
#include "ledger/segments.h"

namespace isola::ledger {

namespace {

constexpr size_t kLargestEvent = 1 << 20;

// A file of its own: the database's locks are dropped when any descriptor of it is closed.
Result<Fd> take_lock(const std::string& path) {
  Fd lock(::open((path + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (!lock) return sys_error("cannot create " + path + ".lock");
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return fail(Code::unavailable, "another process writes the ledger " + path);
    return sys_error("cannot lock " + path + ".lock");
  }
  return lock;
}

// A writer that was killed after a commit has left a key that is some entries behind: it moves on over those, and only
// over those that were made with it.
Result<void> catch_up(sqlite::Database& db, Ratchet& ratchet, const Head& head) {
  ChainKey key = ratchet.key();
  if (key.seq() > head.seq) return {};
  ISOLA_TRY(auto query, db.prepare("SELECT seq, hash, mac FROM events WHERE seq >= ? ORDER BY seq"));
  query.bind(key.seq());
  for (;;) {
    ISOLA_TRY(bool row, query.step());
    if (!row) break;
    ISOLA_TRY(std::string mac, key.mac(query.text(1)));
    if (key.seq() != static_cast<uint64_t>(query.integer(0)) || !equal_secrets(mac, query.text(2)))
      return fail(Code::corrupt,
                  fmt::format("entry {} of the ledger was not written by this server: `isola audit verify` says more",
                              query.integer(0)));
    ISOLA_CHECK(key.forward());
  }
  return ratchet.move_to(key);
}

}  // namespace

Result<Fd> take_ledger(const std::string& path) {
  ISOLA_TRY(Fd lock, take_lock(path));
  ISOLA_CHECK(finish_rotation(path));
  return lock;
}

Result<Head> last_entry(sqlite::Database& db) {
  ISOLA_TRY(auto query, db.prepare("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1"));
  ISOLA_TRY(bool any, query.step());
  if (any) return Head{.seq = static_cast<uint64_t>(query.integer(0)), .hash = query.text(1)};
  return segment_start(db);
}

Result<std::unique_ptr<Ledger>> Ledger::open(const std::string& path, const LedgerOptions& options) {
  ISOLA_TRY(Fd lock, take_ledger(path));
  ISOLA_TRY(Ratchet ratchet, Ratchet::open(path));
  ISOLA_TRY(auto db, sqlite::Database::open(path, kLedgerSchema, options.sync));
  ISOLA_TRY(Head head, last_entry(db));
  ISOLA_CHECK(catch_up(db, ratchet, head));
  // The key is further on than the entries: they were cut off, or went with the power. Their numbers stay empty.
  const uint64_t next = ratchet.key().seq(), gap = head.seq + 1;
  if (next > gap) {
    log::error("ledger", "entries {} to {} were written and are not there any more", gap, next - 1);
    head.seq = next - 1;
  }
  ISOLA_TRY(auto reader, sqlite::Database::open_reader(path));
  auto writer = std::make_unique<ChainWriter>(std::move(db), std::move(head), std::move(ratchet),
                                              ChainWriter::Options{.most_items = options.queue_items,
                                                                   .most_bytes = options.queue_bytes,
                                                                   .sync = options.sync,
                                                                   .awaited_on_disk = options.awaited_on_disk,
                                                                   .checkpoint_entries = options.checkpoint_entries,
                                                                   .checkpoint_every = options.checkpoint_every,
                                                                   .written = options.written});
  std::unique_ptr<Ledger> ledger(new Ledger(path, std::move(lock), std::move(writer), std::move(reader)));
  if (next > gap)
    ISOLA_CHECK(ledger->append_durably(
        {.kind = Kind::ledger_gap, .data = fmt::format(R"({{"from":{},"to":{}}})", gap, next - 1)}));
  return ledger;
}

Result<ChainWriter::Item> Ledger::item_of(Event event, std::optional<UsageRow> usage, ChainWriter::Done done) const {
  if (event.data.empty()) event.data = "{}";
  if (event.time == 0) event.time = milliseconds_now();
  size_t size = event.data.size();
  for (const std::string* text : {&event.project, &event.sandbox, &event.task, &event.actor, &event.key})
    size += text->size();
  if (size > kLargestEvent) return fail(Code::invalid, "an entry of the ledger is larger than 1 MiB");
  return ChainWriter::Item{.event = std::move(event), .usage = std::move(usage), .done = std::move(done)};
}

Result<void> Ledger::submit(Event event, ChainWriter::Done done) {
  ISOLA_TRY(auto item, item_of(std::move(event), std::nullopt, std::move(done)));
  return writer_->add(std::move(item));
}

Result<void> Ledger::append(Event event) { return submit(std::move(event), nullptr); }

Result<void> Ledger::append_durably(Event event, ChainWriter::Done done) {
  return submit(std::move(event), std::move(done));
}

Result<uint64_t> Ledger::append_durably(Event event) {
  std::promise<Result<uint64_t>> promise;
  auto answer = promise.get_future();
  ISOLA_CHECK(append_durably(std::move(event), [&](Result<uint64_t> said) { promise.set_value(std::move(said)); }));
  return answer.get();
}

Result<void> Ledger::record_usage(std::span<const UsageRow> rows) {
  std::vector<ChainWriter::Item> items;
  for (const auto& row : rows) {
    UsageRow whole = row;
    whole.used.memory_byte_seconds = std::round(row.used.memory_byte_seconds);
    whole.used.disk_byte_seconds = std::round(row.used.disk_byte_seconds);
    ISOLA_TRY(std::string data, to_data(whole));
    Event event{.time = row.to,
                .project = row.project,
                .sandbox = row.sandbox,
                .task = row.task,
                .kind = Kind::usage_sample,
                .data = std::move(data)};
    ISOLA_TRY(auto item, item_of(std::move(event), std::move(whole), nullptr));
    items.push_back(std::move(item));
  }
  return writer_->add_together(std::move(items));
}

Result<void> Ledger::flush(ChainWriter::Done done) { return writer_->add({.done = std::move(done)}); }

Result<void> Ledger::flush() {
  std::promise<Result<uint64_t>> promise;
  auto answer = promise.get_future();
  ISOLA_CHECK(flush([&](Result<uint64_t> said) { promise.set_value(std::move(said)); }));
  ISOLA_TRY(uint64_t seq, answer.get());
  static_cast<void>(seq);
  return {};
}

Result<Rotation> Ledger::rotate() {
  // Whoever reads through us waits; whoever writes does not.
  std::lock_guard patient(patient_.mutex);
  std::lock_guard quick(quick_.mutex);
  patient_.db.reset();
  quick_.db.reset();
  std::promise<Result<Rotation>> promise;
  auto answer = promise.get_future();
  ISOLA_CHECK(writer_->between(
      [&](auto& db, Ratchet& ratchet, Head& head) { promise.set_value(end_file(path_, db, ratchet, head)); }));
  return answer.get();
}

}  // namespace isola::ledger
