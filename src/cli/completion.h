// Completion scripts, made from the commands themselves: whatever is registered can be completed.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace isola::cli {

std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string fish_completion(const CLI::App& app);

}  // namespace isola::cli
