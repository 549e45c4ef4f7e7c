// The question that a page of sandboxes is: by which indexes it goes is tested on the very text (durability_test.cc).
//
//   ISOLA_TRY(PageRequest asked, PageRequest::of(cursor, limit));
//   SandboxQuestion question(filter, asked);
//   ISOLA_TRY(auto query, db.prepare(question.sql()));
//   question.bind(query);
#pragma once

#include <string>
#include <vector>

#include "store/sqlite_page.h"
#include "store/store.h"

namespace isola::store {

// Rows have the columns of a record. What no list shows, and can be large, is empty: env, hooks and the probe.
class SandboxQuestion {
 public:
  SandboxQuestion(const SandboxFilter& filter, const PageRequest& page);
  const std::string& sql() const { return sql_; }
  void bind(sqlite::Statement& query) const;

 private:
  const PageRequest& page_;
  std::string sql_;
  std::vector<std::string> values_;  // of each of its parts
  int parts_ = 0;
};

// About how much of an answer it takes.
size_t weight(const SandboxRecord& sandbox);

}  // namespace isola::store
