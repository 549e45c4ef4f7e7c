#include "ledger/segments.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash/sha256.h"
#include "base/log.h"
#include "ledger/schema.h"

namespace isola::ledger {

namespace {

namespace fs = std::filesystem;

std::string next_of(const std::string& path) { return path + ".next"; }

// ledger-FIRST-LAST.db; the numbers as wide as they get, so that the names sort.
std::string name_of(uint64_t first, uint64_t last) { return fmt::format("ledger-{:020}-{:020}.db", first, last); }
bool is_name(const std::string& name) {
  return name.size() == 7 + 20 + 1 + 20 + 3 && name.starts_with("ledger-") && name.ends_with(".db") &&
         name[27] == '-' && name.find_first_not_of("0123456789", 7) == 27;
}

struct Span {
  uint64_t first = 0, last = 0;
};
Span span_of(const std::string& name) {
  Span span;
  std::from_chars(name.data() + 7, name.data() + 27, span.first);
  std::from_chars(name.data() + 28, name.data() + 48, span.last);
  return span;
}

Result<void> rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) < 0) return sys_error("cannot rename " + from);
  return {};
}

// A database is up to three files. Closed well it is one.
Result<void> remove_database(const std::string& path) {
  for (const char* end : {"", "-wal", "-shm"})
    if (::unlink((path + end).c_str()) < 0 && errno != ENOENT) return sys_error("cannot remove " + path + end);
  return {};
}

// The new file with its first entry, whole before anything is renamed. The head and the key of that entry are the next.
Result<ChainKey> make_next(const std::string& path, const std::string& old_name, uint64_t first, Head& head,
                           const ChainKey& with) {
  ISOLA_CHECK(remove_database(next_of(path)));
  ISOLA_TRY(auto db, sqlite::Database::open(next_of(path), kLedgerSchema, sqlite::Sync::full));
  ISOLA_TRY(auto attach, db.prepare("ATTACH ? AS old"));
  ISOLA_CHECK(attach.bind(path).run());
  ISOLA_TRY(auto change, sqlite::Transaction::begin(db));
  ISOLA_CHECK(
      db.run("INSERT INTO usage_opening SELECT * FROM old.usage_totals; "
             "INSERT INTO usage_totals SELECT * FROM old.usage_totals"));
  ISOLA_TRY(auto start, db.prepare("INSERT INTO segment VALUES (?, ?)"));
  ISOLA_CHECK(start.bind(head.seq + 1, head.hash).run());
  ISOLA_TRY(std::string opening, opening_digest(db));
  Event e{.seq = head.seq + 1, .kind = Kind::ledger_rotated};
  e.time = milliseconds_now();
  e.data = fmt::format(R"({{"file":"{}","first":{},"last":{},"opening":"{}"}})", old_name, first, head.seq, opening);
  std::string_view kind = to_string(e.kind);
  ISOLA_TRY(e.hash, chain_hash(e, kind, head.hash, true));
  ChainKey key = with;
  ISOLA_TRY(e.mac, key.mac(e.hash));
  ISOLA_CHECK(key.forward());
  ISOLA_TRY(auto insert, db.prepare("INSERT INTO events VALUES (?, ?, '', '', '', '', ?, ?, ?, ?, '', ?)"));
  ISOLA_CHECK(insert.bind(e.seq, e.time, kind, e.data, head.hash, e.hash, e.mac).run());
  ISOLA_CHECK(change.commit());
  head = {.seq = e.seq, .hash = e.hash};
  return key;
}

}  // namespace

Result<Head> segment_start(sqlite::Database& db) {
  Head start{.seq = 0, .hash = kNoHash};
  // A backup may be of a version before them.
  ISOLA_TRY(int64_t there, db.integer("SELECT count(*) FROM sqlite_schema WHERE name = 'segment'"));
  if (!there) return start;
  ISOLA_TRY(auto query, db.prepare("SELECT first, prev FROM segment LIMIT 1"));
  ISOLA_TRY(bool row, query.step());
  if (!row) return start;
  if (query.integer(0) < 2) return fail(Code::corrupt, "a file of the ledger begins at an entry that cannot be");
  return Head{.seq = static_cast<uint64_t>(query.integer(0)) - 1, .hash = query.text(1)};
}

