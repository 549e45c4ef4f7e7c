#include "cli/completion.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "cli/register.h"
#include "cli/table.h"

namespace isola::cli {

namespace {

struct Node {
  std::string path;                   // "sandbox exec"; empty: the top
  std::vector<std::string> commands;  // its subcommands
  std::vector<std::string> options;   // --name and -n
  bool sandbox = false;               // takes the id of one
};

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  auto all =
      app.get_subcommands([](const CLI::App* one) { return !one->get_name().empty() && !one->get_group().empty(); });
  return {all.begin(), all.end()};
}

// Ids are of sandboxes everywhere but with keys.
bool takes_sandbox(const CLI::App& app, const std::string& path) {
  return !path.starts_with("key") && app.get_option_no_throw("id") != nullptr;
}

void walk(const CLI::App& app, const std::string& path,
          const std::function<void(const CLI::App&, const Node&)>& visit) {
  Node node{.path = path, .sandbox = takes_sandbox(app, path)};
  for (const auto* sub : subcommands(app)) node.commands.push_back(sub->get_name());
  for (const auto* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    for (const auto& name : option->get_lnames()) node.options.push_back("--" + name);
    for (const auto& name : option->get_snames()) node.options.push_back("-" + name);
  }
  visit(app, node);
  for (const auto* sub : subcommands(app))
    walk(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name(), visit);
}

// For single quotes.
std::string escaped(std::string text) {
  text = text.substr(0, text.find(':'));
  std::string out;
  for (char c : text) out += c == '\'' ? "\\'" : std::string(1, c);
  return out;
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::string paths, words, ids;
  walk(app, "", [&](const CLI::App&, const Node& node) {
    if (!node.path.empty()) paths += (paths.empty() ? "" : " | ") + fmt::format("'{}'", node.path);
    words += fmt::format("    '{}') words='{}' options='{}' ;;\n", node.path, fmt::join(node.commands, " "),
                         fmt::join(node.options, " "));
    if (node.sandbox) ids += (ids.empty() ? "" : " | ") + fmt::format("'{}'", node.path);
  });
  return fmt::format(R"sh(# bash completion for isola: source <(isola completion bash)
_isola() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} path= next words options i
  for ((i = 1; i < COMP_CWORD; i++)); do
    [[ ${{COMP_WORDS[i]}} == -- ]] && return
    next="${{path:+$path }}${{COMP_WORDS[i]}}"
    case $next in {}) path=$next ;; esac
  done
  case $path in
{}  esac
  if [[ $cur == -* ]]; then
    words=$options
  else
    case $path in {}) words+=" $(isola sandbox ls -q 2>/dev/null)" ;; esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _isola isola
)sh",
                     paths, words, ids);
}

std::string zsh_completion(const CLI::App& app) {
  return "# zsh completion for isola: source <(isola completion zsh)\nautoload -U +X bashcompinit && bashcompinit\n" +
         bash_completion(app);
}

std::string fish_completion(const CLI::App& app) {
  std::string out = "# fish completion for isola: isola completion fish | source\ncomplete -c isola -e\n";
  walk(app, "", [&](const CLI::App& here, const Node& node) {
    // True where the words so far lead here and no further.
    std::string when = "__fish_use_subcommand";
    if (!node.path.empty()) {
      when.clear();
      for (size_t at = 0; at < node.path.size();) {
        auto space = std::min(node.path.find(' ', at), node.path.size());
        when += (when.empty() ? "" : "; and ") + std::string("__fish_seen_subcommand_from ") +
                node.path.substr(at, space - at);
        at = space + 1;
      }
      if (!node.commands.empty())
        when += fmt::format("; and not __fish_seen_subcommand_from {}", fmt::join(node.commands, " "));
    }
    for (const auto* sub : subcommands(here))
      out += fmt::format("complete -c isola -n '{}' -f -a {} -d '{}'\n", when, sub->get_name(),
                         escaped(sub->get_description()));
    for (const auto* option : here.get_options()) {
      if (option->get_group().empty()) continue;
      for (const auto& name : option->get_lnames())
        out += fmt::format("complete -c isola -n '{}' -l {} -d '{}'\n", when, name, escaped(option->get_description()));
    }
    if (node.sandbox) out += fmt::format("complete -c isola -n '{}' -a '(isola sandbox ls -q 2>/dev/null)'\n", when);
  });
  return out;
}

void add_completion(CLI::App& app, Common&, int& code) {
  auto shell = std::make_shared<std::string>();
  auto* command = app.add_subcommand("completion", "Print a completion script: source <(isola completion bash)");
  command->add_option("shell", *shell, "bash, zsh or fish")->required();
  command->callback([shell, &app, &code] {
    if (*shell == "bash")
      print(bash_completion(app));
    else if (*shell == "zsh")
      print(zsh_completion(app));
    else if (*shell == "fish")
      print(fish_completion(app));
    else
      code = complain("there is completion for bash, zsh and fish, not for " + *shell);
  });
}

}  // namespace isola::cli
