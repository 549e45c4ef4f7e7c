// Questions to the ledger: events and sums of usage.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "ledger/kind.h"
#include "ledger/ledger.h"
#include "ledger/segments.h"

namespace isola::ledger {

namespace {

constexpr size_t kMostEvents = 10'000;  // of one query

// A WHERE clause that grows: each condition with the values of its question marks.
class Where {
 public:
  void text(std::string_view condition, const std::string& value) {
    add(condition);
    values_.emplace_back(value, 0);
    is_text_.push_back(true);
  }
  void number(std::string_view condition, int64_t value) {
    add(condition);
    values_.emplace_back("", value);
    is_text_.push_back(false);
  }
  const std::string& sql() const { return sql_; }
  void bind(sqlite::Statement& statement) const {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (is_text_[i])
        statement.bind(values_[i].first);
      else
        statement.bind(values_[i].second);
    }
  }

 private:
  void add(std::string_view condition) {
    sql_ += " AND ";
    sql_ += condition;
  }
  std::string sql_ = "1";
  std::vector<std::pair<std::string, int64_t>> values_;
  std::vector<bool> is_text_;
};

// In the words of the index (schema.cc), so that it serves.
constexpr std::string_view kOfSecrets =
    "kind IN ('secret.created', 'secret.rotated', 'secret.deleted', 'secret.granted', 'secret.denied', "
    "'secret.exposed', 'secret.used', 'secret.minted', 'grant.created', 'grant.revoked', 'scan.hit', "
    "'bucket.mounted') AND "
    "json_valid(data) AND "
    "json_extract(data, '$.secret') = ?";

// A bound that no entry can have reached stays one.
int64_t whole(uint64_t seq) { return static_cast<int64_t>(std::min<uint64_t>(seq, INT64_MAX)); }

Result<Event> read_event(const sqlite::Statement& statement) {
  sqlite::Row row(statement);
  Event e{.seq = row.integer<uint64_t>(),
          .time = row.integer(),
          .project = row.text(),
          .sandbox = row.text(),
          .task = row.text(),
          .actor = row.text()};
  auto kind = parse_kind(row.text());
  if (!kind)
    return fail(Code::corrupt,
                fmt::format("entry {} of the ledger is of a kind that this version does not know", e.seq));
  e.kind = *kind;
  e.data = row.text();
  e.prev = row.text();
  e.hash = row.text();
  e.key = row.text();
  e.mac = row.text();
  return e;
}

// What it takes in memory, nearly.
size_t weight(const Event& e) {
  size_t bytes = sizeof(Event);
  for (const std::string* text : {&e.project, &e.sandbox, &e.task, &e.actor, &e.key, &e.data, &e.prev, &e.hash, &e.mac})
    bytes += text->size();
  return bytes;
}

size_t weight(const std::vector<Event>& page) {
  size_t bytes = 0;
  for (const auto& event : page) bytes += weight(event);
  return bytes;
}

}  // namespace

bool goes_on(const std::vector<Event>& page, const EventFilter& filter) {
  return page.size() >= std::min(filter.limit, kMostEvents) || (!page.empty() && weight(page) >= filter.bytes);
}

