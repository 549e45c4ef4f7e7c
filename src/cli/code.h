// isola code and isola repl: cells in a sandbox's interpreter.
#pragma once

#include <optional>
#include <string>

#include "cli/api.h"
#include "cli/commands.h"

namespace CLI {
class App;
}

namespace isola::cli {

struct CodeOptions {
  std::string file;      // of code; "-": standard input
  std::string language;  // empty: python, or what the file's name says
  std::string sandbox;   // empty: one of its own, thrown away afterwards
  std::string context, timeout, template_name = "code-interpreter";
};
void add_code(CLI::App& app, Common& common, int& code);
void add_repl(CLI::App& app, Common& common, int& code);

// The sandbox that was named, or a new one that goes with this object.
class CodeSandbox {
 public:
  static Result<CodeSandbox> open(Api& api, const CodeOptions& options);
  CodeSandbox(CodeSandbox&& other) noexcept
      : api_(other.api_), id_(other.id_), own_(std::exchange(other.own_, false)) {}
  CodeSandbox& operator=(CodeSandbox&&) = delete;
  ~CodeSandbox();
  const std::string& id() const { return id_; }
  void remove(Api& api) const;  // if it is one of its own; over this connection

 private:
  CodeSandbox(Api& api, std::string id, bool own) : api_(api), id_(std::move(id)), own_(own) {}
  Api& api_;
  std::string id_;
  bool own_;
};

// Runs one cell and shows what it says; the exit code.
int run_cell(Api& api, const std::string& sandbox, const CodeOptions& options, const std::string& text, bool json);

}  // namespace isola::cli
