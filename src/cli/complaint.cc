#include "cli/complaint.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <optional>

namespace isola::cli {

namespace {

using Apps = std::vector<const CLI::App*>;

Apps commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* one) { return !one->get_name().empty() && !one->get_group().empty(); });
}

// How many letters have to be put in, taken out or changed.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t corner = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t changed = corner + (a[i - 1] != b[j - 1]);
      corner = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row.back();
}

// Other programs' words for the same.
constexpr struct {
  const char *word, *ours;
} kOthers[] = {{"list", "ls"},   {"ps", "ls"},       {"rm", "kill"},    {"delete", "kill"}, {"remove", "kill"},
               {"stop", "kill"}, {"delete", "rm"},   {"remove", "rm"},  {"show", "get"},    {"inspect", "get"},
               {"info", "get"},  {"new", "create"},  {"add", "create"}, {"start", "up"},    {"stop", "down"},
               {"ssh", "shell"}, {"attach", "shell"}};

std::optional<std::string> meant_in(const CLI::App& app, const std::string& word) {
  const Apps all = commands_of(app);
  auto named = [&](const std::string& name) {
    return std::ranges::any_of(all, [&](const auto* one) { return one->get_name() == name; });
  };
  for (const auto& other : kOthers)
    if (word == other.word && named(other.ours)) return other.ours;
  std::optional<std::string> best;
  size_t least = std::max<size_t>(1, word.size() / 3);
  for (const auto* one : all) {
    const std::string& name = one->get_name();
    if (word.size() >= 3 && name.starts_with(word)) return name;
    if (size_t far = distance(word, name); far <= least && far < name.size()) {
      best = name;
      least = far - 1;  // only a better one from here on
      if (far == 1) break;
    }
  }
  return best;
}

// A command of another one's: `isola create`.
std::optional<std::string> meant_below(const CLI::App& app, const std::string& word) {
  for (const auto* one : commands_of(app))
    for (const auto* nested : commands_of(*one))
      if (nested->get_name() == word) return one->get_name() + " " + word;
  return std::nullopt;
}

std::string no_such(const CLI::App& app, const CLI::App& in, const std::string& word) {
  const std::string before = &in == &app ? "" : in.get_name() + " ";
  std::string out = "there is no command '" + before + word + "'";
  auto meant = meant_in(in, word);
  if (meant) *meant = before + *meant;
  if (!meant) meant = meant_below(app, word);
  if (meant) return out + ": did you mean '" + *meant + "'? (see isola " + before + "--help)";
  if (&in == &app) return out + " (see isola --help)";
  std::string names;
  for (const auto* one : commands_of(in)) names += (names.empty() ? "" : ", ") + one->get_name();
  return out + ": it is one of " + names;
}

}  // namespace

std::string complaint(const CLI::App& app, const std::string& message, const std::vector<std::string>& words) {
  // The innermost command that was found: if it has others, the next word should have been one.
  const CLI::App* in = &app;
  auto at = words.begin();
  for (;;) {
    auto found = in->get_subcommands();
    if (found.empty()) break;
    in = found.front();
    at = std::find(at, words.end(), in->get_name());
    if (at != words.end()) ++at;
  }
  const Apps below = commands_of(*in);
  at = std::find_if(at, words.end(), [](const auto& word) { return !word.starts_with('-'); });
  bool known = at != words.end() && std::ranges::any_of(below, [&](const auto* one) { return one->get_name() == *at; });
  if (!below.empty() && at != words.end() && !known) return no_such(app, *in, *at);
  std::string where = in == &app ? "" : in->get_name() + " ";
  for (const auto* outer = in->get_parent(); outer && outer != &app; outer = outer->get_parent())
    where = outer->get_name() + " " + where;
  return message.substr(0, message.find('\n')) + " (see isola " + where + "--help)";
}

}  // namespace isola::cli
