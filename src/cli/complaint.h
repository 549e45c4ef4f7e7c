// What was wrong with a command line, in one line; of a command that there is not, which one may have been meant.
//
//   complaint(app, error.what(), {"sandbox", "lst"})
//     → there is no command 'sandbox lst': did you mean 'sandbox ls'?
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace isola::cli {

// `words`: what came behind the program's name. The app has parsed them as far as it could.
std::string complaint(const CLI::App& app, const std::string& message, const std::vector<std::string>& words);

}  // namespace isola::cli
