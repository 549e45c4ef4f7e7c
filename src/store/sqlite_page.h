// A page of a list, newest first: the end of its SQL, what is bound to that, and where the next page begins.
//
//   ISOLA_TRY(PageRequest page, PageRequest::of(cursor, limit));
//   ISOLA_TRY(auto query, db.prepare("SELECT … WHERE project = ?" + page.sql()));
//   page.bind(query.bind(project));
//   ISOLA_TRY(out.records, read_all(query));
//   out.next = page.cut(out.records);
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "store/cursor.h"
#include "store/sqlite.h"

namespace isola::store {

class PageRequest {
 public:
  static constexpr size_t kMost = 10'000;

  static Result<PageRequest> of(const std::string& cursor, size_t limit) {
    if (limit == 0) return fail(Code::invalid, "a list needs a limit above 0");
    PageRequest page;
    page.limit_ = std::min(limit, kMost);
    page.first_ = cursor.empty();
    if (!page.first_) {
      ISOLA_TRY(page.from_, parse_cursor(cursor));
    }
    return page;
  }

  std::string sql() const { return where() + order(); }
  void bind(sqlite::Statement& query) const {
    bind_where(query);
    bind_order(query);
  }
  // Its halves, where several queries make one list.
  std::string where() const { return first_ ? "" : " AND (created, id) < (?, ?)"; }
  static std::string order() { return " ORDER BY created DESC, id DESC LIMIT ?"; }
  void bind_where(sqlite::Statement& query) const {
    if (!first_) query.bind(from_.created, from_.id);
  }
  void bind_order(sqlite::Statement& query) const {
    query.bind(limit_ + 1);  // one more tells whether there is a next page
  }
  // Leaves what was asked for; the cursor of the next page, or nothing.
  template <typename Record>
  std::string cut(std::vector<Record>& records) const {
    if (records.size() <= limit_) return "";
    records.pop_back();
    return after(records.back());
  }
  template <typename Record>
  static std::string after(const Record& last) {
    return to_text(Cursor{last.created, last.id});
  }

 private:
  Cursor from_;
  size_t limit_ = 0;
  bool first_ = true;
};

}  // namespace isola::store