Result<std::string> opening_digest(sqlite::Database& db) {
  ISOLA_TRY(auto query, db.prepare("SELECT * FROM usage_opening ORDER BY kind, name, project"));
  std::string text;
  for (;;) {
    ISOLA_TRY(bool row, query.step());
    if (!row) break;
    for (int column = 0; column < 13; ++column) text += query.text(column) + '\n';
  }
  return sha256(text);
}

Result<void> finish_rotation(const std::string& path) {
  if (!is_there(next_of(path))) return {};
  if (is_there(path)) return remove_database(next_of(path));  // it had not begun to rename
  log::warn("ledger", "a rotation was interrupted: it is finished now");
  return rename_file(next_of(path), path);
}

Result<Rotation> end_file(const std::string& path, std::optional<sqlite::Database>& db, Ratchet& ratchet, Head& head) {
  if (!db) return fail(Code::unavailable, "the ledger cannot be written at the moment");
  ISOLA_TRY(Head start, segment_start(*db));
  const uint64_t first = start.seq + 1;
  if (head.seq < first) return fail(Code::invalid, "the ledger is empty");
  if (ratchet.key().seq() != head.seq + 1)
    return fail(Code::corrupt, "the ledger's key is not the one of its next entry");
  {
    // Its log goes by the file's name: whoever still had the old file open would take the new one's for its own, and
    // remove it. A file leaves its log behind only when nobody else has it open.
    ISOLA_TRY(auto leave, db->prepare("PRAGMA journal_mode = DELETE"));
    auto left = leave.step();
    if (!left || !*left || leave.text(0) != "delete")
      return fail(Code::unavailable, "somebody reads the ledger: try again");
  }
  const std::string name = name_of(first, head.seq);
  Rotation done{.file = fs::path(path).parent_path() / name, .head = head};
  Head next = head;
  auto key = make_next(path, name, first, next, ratchet.key());
  db.reset();  // opened again, it has a log again
  if (!key) return std::unexpected(key.error());
  ISOLA_CHECK(rename_file(path, done.file));
  if (auto renamed = rename_file(next_of(path), path); !renamed) {
    (void)rename_file(done.file, path);
    return std::unexpected(renamed.error());
  }
  head = next;
  // As after any commit: an older key leads to every later one.
  if (auto moved = ratchet.move_to(*key); !moved) log::error("ledger", "{}", moved.error().message);
  return done;
}

Result<Rotation> rotate(const std::string& path, const std::function<Result<void>(uint64_t)>& new_key) {
  {
    ISOLA_TRY(Fd lock, take_ledger(path));
    if (!is_there(path)) return fail(Code::not_found, "there is no ledger at " + path);
    if (new_key) {
      ISOLA_TRY(auto db, sqlite::Database::open(path, kLedgerSchema, sqlite::Sync::full));
      ISOLA_TRY(Head last, last_entry(db));
      ISOLA_CHECK(new_key(last.seq + 1));
    }
  }
  // A writer that was killed has left its key behind, and a cut-off end has to be told: opening does both.
  ISOLA_TRY(auto ledger, Ledger::open(path, {.sync = sqlite::Sync::full}));
  return ledger->rotate();
}

Result<std::vector<std::string>> segments_of(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(path).parent_path(), error))
    if (is_name(entry.path().filename())) files.push_back(entry.path());
  if (error) return fail(Code::not_found, "cannot read the folder of " + path + ": " + error.message());
  std::sort(files.begin(), files.end());
  files.push_back(path);
  return files;
}

bool may_hold(const std::string& file, const EventFilter& filter) {
  const std::string name = fs::path(file).filename();
  if (!is_name(name)) return true;
  const Span span = span_of(name);
  return span.last > filter.after && (filter.before == 0 || span.first < filter.before);
}

