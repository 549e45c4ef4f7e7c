#include "cli/code.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/cell_signals.h"
#include "cli/code_printer.h"
#include "cli/output_events.h"
#include "cli/table.h"

namespace isola::cli {

using nlohmann::json;

namespace {

constexpr size_t kMaxCode = 48 << 20;

std::string language_of(const std::string& file) {
  static const std::pair<const char*, const char*> kEndings[] = {
      {".py", "python"}, {".js", "javascript"}, {".mjs", "javascript"}, {".ts", "typescript"}, {".sh", "bash"},
      {".r", "r"},       {".R", "r"},           {".java", "java"}};
  for (const auto& [ending, language] : kEndings)
    if (file.ends_with(ending)) return language;
  return "python";
}

Result<std::string> read_code(const std::string& file) {
  if (file != "-") return read_file(file, kMaxCode);
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

int run_code(const Common& common, CodeOptions options) {
  if (options.language.empty() && options.context.empty()) options.language = language_of(options.file);
  auto text = read_code(options.file);
  if (!text) return complain(text.error().message);
  auto api = Api::open(common);
  if (!api) return complain(api.error().message);
  auto signals = CellSignals::open();
  if (!signals) return complain(signals.error().message);
  auto sandbox = CodeSandbox::open(*api, options);
  if (!sandbox) return complain(sandbox.error().message);
  // Leaving interrupts the cell; a sandbox of its own goes first, and nobody needs to hear what that does to the cell.
  CellSignals::Watch watch(*signals, [&, other = std::make_shared<Api>(api->another())](int number) {
    Fd nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    for (int fd : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing.get(), fd);
    sandbox->remove(*other);
    ::_exit(128 + number);
  });
  return run_cell(*api, sandbox->id(), options, *text, common.json);
}

}  // namespace

Result<CodeSandbox> CodeSandbox::open(Api& api, const CodeOptions& options) {
  if (!options.sandbox.empty()) {
    ISOLA_TRY(std::string id, api.sandbox_id(options.sandbox));
    return CodeSandbox(api, id, false);
  }
  ISOLA_TRY(json made, api.send("POST", "/v1/sandboxes", {{"template", options.template_name}}));
  return CodeSandbox(api, text_of(made, "id"), true);
}

CodeSandbox::~CodeSandbox() { remove(api_); }

void CodeSandbox::remove(Api& api) const {
  if (own_) (void)api.remove("/v1/sandboxes/" + id_);
}

int run_cell(Api& api, const std::string& sandbox, const CodeOptions& options, const std::string& text, bool as_json) {
  json body = {{"code", text}, {"stream", true}};
  if (!options.context.empty())
    body["context"] = options.context;
  else
    body["language"] = options.language;
  if (!options.timeout.empty()) body["timeout"] = options.timeout;
  CodePrinter printer({.images = terminal_images(), .json = as_json});
  auto reply = api.request({.method = "POST",
                            .target = "/v1/sandboxes/" + sandbox + "/code",
                            .body = json_text(body),
                            .sink = [&](std::string_view piece) { return printer.feed(piece); },
                            .io_time = std::chrono::milliseconds(0)});
  if (!reply) return complain(reply.error().message);
  return printer.exit_code();
}

void add_code(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<CodeOptions>();
  auto* command = app.add_subcommand("code", "Run a file as a cell in a sandbox's interpreter");
  command->add_option("file", options->file, "A file with code, or - for standard input")->required();
  command->add_option("-l,--language", options->language,
                      "python, javascript, typescript, bash, r, java (default: by the file's name)");
  command->add_option("-s,--sandbox", options->sandbox, "In this sandbox (default: a new one that is thrown away)");
  command->add_option("--context", options->context, "In this context of it");
  command->add_option("--timeout", options->timeout,
                      "Interrupt the cell after this time, as 5s or 10m (exit code 124)");
  command->add_option("--template", options->template_name, "For a new sandbox")->capture_default_str();
  add_server_options(*command, common);
  command->callback([=, &common, &code] { code = run_code(common, *options); });
}

}  // namespace isola::cli
