#include <fmt/format.h>

#include "base/hash/sha256.h"
#include "ledger/ledger.h"
#include "ledger/segments.h"

namespace isola::ledger {

namespace {

// Portions, so that no long read keeps the log of the database from being cleared.
constexpr size_t kPortion = 4096;

// Walks the chain entry by entry; stops at the first that is wrong.
class Walk {
 public:
  explicit Walk(const VerifyOptions& options) : options_(options), expected_(options.expected) {}

  // A gap that the ledger itself tells of is a fault, and no reason not to look at what comes after it.
  Result<Verdict> over(sqlite::Database& db) {
    ISOLA_TRY(Verdict verdict, walk(db));
    if (gap_from_ == 0) return verdict;
    std::string gap =
        fmt::format("entries {} to {} are missing: they were cut off, or went with the power", gap_from_, gap_to_);
    verdict.what = verdict.good() ? gap : gap + "; and " + verdict.what;
    verdict.broken = gap_from_;
    return verdict;
  }

 private:
  Result<Verdict> walk(sqlite::Database& db) {
    // A backup may be of a version before API keys, or before macs.
    ISOLA_TRY(int64_t keys, db.integer("SELECT count(*) FROM pragma_table_info('events') WHERE name = 'key'"));
    ISOLA_TRY(int64_t macs, db.integer("SELECT count(*) FROM pragma_table_info('events') WHERE name = 'mac'"));
    has_keys_ = keys > 0;
    has_macs_ = macs > 0;
    ISOLA_TRY(start_, segment_start(db));
    verdict_.head = start_;
    if (options_.follows && *options_.follows != start_) {
      ISOLA_CHECK(
          broken(options_.follows->seq + 1, "is missing: the file does not begin where the one before it ended"));
      return verdict_;
    }
    ISOLA_CHECK(check_start());
    if (!verdict_.good()) return verdict_;
    ISOLA_CHECK(check_opening(db));
    bool more = true;
    while (more && verdict_.good()) {
      ISOLA_TRY(more, portion(db));
    }
    if (verdict_.good() && options_.keys && verdict_.entries > 0 && verdict_.keyed == 0)
      ISOLA_CHECK(broken(verdict_.head.seq + 1, "is missing: of the entries that were made with the key none is left"));
    if (!verdict_.good()) return verdict_;
    // Every entry had its own sample, or none; what is left over belongs to entries that are gone.
    ISOLA_TRY(auto stray, db.prepare("SELECT count(*) FROM usage WHERE seq < 1 OR (seq > ? AND seq NOT IN (SELECT seq "
                                     "FROM events WHERE seq > ?))"));
    ISOLA_TRY(bool row, stray.bind(verdict_.head.seq, verdict_.head.seq).step());
    uint64_t next = verdict_.head.seq + 1;
    if (row && stray.integer(0) > 0) {
      ISOLA_CHECK(broken(next, "is missing, its usage sample is still there"));
    } else if (expected_ && expected_->seq >= next) {
      ISOLA_CHECK(broken(next, fmt::format("is missing, and everything after it up to {}", expected_->seq)));
    }
    if (!verdict_.good()) return verdict_;
    // A backup may be of a version before them.
    ISOLA_TRY(int64_t kept, db.integer("SELECT count(*) FROM sqlite_schema WHERE name = 'usage_totals'"));
    if (kept == 0) return verdict_;
    // Two sets of as many rows, none of the one missing in the other. Sums of fractions depend on their order.
    constexpr std::string_view kWhole =
        "kind, name, project, from_ms, to_ms, cpu_usec, bytes_out, commands, wall_ms, samples, idle_ms";
    ISOLA_TRY(int64_t wrong,
              db.integer(fmt::format("SELECT (SELECT count(*) FROM usage_totals) <> (SELECT count(*) FROM usage_sums) "
                                     "OR EXISTS (SELECT {0} FROM usage_totals EXCEPT SELECT {0} FROM usage_sums)",
                                     kWhole)));
    if (wrong) {
      verdict_.broken = next;
      verdict_.what = "the kept sums of usage differ from the samples";
    }
    return verdict_;
  }

  // A head that was kept and is not among the entries that are here can only say something about where they begin.
  Result<void> check_start() {
    if (!expected_ || expected_->seq > start_.seq) return {};
    if (expected_->seq < start_.seq)
      return broken(
          expected_->seq + 1,
          fmt::format("is missing, and everything up to {}: the checkpoint is older than the first entry that "
                      "is here, so nothing can be compared with it",
                      start_.seq));
    if (expected_->hash != start_.hash)
      return broken(start_.seq + 1, "does not follow the one whose hash was kept: the ledger was rewritten");
    return {};
  }

  // The sums that the file begins with are those that its first entry speaks of.
  Result<void> check_opening(sqlite::Database& db) {
    if (start_.seq == 0) return {};
    ISOLA_TRY(auto first, db.prepare("SELECT kind, data FROM events WHERE seq = ?"));
    ISOLA_TRY(bool row, first.bind(start_.seq + 1).step());
    if (!row || first.text(0) != to_string(Kind::ledger_rotated))
      return broken(start_.seq + 1, "does not begin a file");
    ISOLA_TRY(std::string digest, opening_digest(db));
    if (first.text(1).find("\"opening\":\"" + digest + "\"") == std::string::npos)
      return broken(start_.seq + 1, "speaks of other sums of usage than the file begins with");
    return {};
  }

