// isola sandbox logs: the commands of a sandbox, and what one of them wrote.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/api.h"
#include "cli/output_events.h"
#include "cli/register.h"
#include "cli/table.h"

namespace isola::cli {

using nlohmann::json;

namespace {

struct LogsOptions {
  std::string sandbox, command;
  bool follow = false, clean = false;
};

std::string how(const json& command) {
  if (command.value("running", false)) return "running";
  if (command.value("timed_out", false)) return "timed out";
  if (command.value("killed_by_memory_limit", false)) return "out of memory";
  return "exit " + text_of(command, "exit_code", "?");
}

Result<void> list(Api& api, const std::string& sandbox, bool as_json) {
  ISOLA_TRY(json all, api.get("/v1/sandboxes/" + sandbox + "/commands"));
  if (as_json) {
    print_json(all);
    return {};
  }
  Table table({"COMMAND", "STARTED", "STATUS", "WHAT"});
  for (const auto& one : all.value("commands", json::array()))
    table.add({text_of(one, "id"), when_of(one, "started"), how(one), text_of(one, "command").substr(0, 100)});
  print(table.text());
  return {};
}

// What is there; with `follow`, what comes, too.
Result<void> show(Api& api, const LogsOptions& options, const std::string& sandbox, const std::string& command,
                  bool as_json) {
  OutputPrinter printer({.encoded = !options.clean});
  auto sink = [&](std::string_view piece) -> Result<void> {
    if (!as_json) return printer.feed(piece);
    print(piece);
    return {};
  };
  std::string target = "/v1/sandboxes/" + sandbox + "/commands/" + command + "/output?from=0";
  if (!options.follow) target += "&follow=false";
  if (options.clean)
    target += "&clean=true";
  else if (!as_json)
    target += "&encoding=base64";
  http::ClientRequest request{.target = target, .sink = sink};
  auto read = api.request(std::move(request));
  if (!read) return std::unexpected(read.error());
  if (printer.end() && printer.end()->kind == OutputEvent::error)
    return fail(Code::unavailable, printer.end()->message);
  return {};
}

Result<void> logs(const Common& common, const LogsOptions& options) {
  ISOLA_TRY(Api api, Api::open(common));
  ISOLA_TRY(std::string sandbox, api.sandbox_id(options.sandbox));
  if (options.command.empty()) return list(api, sandbox, common.json);
  ISOLA_TRY(std::string command, api.command_id(sandbox, options.command));
  return show(api, options, sandbox, command, common.json);
}

}  // namespace

void add_logs(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<LogsOptions>();
  auto* command = app.add_subcommand("logs", "What a command wrote; without one, the commands of the sandbox");
  command->add_option("id", options->sandbox, "The sandbox")->required();
  command->add_option("command", options->command, "The command's id, or the beginning of it");
  command->add_flag("-f,--follow", options->follow, "Go on until the command ends");
  command->add_flag("--clean", options->clean, "Take terminal escapes and misleading characters out of the output");
  add_server_options(*command, common);
  command->callback([=, &common, &code] {
    auto shown = logs(common, *options);
    code = shown ? 0 : complain(shown.error().message);
  });
}

}  // namespace isola::cli
