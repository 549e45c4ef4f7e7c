// Each command registers itself: its words, its options, and what happens then (code is what main returns).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"

namespace CLI {
class App;
}

namespace isola::cli {

void add_run(CLI::App& app, Common& common, int& code);
void add_serve(CLI::App& app, Common& common, int& code);          // serve, up
void add_sandbox(CLI::App& app, Common& common, int& code);        // sandbox …, and exec, shell, cp at the top
void add_image_verbs(CLI::App& group, Common& common, int& code);  // pause, resume, snapshot, fork, rollback
void add_snapshot(CLI::App& app, Common& common, int& code);
void add_volume(CLI::App& app, Common& common, int& code);
void add_secret(CLI::App& app, Common& common, int& code);
void add_bind(CLI::App& app, Common& common, int& code);  // bind, unbind, grants
void add_vault(CLI::App& app, Common& common, int& code);
void add_vault_fetch(CLI::App& app, int& code);
void add_bucket_relay(CLI::App& app, int& code);
void add_exec(CLI::App& app, Common& common, int& code);
void add_shell(CLI::App& app, Common& common, int& code);
void add_copy(CLI::App& app, Common& common, int& code);
void add_logs(CLI::App& app, Common& common, int& code);
void add_port(CLI::App& app, Common& common, int& code);
void add_key(CLI::App& app, Common& common, int& code);
void add_project(CLI::App& app, Common& common, int& code);
void add_records(CLI::App& app, Common& common, int& code);  // usage, events, ledger
void add_template(CLI::App& app, Common& common, int& code);
void add_doctor(CLI::App& app, Common& common, int& code);
void add_prove(CLI::App& app, Common& common, int& code);
void add_launcher(CLI::App& app, Common& common, int& code);
void add_net(CLI::App& app, Common& common, int& code);
void add_gate(CLI::App& app, int& code);
void add_audit(CLI::App& app, Common& common, int& code);
void add_scan(CLI::App& app, Common& common, int& code);
void add_completion(CLI::App& app, Common& common, int& code);

// NAME[/FOLDER]:/path[:ro] as the API has it.
Result<nlohmann::json> parse_volume(const std::string& text);
Result<nlohmann::json> parse_bucket(const std::string& text);

// NAME=value words as an object; `option` is named in the complaint.
Result<nlohmann::json> parse_labels(const std::vector<std::string>& words, const std::string& option);
// A word for a shell, in quotes if it needs them.
std::string quoted(const std::string& word);

}  // namespace isola::cli
