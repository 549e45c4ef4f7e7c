// isola exec: a command in a sandbox that is there.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/api.h"
#include "cli/inner_command.h"
#include "cli/output_events.h"
#include "cli/register.h"
#include "cli/remote_command.h"
#include "cli/shell.h"
#include "cli/table.h"

namespace isola::cli {

using nlohmann::json;

namespace {

struct ExecOptions {
  std::string sandbox, cwd, user, timeout, task, actor;
  std::vector<std::string> env, secrets, secret_files;
  bool terminal = false, no_input = false, detach = false, clean = false;
};

int exec(const Common& common, const ExecOptions& options, const std::vector<std::string>& words) {
  if (words.empty()) return complain("exec what? Give a command: isola exec ID -- ls -l");
  auto env = parse_labels(options.env, "--env");
  if (!env) return complain(env.error().message);
  auto secrets = parse_labels(options.secrets, "--secret");
  if (!secrets) return complain(secrets.error().message);
  auto secret_files = parse_labels(options.secret_files, "--secret-file");
  if (!secret_files) return complain(secret_files.error().message);
  if (options.terminal && (!secrets->empty() || !secret_files->empty()))
    return complain("--secret and --secret-file do not go with a terminal");
  auto api = Api::open(common);
  if (!api) return complain(api.error().message);
  auto id = api->sandbox_id(options.sandbox);
  if (!id) return complain(id.error().message);
  if (options.terminal) {
    std::string line = "exec env";
    for (const auto& [name, value] : env->items()) line += " " + quoted(name + "=" + value.get<std::string>());
    for (const auto& word : words) line += " " + quoted(word);
    return run_terminal(*api, {.sandbox = *id, .command = line, .cwd = options.cwd, .user = options.user});
  }
  std::string target = "/v1/sandboxes/" + *id + "/commands";
  json body = {{"argv", words}};
  if (!env->empty()) body["env"] = *env;
  if (!secrets->empty()) body["secrets"] = *secrets;
  if (!secret_files->empty()) body["secret_files"] = *secret_files;
  if (!options.cwd.empty()) body["cwd"] = options.cwd;
  if (!options.user.empty()) body["user"] = options.user;
  if (!options.timeout.empty()) body["timeout"] = options.timeout;
  if (!options.task.empty()) body["task"] = options.task;
  if (!options.actor.empty()) body["actor"] = options.actor;
  if (options.detach) {
    body["background"] = true;
    auto started = api->send("POST", target, body);
    if (!started) return exit_code_of(started.error(), api->refusal());
    if (common.json)
      print_json(*started);
    else
      print(text_of(*started, "id") + "\n");
    return 0;
  }
  if (options.clean) body["clean"] = true;
  if (common.json) {
    // The whole answer at once, for programs. Such a caller's standard input is rarely meant for the command.
    auto reply = api->request(
        {.method = "POST", .target = target, .body = json_text(body), .io_time = std::chrono::milliseconds(0)});
    if (!reply) return exit_code_of(reply.error(), api->refusal());
    json result = json::parse(reply->body, nullptr, false);
    if (!result.is_object()) return complain("the server's answer is malformed");
    print_json(result);
    return result.value("timed_out", false) ? kTimedOut : result.value("exit_code", kFailed);
  }
  body["stream"] = true;
  if (secret_files->empty()) body["wait_for_reader"] = true;  // the two do not go together
  body["encoding"] = options.clean ? "text" : "base64";
  if (!options.no_input) body["open_stdin"] = true;
  return run_remote(*api, {.sandbox = *id,
                           .target = target,
                           .body = json_text(body),
                           .encoded = !options.clean,
                           .input = !options.no_input});
}

}  // namespace

void add_exec(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<ExecOptions>();
  auto* exec_command =
      app.add_subcommand("exec", "Run a command in a sandbox: isola exec [OPTIONS] ID [--] COMMAND...");
  exec_command->add_option("id", options->sandbox, "The sandbox: its id, the beginning of it, or its name")->required();
  exec_command->add_option("--env,-e", options->env, "NAME=value for the command; can be repeated")
      ->allow_extra_args(false);
  exec_command
      ->add_option("--secret", options->secrets,
                   "NAME=SECRET: that secret's value in the variable NAME, where project and machine allow it")
      ->allow_extra_args(false);
  exec_command
      ->add_option("--secret-file", options->secret_files,
                   "NAME=SECRET: the same in a file that is gone with the command; NAME says where it is")
      ->allow_extra_args(false);
  exec_command->add_option("--cwd,-w", options->cwd, "Working folder inside (default: the user's home)");
  exec_command->add_option("--user,-u", options->user, "User inside: a name, or uid[:gid] (default root)");
  exec_command->add_option("--timeout", options->timeout, "End it after this time, as 5s or 10m (exit code 124)");
  exec_command->add_option("--task", options->task, "The task that the ledger shall name");
  exec_command->add_option("--actor", options->actor, "Who acts, for the ledger");
  exec_command->add_flag("-t,--tty", options->terminal, "Give the command a terminal");
  exec_command->add_flag("-n,--no-stdin", options->no_input, "Do not forward standard input");
  exec_command->add_flag("-d,--detach", options->detach, "Start it, print its id, and leave (see isola sandbox logs)");
  exec_command->add_flag("--clean", options->clean,
                         "Take terminal escapes and misleading characters out of the output");
  add_server_options(*exec_command, common);
  auto words = takes_inner_command(*exec_command, 1);
  exec_command->callback([=, &common, &code] { code = exec(common, *options, *words); });
}

}  // namespace isola::cli
