#include "store/sqlite.h"

#include <fcntl.h>
#include <sqlite3.h>

#include <unordered_map>
#include <utility>

#include "base/fd.h"

namespace isola::sqlite {

namespace {

constexpr int kBusyMillis = 5000;
constexpr size_t kMostCached = 128;

Code code_for(int rc, int extended, int sys_errno) {
  if (sys_errno == ENOSPC || sys_errno == EDQUOT) return Code::exhausted;
  switch (rc) {
    case SQLITE_FULL:
    case SQLITE_NOMEM: return Code::exhausted;
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return Code::unavailable;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return Code::corrupt;
    case SQLITE_CONSTRAINT:
      return extended == SQLITE_CONSTRAINT_UNIQUE || extended == SQLITE_CONSTRAINT_PRIMARYKEY ? Code::exists
                                                                                              : Code::invalid;
    case SQLITE_INTERRUPT: return Code::timeout;
    case SQLITE_TOOBIG:
    case SQLITE_RANGE: return Code::invalid;
    case SQLITE_PERM:
    case SQLITE_READONLY: return Code::denied;
    case SQLITE_CANTOPEN: return sys_errno ? code_of(sys_errno) : Code::denied;
    default: return Code::internal;
  }
}

}  // namespace

struct Impl {
  sqlite3* handle = nullptr;
  std::string path;
  std::unordered_map<std::string, sqlite3_stmt*> idle;
  std::function<void(int pages)> grown;
  std::chrono::steady_clock::time_point deadline{};

  ~Impl() {
    for (auto& [sql, statement] : idle) ::sqlite3_finalize(statement);
    ::sqlite3_close(handle);
  }

