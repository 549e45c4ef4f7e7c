// SQLite as this project uses it: owned handles, Result instead of codes, statements prepared once.
//
//   ISOLA_TRY(auto db, sqlite::Database::open(path, kSchema, {}));
//   ISOLA_TRY(auto change, sqlite::Transaction::begin(db));
//   ISOLA_TRY(auto put, db.prepare("INSERT INTO pets VALUES (?, ?)"));
//   ISOLA_CHECK(put.bind("Rex", 7).run());
//   ISOLA_CHECK(change.commit());                     // without it: rolled back
//   ISOLA_TRY(auto get, db.prepare("SELECT name, age FROM pets"));
//   for (;;) {
//     ISOLA_TRY(bool more, get.step());
//     if (!more) break;
//     use(get.text(0), get.integer(1));
//   }
//
// A Database and its statements belong to one thread at a time: their owner locks. A Statement must go before its
// Database does.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

struct sqlite3_stmt;

namespace isola::sqlite {

// What an acknowledged commit survives. Both survive kill -9 of the process at any moment.
enum class Sync : uint8_t {
  normal,  // a power cut may take the last moments, never the file's consistency
  full,    // a power cut takes nothing that was acknowledged; each commit waits for the disk
};

// The shape of a file as the ordered list of steps that make it: step n leads from version n to n + 1. Steps that were
// ever released are never edited; a change is a new step.
struct Schema {
  int32_t application_id;  // in the file's header: whose file it is
  std::string_view what;   // "store": for sentences
  std::span<const std::string_view> steps;
};

struct Impl;  // a connection and its prepared statements

struct Blob {
  std::string_view bytes;
};

class Statement {
 public:
  Statement(Impl* owner, std::string sql, sqlite3_stmt* handle) : owner_(owner), sql_(std::move(sql)), stmt_(handle) {}
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;
  ~Statement();

  // Values for the next `?`s, in order. What cannot be bound is told by the next step().
  template <typename... A>
  Statement& bind(const A&... values) {
    (put(values), ...);
    return *this;
  }
  // True: there is a row to read. False: done.
  Result<bool> step();
  // Of a statement that gives no rows.
  Result<void> run();
  // Once more from the start, with other values.
  void reset();

  int64_t integer(int column) const;
  double real(int column) const;
  std::string text(int column) const;  // blobs too

 private:
  void put(std::string_view text);
  void put(const std::string& text) { put(std::string_view(text)); }
  void put(const char* text) { put(std::string_view(text)); }
  void put(Blob blob);
  void put(double value);
  void put(bool value) { put_integer(value ? 1 : 0); }
  template <std::integral T>
  void put(T value) {
    if (std::in_range<int64_t>(value))
      put_integer(static_cast<int64_t>(value));
    else
      out_of_range();
  }
  void put_integer(int64_t value);
  void out_of_range();
  void noted(int code);

  Impl* owner_;
  std::string sql_;
  sqlite3_stmt* stmt_;
  int bound_ = 0;
  int bad_ = 0;  // the first code of a bind that failed
};

// Reads the columns of a row from left to right.
class Row {
 public:
  explicit Row(const Statement& statement) : statement_(statement) {}
  std::string text() { return statement_.text(at_++); }
  double real() { return statement_.real(at_++); }
  template <std::integral T = int64_t>
  T integer() {
    return static_cast<T>(statement_.integer(at_++));
  }
  bool flag() { return statement_.integer(at_++) != 0; }

 private:
  const Statement& statement_;
  int at_ = 0;
};

class Database {
 public:
  // Opens or creates (mode 0600) and brings the file to the schema's newest version. Refuses, with a sentence: a file
  // that is not ours, one that a newer version wrote, one that is damaged.
  static Result<Database> open(const std::string& path, const Schema& schema, Sync sync);
  // A second connection that only reads, for a file that is open already.
  static Result<Database> open_reader(const std::string& path);
  // One for checkpoint() alone.
  static Result<Database> open_copier(const std::string& path);
  Database(Database&&) noexcept;
  Database& operator=(Database&&) noexcept;
  ~Database();

  // From the cache, if it was prepared before and is not in use.
  Result<Statement> prepare(std::string_view sql);
  // Any number of statements without values and rows.
  Result<void> run(const std::string& sql);
  Result<int64_t> integer(std::string_view sql);  // the one number that a query gives
  int64_t changed() const;                        // rows, by the last statement
  const std::string& path() const;

  // Whatever is still being looked for then fails with Code::timeout. Nothing: it takes as long as it takes.
  void set_deadline(std::optional<std::chrono::steady_clock::time_point> deadline);

  // From now on the log is not copied into the file every thousand pages by whichever commit comes along: `grown` hears
  // after each commit how many pages the log has, and sees to it.
  void on_log_growth(std::function<void(Database&, int pages)> grown);
  // Copies what it can of the log into the file, without making anybody wait.
  Result<void> checkpoint();

 private:
  friend class Transaction;
  explicit Database(std::unique_ptr<Impl> impl);
  static Result<Database> connect(const std::string& path);
  std::unique_ptr<Impl> impl_;
};

// BEGIN IMMEDIATE … COMMIT; what goes out of scope without commit() is undone.
class Transaction {
 public:
  static Result<Transaction> begin(Database& db);
  Transaction(Transaction&& other) noexcept : db_(std::exchange(other.db_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();
  Result<void> commit();

 private:
  explicit Transaction(Database* db) : db_(db) {}
  Database* db_;
};

// Brings an open file to the newest version, each step in a transaction of its own. (Database::open does it.)
Result<void> migrate(Database& db, const Schema& schema);
// Whether the file is ours to change: our application id, or empty; not newer than we know.
Result<void> check_owner(Database& db, const Schema& schema);

}  // namespace isola::sqlite
