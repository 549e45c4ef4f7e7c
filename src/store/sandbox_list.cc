#include "store/sandbox_list.h"

#include <fmt/format.h>

#include "store/sandbox_row.h"

namespace isola::store {

namespace {

// The columns of a record, with constants in the place of what a list leaves out.
const std::string& listed_columns() {
  static const std::string columns = [] {
    std::string all(kSandboxColumns);
    auto leave_out = [&](std::string_view column, std::string_view instead) {
      std::string word = fmt::format(", {},", column);
      all.replace(all.find(word), word.size(), fmt::format(", {} AS {},", instead, column));
    };
    leave_out("env", "'{}'");
    leave_out("on_create", "'[]'");
    leave_out("on_resume", "'[]'");
    leave_out("probe", "''");
    return all;
  }();
  return columns;
}

}  // namespace

// The living and the past have an index each: both queries go by theirs, and what they find is merged.
SandboxQuestion::SandboxQuestion(const SandboxFilter& filter, const PageRequest& page) : page_(page) {
  std::string conditions;
  auto where = [&](std::string_view condition, std::initializer_list<std::string> of) {
    conditions += " AND ";
    conditions += condition;
    values_.insert(values_.end(), of);
  };
  if (!filter.project.empty()) where("project = ?", {filter.project});
  if (!filter.task.empty()) where("task = ?", {filter.task});
  if (!filter.name_prefix.empty()) where("instr(name, ?) = 1", {filter.name_prefix});
  bool with_ended = filter.states.empty(), with_living = filter.states.empty();
  std::string states;  // our own words: nothing to bind
  for (State state : filter.states) {
    (state == State::ended ? with_ended : with_living) = true;
    states += fmt::format("{}'{}'", states.empty() ? "" : ", ", to_string(state));
  }
  if (!states.empty()) where("state IN (" + states + ")", {});
  for (const auto& [key, value] : filter.metadata)
    where("EXISTS (SELECT 1 FROM json_each(metadata) AS label WHERE label.key = ? AND label.value = ?)", {key, value});
  auto part = [&](std::string_view whose) {
    ++parts_;
    return fmt::format("SELECT {} FROM sandboxes WHERE {}{}{}", listed_columns(), whose, conditions, page.where());
  };
  if (with_living) sql_ = part("state <> 'ended'");
  if (with_ended) sql_ += (with_living ? " UNION ALL " : "") + part("state = 'ended'");
  sql_ += PageRequest::order();
}

void SandboxQuestion::bind(sqlite::Statement& query) const {
  for (int part = 0; part < parts_; ++part) {
    for (const auto& value : values_) query.bind(value);
    page_.bind_where(query);
  }
  page_.bind_order(query);
}

size_t weight(const SandboxRecord& sandbox) {
  size_t bytes = 1024 + sandbox.network.size() + sandbox.end_detail.size();  // and what is bounded
  for (const auto& [key, value] : sandbox.metadata) bytes += key.size() + value.size() + 16;
  for (const auto& use : sandbox.volumes) bytes += use.path.size() + use.subpath.size() + use.name.size() + 128;
  return bytes;
}

}  // namespace isola::store