  std::unexpected<Error> failed(int code) const {
    int rc = code & 0xff;
    int sys_errno =
        rc == SQLITE_IOERR || rc == SQLITE_CANTOPEN || rc == SQLITE_FULL ? ::sqlite3_system_errno(handle) : 0;
    // A write that was cut short by a full disk leaves no number, and callers tell a full disk by that.
    if (rc == SQLITE_FULL && sys_errno == 0) sys_errno = ENOSPC;
    // A bind's complaint does not reach the connection's message.
    const char* said = (::sqlite3_errcode(handle) & 0xff) == rc ? ::sqlite3_errmsg(handle) : ::sqlite3_errstr(code);
    Code kind = code_for(rc, ::sqlite3_extended_errcode(handle), sys_errno);
    std::string sentence;
    if (kind == Code::corrupt)
      sentence = "the database " + path + " is damaged or is not one: " + said;
    else if (kind == Code::exhausted && rc != SQLITE_NOMEM)
      sentence = "no space left for the database " + path + ": " + said;
    else if (kind == Code::timeout)
      sentence = "the question took too long: ask for less";
    else
      sentence = "the database " + path + ": " + said;
    return fail(kind, std::move(sentence), sys_errno);
  }
};

Statement::Statement(Statement&& other) noexcept
    : owner_(other.owner_),
      sql_(std::move(other.sql_)),
      stmt_(std::exchange(other.stmt_, nullptr)),
      bound_(other.bound_),
      bad_(other.bad_) {}

Statement::~Statement() {
  if (!stmt_) return;
  reset();
  if (owner_->idle.size() >= kMostCached || !owner_->idle.try_emplace(sql_, stmt_).second) ::sqlite3_finalize(stmt_);
}

void Statement::reset() {
  ::sqlite3_reset(stmt_);
  ::sqlite3_clear_bindings(stmt_);
  bound_ = bad_ = 0;
}

void Statement::noted(int code) {
  if (code != SQLITE_OK && bad_ == SQLITE_OK) bad_ = code;
}
// Copied: the value may be a temporary that is gone before the step.
void Statement::put(std::string_view text) {
  noted(::sqlite3_bind_text64(stmt_, ++bound_, text.empty() ? "" : text.data(), text.size(), SQLITE_TRANSIENT,
                              SQLITE_UTF8));
}
void Statement::put(Blob blob) {
  noted(::sqlite3_bind_blob64(stmt_, ++bound_, blob.bytes.empty() ? "" : blob.bytes.data(), blob.bytes.size(),
                              SQLITE_TRANSIENT));
}
void Statement::put(double value) { noted(::sqlite3_bind_double(stmt_, ++bound_, value)); }
void Statement::put_integer(int64_t value) { noted(::sqlite3_bind_int64(stmt_, ++bound_, value)); }
void Statement::out_of_range() {
  ++bound_;
  noted(SQLITE_TOOBIG);
}

Result<bool> Statement::step() {
  if (bad_ == SQLITE_TOOBIG) return fail(Code::invalid, "a number or a text is too large for the database");
  if (bad_ != SQLITE_OK) return owner_->failed(bad_);
  int code = ::sqlite3_step(stmt_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  auto error = owner_->failed(code);
  ::sqlite3_reset(stmt_);  // else a failed statement keeps its transaction from ending
  return error;
}

Result<void> Statement::run() {
  ISOLA_TRY(bool row, step());
  if (row) return fail(Code::internal, "a row came where none was expected: " + sql_);
  ::sqlite3_reset(stmt_);
  return {};
}

int64_t Statement::integer(int column) const { return ::sqlite3_column_int64(stmt_, column); }
double Statement::real(int column) const { return ::sqlite3_column_double(stmt_, column); }
std::string Statement::text(int column) const {
  const void* bytes = ::sqlite3_column_blob(stmt_, column);
  int n = ::sqlite3_column_bytes(stmt_, column);
  return bytes ? std::string(static_cast<const char*>(bytes), static_cast<size_t>(n)) : std::string();
}

Database::Database(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Database::Database(Database&&) noexcept = default;
Database& Database::operator=(Database&&) noexcept = default;
Database::~Database() = default;

Result<Database> Database::connect(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  // The owner locks, so that the library need not.
  int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  int code = ::sqlite3_open_v2(path.c_str(), &impl->handle, flags, nullptr);
  if (code != SQLITE_OK) {
    auto error = impl->failed(code);
    return error;
  }
  ::sqlite3_busy_timeout(impl->handle, kBusyMillis);
  Database db(std::move(impl));
  // A file that somebody prepared must not run functions of its own choosing (views, triggers of a foreign schema).
  // And what was deleted is overwritten, whatever the library was built to do by itself.
  ISOLA_CHECK(db.run("PRAGMA trusted_schema = OFF; PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON"));
  return db;
}

Result<Database> Database::open(const std::string& path, const Schema& schema, Sync sync) {
  // Made here, not by the library: it would be readable for everybody. Only when it is new: closing a descriptor of a
  // file that this process has open as a database drops that one's locks.
  Fd made(::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (!made && errno != EEXIST) return sys_error("cannot create the " + std::string(schema.what) + " " + path);
  made.reset();
  ISOLA_TRY(Database db, connect(path));
  ISOLA_CHECK(check_owner(db, schema));
  // Writing through a log: readers never wait, and a commit is one append. 64 MiB is what the log may keep on the disk.
  ISOLA_TRY(auto mode, db.prepare("PRAGMA journal_mode = WAL"));
  ISOLA_TRY(bool row, mode.step());
  if (!row || mode.text(0) != "wal")
    return fail(Code::unsupported, "the filesystem of " + path + " cannot hold a database with a write-ahead log");
  mode.reset();
  ISOLA_CHECK(db.run(sync == Sync::full ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL"));
  ISOLA_CHECK(db.run("PRAGMA journal_size_limit = 67108864"));
  ISOLA_CHECK(migrate(db, schema));
  return db;
}

Result<Database> Database::open_copier(const std::string& path) {
  ISOLA_TRY(Database db, connect(path));
  // A connection that never read does not know that there is a log, and copies nothing without a word.
  ISOLA_CHECK(db.integer("SELECT count(*) FROM sqlite_schema"));
  return db;
}

Result<Database> Database::open_reader(const std::string& path) {
  ISOLA_TRY(Database db, connect(path));
  ISOLA_CHECK(db.run("PRAGMA query_only = ON"));
  return db;
}

Result<Statement> Database::prepare(std::string_view sql) {
  std::string text(sql);
  if (auto found = impl_->idle.find(text); found != impl_->idle.end()) {
    sqlite3_stmt* handle = found->second;
    impl_->idle.erase(found);
    return Statement(impl_.get(), std::move(text), handle);
  }
  sqlite3_stmt* handle = nullptr;
  int code = ::sqlite3_prepare_v3(impl_->handle, text.data(), static_cast<int>(text.size()), SQLITE_PREPARE_PERSISTENT,
                                  &handle, nullptr);
  if (code != SQLITE_OK) return impl_->failed(code);
  return Statement(impl_.get(), std::move(text), handle);
}

Result<void> Database::run(const std::string& sql) {
  int code = ::sqlite3_exec(impl_->handle, sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return impl_->failed(code);
  return {};
}

Result<int64_t> Database::integer(std::string_view sql) {
  ISOLA_TRY(auto query, prepare(sql));
  ISOLA_TRY(bool row, query.step());
  if (!row) return fail(Code::internal, "no row came where one was expected: " + std::string(sql));
  return query.integer(0);
}

int64_t Database::changed() const { return ::sqlite3_changes64(impl_->handle); }
const std::string& Database::path() const { return impl_->path; }

void Database::set_deadline(std::optional<std::chrono::steady_clock::time_point> deadline) {
  constexpr int kStepsBetweenLooks = 10'000;  // well below a millisecond
  impl_->deadline = deadline.value_or(std::chrono::steady_clock::time_point());
  auto is_over = [](void* impl) {
    return std::chrono::steady_clock::now() >= static_cast<Impl*>(impl)->deadline ? 1 : 0;
  };
  if (deadline)
    ::sqlite3_progress_handler(impl_->handle, kStepsBetweenLooks, is_over, impl_.get());
  else
    ::sqlite3_progress_handler(impl_->handle, 0, nullptr, nullptr);
}

void Database::on_log_growth(std::function<void(Database&, int pages)> grown) {
  impl_->grown = [this, grown = std::move(grown)](int pages) { grown(*this, pages); };
  auto hook = [](void* impl, sqlite3*, const char*, int pages) {
    static_cast<Impl*>(impl)->grown(pages);
    return SQLITE_OK;
  };
  ::sqlite3_wal_hook(impl_->handle, hook, impl_.get());
}

Result<void> Database::checkpoint() {
  int code = ::sqlite3_wal_checkpoint_v2(impl_->handle, nullptr, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr);
  if (code != SQLITE_OK && code != SQLITE_BUSY) return impl_->failed(code);
  return {};
}

Result<Transaction> Transaction::begin(Database& db) {
  ISOLA_TRY(auto begin, db.prepare("BEGIN IMMEDIATE"));
  ISOLA_CHECK(begin.run());
  return Transaction(&db);
}

Transaction::~Transaction() {
  // Some errors (a full disk) have rolled back already.
  if (db_ && !::sqlite3_get_autocommit(db_->impl_->handle)) static_cast<void>(db_->run("ROLLBACK"));
}

Result<void> Transaction::commit() {
  ISOLA_TRY(auto commit, db_->prepare("COMMIT"));
  ISOLA_CHECK(commit.run());
  db_ = nullptr;
  return {};
}

}  // namespace isola::sqlite
