#include "cli/inner_command.h"

#include <CLI/CLI.hpp>
#include <map>
#include <string_view>

namespace isola::cli {

namespace {

struct Holder {
  int before = 0;
  std::weak_ptr<std::vector<std::string>> words;  // goes with the command's callback, so with the command
};

std::map<const CLI::App*, Holder>& holders() {
  static std::map<const CLI::App*, Holder> all;
  return all;
}

}  // namespace

Words takes_inner_command(CLI::App& app, int words_before) {
  auto words = std::make_shared<std::vector<std::string>>();
  holders()[&app] = {words_before, words};
  return words;
}

void forget_inner_commands() { holders().clear(); }

// Only the first `--` is ours; a later one belongs to the command (git checkout -- file).
int cut_inner_command(CLI::App& app, int argc, char** argv) {
  CLI::App* here = &app;
  Words words;  // of the command that we are in
  int before = 0;
  for (int i = 1; i < argc; ++i) {
    std::string_view word = argv[i];
    if (word == "--" || word.size() < 2 || word[0] != '-') {
      if (words && before == 0) {
        words->assign(argv + i + (word == "--" ? 1 : 0), argv + argc);
        return i;
      }
      if (word == "--") return argc;
      if (words) {
        --before;
        continue;
      }
      auto named = here->get_subcommands([&](CLI::App* one) { return one->get_name() == word; });
      if (named.empty()) return argc;
      here = named[0];
      if (auto at = holders().find(here); at != holders().end())
        words = at->second.words.lock(), before = at->second.before;
      continue;
    }
    bool is_long = word.starts_with("--");
    // --name=value and -nVALUE carry their value with them.
    if (is_long ? word.find('=') != std::string_view::npos : word.size() > 2) continue;
    const auto* option = here->get_option_no_throw(std::string(word));
    if (option && option->get_items_expected_max() > 0) ++i;
  }
  return argc;
}

}  // namespace isola::cli