  // The key for this entry: moved on from the last one, or that of a new beginning.
  Result<void> check_mac(const Event& e) {
    if (!options_.keys) return {};
    if (key_.seq() > 0 && key_.seq() + 1 == e.seq && !options_.keys->begins_at(e.seq)) {
      ISOLA_CHECK(key_.forward());
    } else {
      auto key = options_.keys->for_entry(e.seq);
      if (!key) return broken(e.seq, "has a key that is not at hand");
      key_ = std::move(*key);
    }
    ISOLA_TRY(std::string mac, key_.mac(e.hash));
    if (!equal_secrets(mac, e.mac)) return broken(e.seq, "was not written with the ledger's key: it was made anew");
    ++verdict_.keyed;
    return {};
  }

  // The walk itself went well: the Result is about reading.
  Result<void> broken(uint64_t seq, std::string_view what) {
    verdict_.broken = seq;
    verdict_.what = fmt::format("entry {} {}", seq, what);
    return {};
  }

  Result<bool> portion(sqlite::Database& db) {
    ISOLA_TRY(auto query,
              db.prepare(fmt::format(
                  "SELECT e.seq, time, e.project, e.sandbox, e.task, actor, kind, data, prev, hash, {}, {}, u.seq, "
                  "u.project, u.sandbox, u.task, from_ms, to_ms, cpu_usec, memory_byte_seconds, disk_byte_seconds, "
                  "bytes_out, commands, wall_ms FROM events e LEFT JOIN usage u ON u.seq = e.seq "
                  "WHERE e.seq > ? ORDER BY e.seq LIMIT ?",
                  has_keys_ ? "e.key" : "''", has_macs_ ? "e.mac" : "''")));
    // From the very beginning: numbers below 1 are no place to hide.
    query.bind(verdict_.entries ? static_cast<int64_t>(verdict_.head.seq) : INT64_MIN, kPortion);
    for (size_t i = 0; i < kPortion; ++i) {
      ISOLA_TRY(bool row, query.step());
      if (!row) return false;
      ISOLA_CHECK(entry(query));
      if (!verdict_.good()) return false;
    }
    return true;
  }

  Result<void> entry(const sqlite::Statement& statement) {
    sqlite::Row row(statement);
    if (statement.integer(0) <= static_cast<int64_t>(start_.seq) && verdict_.entries == 0)
      return broken(start_.seq + 1, "is not the first: something was put before it");
    Event e{.seq = row.integer<uint64_t>(),
            .time = row.integer(),
            .project = row.text(),
            .sandbox = row.text(),
            .task = row.text(),
            .actor = row.text()};
    std::string kind = row.text();
    e.data = row.text();
    e.prev = row.text();
    e.hash = row.text();
    e.key = row.text();
    e.mac = row.text();
    const Head& last = verdict_.head;
    if (e.seq != last.seq + 1) {
      if (e.seq <= last.seq || kind != to_string(Kind::ledger_gap) ||
          e.data != fmt::format(R"({{"from":{},"to":{}}})", last.seq + 1, e.seq - 1))
        return broken(last.seq + 1, "is missing");
      if (gap_from_ == 0) gap_from_ = last.seq + 1, gap_to_ = e.seq - 1;
    }
    if (e.prev != last.hash) return broken(e.seq, "does not follow the one before it");
    const bool keyed = !e.mac.empty();
    ISOLA_TRY(std::string hash, chain_hash(e, kind, last.hash, keyed));
    if (hash != e.hash) return broken(e.seq, "was changed after it was written");
    if (!keyed && keyed_before_) return broken(e.seq, "has no mac, though the one before it has");
    // Whoever has the newest key could else write everything before it anew, as if it were older than all keys.
    if (!keyed && options_.keys && options_.keys->covers(e.seq))
      return broken(e.seq, "has no mac, though there was a key for it");
    keyed_before_ = keyed;
    if (keyed) {
      ISOLA_CHECK(check_mac(e));
      if (!verdict_.good()) return {};
    }
    if (expected_ && expected_->seq == e.seq && expected_->hash != e.hash)
      return broken(e.seq, "is not the one whose hash was kept: the ledger was rewritten");
    bool has_sample = row.integer() != 0;
    if (has_sample != (kind == to_string(Kind::usage_sample)))
      return broken(e.seq, has_sample ? "has a usage sample that is not its own" : "has lost its usage sample");
    if (has_sample && !same_sample(row, e)) return broken(e.seq, "differs from its usage sample");
    verdict_.head = {.seq = e.seq, .hash = std::move(e.hash)};
    ++verdict_.entries;
    return {};
  }

  static bool same_sample(sqlite::Row& row, const Event& e) {
    UsageRow u{
        .project = row.text(), .sandbox = row.text(), .task = row.text(), .from = row.integer(), .to = row.integer()};
    u.used = {.cpu_usec = row.integer<uint64_t>(),
              .memory_byte_seconds = row.real(),
              .disk_byte_seconds = row.real(),
              .bytes_out = row.integer<uint64_t>(),
              .commands = row.integer<uint64_t>(),
              .wall_ms = row.integer<uint64_t>()};
    auto data = to_data(u);
    return data && *data == e.data && u.project == e.project && u.sandbox == e.sandbox && u.task == e.task;
  }

  const VerifyOptions& options_;
  const std::optional<Head>& expected_;
  Verdict verdict_;
  Head start_;
  uint64_t gap_from_ = 0, gap_to_ = 0;  // the first one
  ChainKey key_;
  bool keyed_before_ = false;
  bool has_keys_ = true, has_macs_ = true;
};

}  // namespace

Result<Verdict> verify_file(const std::string& path, const VerifyOptions& options) {
  ISOLA_TRY(auto db, sqlite::Database::open_reader(path));
  return Walk(options).over(db);
}

// By a connection of its own: a long walk holds up no query.
Result<Verdict> Ledger::verify(const std::optional<Head>& expected) {
  return verify_file(path_, {.expected = expected});
}

}  // namespace isola::ledger
