// What people read: aligned tables, short times, JSON values as words.
//
//   Table table({"ID", "STATE", "CREATED"});
//   table.add({"i3f…", "running", relative(milliseconds_now(), *parse_moment("2026-01-31T12:00:00.000Z"))});
//   print(table.text());
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace isola::cli {

// Text of a stranger on one line of our terminal: nothing in it steers the terminal or breaks the line.
std::string shown(std::string_view text);

class Table {
 public:
  explicit Table(std::vector<std::string> heads) : rows_{std::move(heads)} {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.size() == 1; }
  std::string text() const;  // cells pass through shown()

 private:
  std::vector<std::vector<std::string>> rows_;
};

// A field of an object as a word; `otherwise` where it is missing or null.
std::string text_of(const nlohmann::json& object, const char* name, std::string otherwise = "-");
std::string join_labels(const nlohmann::json& object);  // a=1,b=2

void print(std::string_view text);
// Last of all: an exit code of ours, with a word about it, where something that was printed did not arrive.
int finish_printing();
void print_json(const nlohmann::json& value);

std::optional<int64_t> parse_moment(std::string_view text);  // milliseconds since 1970
std::string format_moment(int64_t ms);                       // 2026-01-31T12:00:00Z
std::string short_span(int64_t ms);                          // 45s, 3m, 2h, 5d
std::string relative(int64_t now, int64_t moment);           // 3m ago, in 3m, now
std::string when_of(const nlohmann::json& object, const char* name, std::string otherwise = "-");
// A time for a query, from what a person typed: "2h" (ago), a date, a time.
Result<std::string> query_moment(const std::string& text);

// The states of sandboxes that have not ended, as the query of a list.
extern const std::string kLivingStates;

}  // namespace isola::cli