namespace {

// A server may be writing it at this very moment.
Result<Ratchet> read_ratchet(const std::string& path) {
  for (int attempt = 0;; ++attempt) {
    auto ratchet = Ratchet::open(path);
    if (ratchet || ratchet.error().code != Code::corrupt || attempt == 10) return ratchet;
  }
}

// The key never runs ahead of the entries, and nobody can take it back: one that does shows that the end was cut off.
void check_end(const Result<Ratchet>& ratchet, const VerificationKeys* keys, Verdict& verdict) {
  const uint64_t next = verdict.head.seq + 1;
  auto broken = [&](std::string what) {
    verdict.broken = next;
    verdict.what = std::move(what);
  };
  if (!ratchet) return broken(ratchet.error().message);
  const ChainKey& key = ratchet->key();
  if (keys) {
    auto rightful = keys->for_entry(key.seq());
    if (!rightful || !equal_secrets(rightful->key(), key.key()))
      return broken("the key that the server writes with is not the ledger's: somebody put another one there");
  }
  if (key.seq() > next)
    return broken(fmt::format("entry {} is missing, and everything after it up to {}: the server's key is further on",
                              next, key.seq() - 1));
}

}  // namespace

namespace {

// Files that were moved away leave nothing behind by which the rest could tell that from files that were deleted, or
// from a beginning that somebody made up.
Result<Verdict> check_beginning(const std::string& file, const VerifyOptions& options) {
  Verdict verdict;
  ISOLA_TRY(auto db, sqlite::Database::open_reader(file));
  ISOLA_TRY(Head start, segment_start(db));
  if (options.begins && *options.begins != start) {
    verdict.broken = std::min(options.begins->seq, start.seq) + 1;
    verdict.what = fmt::format("the first file begins after {}, not after {} as was said", to_text(start),
                               to_text(*options.begins));
  } else if (start.seq > 0 && !options.begins && !(options.expected && options.expected->seq <= start.seq)) {
    verdict.broken = 1;
    verdict.what = fmt::format(
        "entries 1 to {} are not here, and nothing vouches for that: say where the files that were moved away ended, "
        "or "
        "bring a checkpoint of that entry",
        start.seq);
  }
  return verdict;
}

}  // namespace

Result<Verdict> verify_all(const std::string& path, const VerifyOptions& options) {
  ISOLA_TRY(auto files, segments_of(path));
  VerifyOptions each = options;
  ISOLA_TRY(Verdict all, check_beginning(files.front(), options));
  if (!all.good()) return all;
  for (const auto& file : files) {
    // A head beyond the end of this file is looked for in the next ones.
    bool last = file == files.back();
    ISOLA_TRY(Verdict one, [&]() -> Result<Verdict> {
      if (last) return verify_file(file, each);
      VerifyOptions here = each;
      const uint64_t ends = span_of(fs::path(file).filename()).last;
      if (here.expected && here.expected->seq > ends) here.expected.reset();
      auto verdict = verify_file(file, here);
      // Its name says where it ended.
      if (verdict && verdict->good() && verdict->head.seq < ends) {
        verdict->broken = verdict->head.seq + 1;
        verdict->what = fmt::format("entry {} is missing, and everything after it up to {}", *verdict->broken, ends);
      }
      return verdict;
    }());
    all.entries += one.entries;
    all.keyed += one.keyed;
    all.head = one.head;
    each.follows = one.head;
    if (each.expected && each.expected->seq <= one.head.seq) each.expected.reset();  // it was compared
    if (one.good()) continue;
    all.broken = one.broken;
    all.what = files.size() > 1 ? one.what + " (" + fs::path(file).filename().string() + ")" : one.what;
    return all;
  }
  return all;
}

Result<Verdict> verify_living(const std::string& path, const VerifyOptions& options) {
  // The key before the walk: entries that come meanwhile do no harm.
  auto ratchet = read_ratchet(path);
  ISOLA_TRY(auto files, segments_of(path));
  ISOLA_TRY(Verdict verdict, verify_all(path, options));
  // A rotation in the middle of the walk: the file that was the last is not the one that was looked at.
  for (int attempt = 0; attempt < 10 && !verdict.good(); ++attempt) {
    ISOLA_TRY(auto now, segments_of(path));
    if (now == files) break;
    files = std::move(now);
    ISOLA_TRY(verdict, verify_all(path, options));
  }
  if (verdict.good()) check_end(ratchet, options.keys, verdict);
  return verdict;
}

}  // namespace isola::ledger
