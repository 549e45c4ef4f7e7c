#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "base/standard_descriptors.h"
#include "cli/certs.h"
#include "cli/code.h"
#include "cli/commands.h"
#include "cli/complaint.h"
#include "cli/inner_command.h"
#include "cli/register.h"
#include "cli/table.h"
#include "launcher/bucket.h"

namespace {

using isola::cli::Common;

// Read before the options, so that an option on the command line wins wherever it stands.
void read_environment(Common& common) {
  if (const char* folder = std::getenv("ISOLA_DATA")) common.data_dir = folder;
  if (const char* folder = std::getenv("ISOLA_CACHE")) common.cache_dir = folder;
}

// Every command takes these, before or after its name.
void add_common(CLI::App& app, Common& common) {
  app.add_option("--data", common.data_dir, "Where state lives (or ISOLA_DATA)")
      ->capture_default_str()
      ->each([&common](const std::string&) { common.data_given = true; });
  app.add_option("--cache", common.cache_dir, "Where templates live, machine-wide (or ISOLA_CACHE)")
      ->capture_default_str()
      ->each([&common](const std::string&) { common.cache_given = true; });
  app.add_flag("--json", common.json, "Print JSON");
}

void add_commands(CLI::App& app, Common& common, int& code) {
  using namespace isola::cli;
  add_common(app, common);
  add_run(app, common, code);
  add_sandbox(app, common, code);  // and exec, shell, cp
  add_snapshot(app, common, code);
  add_volume(app, common, code);
  add_secret(app, common, code);
  add_bind(app, common, code);  // unbind, grants
  add_vault(app, common, code);
  add_code(app, common, code);
  add_repl(app, common, code);
  add_key(app, common, code);
  add_project(app, common, code);
  add_records(app, common, code);  // usage, events, ledger
  add_audit(app, common, code);
  add_scan(app, common, code);
  add_serve(app, common, code);  // and up
  add_template(app, common, code);
  add_certs(app, common, code);
  add_doctor(app, common, code);
  add_prove(app, common, code);
  add_launcher(app, common, code);
  add_net(app, common, code);
  add_gate(app, code);
  add_vault_fetch(app, code);
  add_bucket_relay(app, code);
  add_completion(app, common, code);
  for (auto* command : app.get_subcommands({})) {
    add_common(*command, common);
    for (auto* nested : command->get_subcommands({})) add_common(*nested, common);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // What serves a bucket is confined to a root in which this program stands for fusermount.
  if (argc > 0 && std::string_view(argv[0]).ends_with("fusermount")) return isola::launcher::take_fuse(argc, argv);
  // With one of them closed, the connection to the launcher would be where a sandbox's output goes.
  if (!isola::take_standard_descriptors()) return isola::cli::kFailed;
  ::signal(SIGPIPE, SIG_IGN);  // a sandbox that ends while it is spoken to is an answer, not the end of us
  CLI::App app("Isola: every agent gets its own island.\nSandboxes for code that a model wrote, on one Linux machine.",
               "isola");
  Common common;
  read_environment(common);
  int code = 0;
  app.set_version_flag("--version", std::string("isola ") + ISOLA_VERSION);
  app.require_subcommand(1);
  add_commands(app, common, code);
  app.add_subcommand("help", "This list")->callback([&] {
    // app.help() would be about the command that was found: this one.
    isola::cli::print(app.get_formatter()->make_help(&app, "isola", CLI::AppFormatMode::Normal));
  });
  argc = isola::cli::cut_inner_command(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error), isola::cli::finish_printing();  // help, version
    return isola::cli::complain(isola::cli::complaint(app, error.what(), {argv + 1, argv + argc}));
  }
  const int printed = isola::cli::finish_printing();
  return code != 0 ? code : printed;
}