Result<std::vector<Event>> query_events(sqlite::Database& db, const EventFilter& filter) {
  if (filter.limit == 0) return fail(Code::invalid, "a query needs a limit above 0");
  Where where;
  // Without a sandbox or task, a span of time narrows best; left alone, SQLite would rather read everything in order.
  bool by_time = filter.sandbox.empty() && filter.task.empty() && filter.secret.empty() && filter.from;
  // Not empty, said again: it lets the partial indexes serve.
  if (!filter.sandbox.empty()) where.text("sandbox = ? AND sandbox <> ''", filter.sandbox);
  if (!filter.task.empty()) where.text("task = ? AND task <> ''", filter.task);
  if (!filter.project.empty()) where.text("project = ?", filter.project);
  if (!filter.secret.empty()) where.text(kOfSecrets, filter.secret);
  if (!filter.kind_prefix.empty()) where.text("instr(kind, ?) = 1", filter.kind_prefix);
  if (filter.from) where.number("time >= ?", filter.from);
  if (filter.to) where.number("time < ?", filter.to);
  if (filter.after) where.number("seq > ?", whole(filter.after));
  if (filter.before) where.number("seq < ?", whole(filter.before));
  ISOLA_TRY(auto query, db.prepare(fmt::format("SELECT seq, time, project, sandbox, task, actor, kind, data, "
                                               "prev, hash, key, mac FROM events {} WHERE {} ORDER BY seq {} LIMIT ?",
                                               by_time ? "INDEXED BY events_by_time" : "", where.sql(),
                                               filter.newest_first ? "DESC" : "ASC")));
  where.bind(query);
  query.bind(std::min<size_t>(filter.limit, kMostEvents));
  std::vector<Event> events;
  for (size_t bytes = 0;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return events;
    ISOLA_TRY(auto event, read_event(query));
    bytes += weight(event);
    events.push_back(std::move(event));
    if (bytes >= filter.bytes) return events;
  }
}

Result<std::vector<Event>> Ledger::query(const EventFilter& filter) {
  auto begins = [&](Kind kind) { return to_string(kind).starts_with(filter.kind_prefix); };
  if (std::ranges::none_of(all_kinds(), begins)) return std::vector<Event>();  // no entry is of it: none is looked at
  EventFilter rest = filter;
  rest.limit = std::min(filter.limit, kMostEvents);
  std::vector<Event> events;
  ISOLA_CHECK(each_file(filter, [&](sqlite::Database& db) -> Result<bool> {
    ISOLA_TRY(auto some, query_events(db, rest));
    const bool more = !goes_on(some, rest);
    if (more) rest.limit -= some.size(), rest.bytes -= weight(some);
    std::move(some.begin(), some.end(), std::back_inserter(events));
    return more;
  }));
  return events;
}

// The files that can have what the filter wants, this one and those before it, in the order that it wants them.
Result<void> Ledger::each_file(const EventFilter& filter, const std::function<Result<bool>(sqlite::Database&)>& look) {
  Reader& reader = filter.until ? patient_ : quick_;
  std::lock_guard lock(reader.mutex);
  if (!reader.db) {
    ISOLA_TRY(reader.db, sqlite::Database::open_reader(path_));
  }
  ISOLA_TRY(Head start, segment_start(*reader.db));
  std::vector<std::string> files = {path_};
  if (start.seq > 0 && filter.after < start.seq) {
    ISOLA_TRY(files, segments_of(path_));
  }
  if (filter.newest_first) std::reverse(files.begin(), files.end());
  for (const auto& file : files) {
    if (!may_hold(file, filter)) continue;
    auto old = file == path_ ? fail(Code::not_found, "") : sqlite::Database::open_reader(file);
    if (!old && file != path_) continue;  // moved away meanwhile, as its owner may
    sqlite::Database& db = old ? *old : *reader.db;
    db.set_deadline(filter.until);
    auto more = look(db);
    db.set_deadline({});
    if (!more) return std::unexpected(std::move(more).error());
    if (!*more) break;
  }
  return {};
}

