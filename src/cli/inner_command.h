// Command lines that hold another command line: `isola run [OPTIONS] [--] COMMAND...`. Whatever the words of the inner
// command look like, none of them ever reaches our parser.
//
//   auto words = takes_inner_command(*exec, 1);      // one word of ours (the sandbox) stands before it
//   …
//   argc = cut_inner_command(app, argc, argv);       // before parsing: fills *words, and leaves the rest
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace isola::cli {

using Words = std::shared_ptr<std::vector<std::string>>;

Words takes_inner_command(CLI::App& app, int words_before);
// The commands are gone (tests make and unmake them).
void forget_inner_commands();
int cut_inner_command(CLI::App& app, int argc, char** argv);

}  // namespace isola::cli
