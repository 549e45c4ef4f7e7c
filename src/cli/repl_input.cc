#include "cli/repl_input.h"

namespace isola::cli {

bool wants_more(std::string_view cell) {
  if (cell.ends_with("\n")) cell.remove_suffix(1);
  bool several = cell.find('\n') != std::string_view::npos;
  auto start = cell.rfind('\n');
  std::string_view last = start == std::string_view::npos ? cell : cell.substr(start + 1);
  bool empty = last.find_first_not_of(" \t") == std::string_view::npos;
  int open = 0;
  char quote = 0;
  for (size_t i = 0; i < cell.size(); ++i) {
    char c = cell[i];
    if (quote) {
      if (c == '\\') ++i;
      if (c == quote || (c == '\n' && quote != '`')) quote = 0;
    } else if (c == '"' || c == '\'' || c == '`') {
      quote = c;
    } else if (c == '(' || c == '[' || c == '{') {
      ++open;
    } else if (c == ')' || c == ']' || c == '}') {
      --open;
    }
  }
  if (open > 0) return !(several && empty);  // two times Enter sends it anyway
  if (last.ends_with('\\')) return true;
  if (last.ends_with(':')) return true;
  // Inside a block: its lines are indented, and an empty one ends it.
  return several && !empty && (last.front() == ' ' || last.front() == '\t');
}

}  // namespace isola::cli