namespace {

std::string_view column_of(GroupBy group) {
  switch (group) {
    case GroupBy::all: break;
    case GroupBy::sandbox: return "sandbox";
    case GroupBy::task: return "task";
    case GroupBy::project: return "project";
    case GroupBy::day: return "strftime('%Y-%m-%d', from_ms / 1000, 'unixepoch')";
  }
  return "''";
}

// Which of the kept sums answer this; empty: the samples have to be summed.
std::string_view kept_for(const UsageFilter& filter, GroupBy group) {
  if (filter.from || filter.to || filter.up_to || group == GroupBy::day) return {};
  if (!filter.sandbox.empty()) return filter.task.empty() && group != GroupBy::task ? "sandbox" : "";
  if (!filter.task.empty()) return group != GroupBy::sandbox ? "task" : "";
  return group == GroupBy::all ? "project" : column_of(group);
}

// One row, into what other files had of its key.
void add(std::map<std::string, UsageTotals>& totals, const sqlite::Statement& query) {
  sqlite::Row row(query);
  UsageTotals t{.key = row.text(), .from = row.integer(), .to = row.integer()};
  t.used = {.cpu_usec = row.integer<uint64_t>(),
            .memory_byte_seconds = row.real(),
            .disk_byte_seconds = row.real(),
            .bytes_out = row.integer<uint64_t>(),
            .commands = row.integer<uint64_t>(),
            .wall_ms = row.integer<uint64_t>()};
  t.samples = row.integer<uint64_t>();
  t.idle_ms = row.integer<uint64_t>();
  auto [at, fresh] = totals.try_emplace(t.key, t);
  if (fresh) return;
  UsageTotals& sum = at->second;
  sum.from = std::min(sum.from, t.from);
  sum.to = std::max(sum.to, t.to);
  sum.used += t.used;
  sum.samples += t.samples;
  sum.idle_ms += t.idle_ms;
}

}  // namespace

Result<std::vector<UsageTotals>> Ledger::usage(const UsageFilter& filter, GroupBy group) {
  std::string_view kept = kept_for(filter, group);
  Where where;
  if (!kept.empty()) {
    where.text("kind = ?", std::string(kept));
    if (!filter.sandbox.empty() || !filter.task.empty()) where.text("name = ?", filter.sandbox + filter.task);
  } else {
    if (!filter.sandbox.empty()) where.text("sandbox = ?", filter.sandbox);
    if (!filter.task.empty()) where.text("task = ? AND task <> ''", filter.task);
  }
  if (!filter.project.empty()) where.text("project = ?", filter.project);
  if (filter.from) where.number("from_ms >= ?", filter.from);
  if (filter.to) where.number("from_ms < ?", filter.to);
  if (filter.up_to) where.number("seq <= ?", whole(filter.up_to));
  std::string_view key = column_of(group);
  if (!kept.empty() && group != GroupBy::all && group != GroupBy::project) key = "name";
  if (filter.after) where.text(fmt::format("{} > ?", key), *filter.after);
  std::string samples = "count(*)";
  std::string idle = fmt::format("sum(CASE WHEN cpu_usec < wall_ms * 1000 * {} THEN wall_ms ELSE 0 END)", kIdleBelow);
  if (!kept.empty()) samples = "sum(samples)", idle = "sum(idle_ms)";
  const std::string sql = fmt::format(
      "SELECT {} AS key, min(from_ms), max(to_ms), sum(cpu_usec), total(memory_byte_seconds), "
      "total(disk_byte_seconds), sum(bytes_out), sum(commands), sum(wall_ms), {}, {} "
      "FROM {} WHERE {} GROUP BY key ORDER BY key{}",
      key, samples, idle, kept.empty() ? "usage" : "usage_totals", where.sql(), filter.limit ? " LIMIT ?" : "");
  std::map<std::string, UsageTotals> totals;
  auto sum = [&](sqlite::Database& db) -> Result<bool> {
    ISOLA_TRY(auto query, db.prepare(sql));
    where.bind(query);
    if (filter.limit) query.bind(filter.limit);
    for (;;) {
      ISOLA_TRY(bool more, query.step());
      if (!more) return true;
      add(totals, query);
    }
  };
  // The kept sums go on from file to file; samples stay in theirs.
  EventFilter files{.until = filter.until};
  if (!kept.empty()) files.after = whole(UINT64_MAX);
  ISOLA_CHECK(each_file(files, sum));
  // Each file has given the first of its own: the first of all are among them, whole.
  std::vector<UsageTotals> out;
  for (auto& [name, one] : totals) {
    if (filter.limit && out.size() == filter.limit) break;
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace isola::ledger
