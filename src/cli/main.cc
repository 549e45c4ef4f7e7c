#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "base/units.h"
#include "cli/commands.h"
#include "cli/parse.h"
#include "cli/serve.h"
#include "gate/gate.h"
#include "launcher/launcher.h"

namespace {

using isola::cli::Common;

// Read before the options, so that an option on the command line wins wherever it stands.
void read_environment(Common& common) {
  if (const char* folder = std::getenv("ISOLA_DATA")) common.data_dir = folder;
  if (const char* folder = std::getenv("ISOLA_CACHE")) common.cache_dir = folder;
}

// Every command takes these, before or after its name.
void add_common(CLI::App& app, Common& common) {
  app.add_option("--data", common.data_dir, "Where state lives (or ISOLA_DATA)")->capture_default_str();
  app.add_option("--cache", common.cache_dir, "Where templates live, machine-wide (or ISOLA_CACHE)")
      ->capture_default_str();
  app.add_flag("--json", common.json, "Print JSON");
}

// The command of `isola run`, whatever its words look like: none of them ever reaches the parser.
std::vector<std::string> guest_command;

void add_run(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<isola::cli::RunOptions>();
  auto* run = app.add_subcommand(
      "run", "Run one command in a fresh sandbox, then throw the sandbox away: isola run [OPTIONS] [--] COMMAND...");
  run->add_option("--template", options->template_name, "What the sandbox starts from")->capture_default_str();
  run->add_option("--memory", options->memory, "Memory limit, as 64M or 2G (default 512M)");
  run->add_option("--cpus", options->limits.cpus, "Processor limit, in cores")->capture_default_str();
  run->add_option("--disk", options->disk, "Limit of what it can write, as 64M or 2G (default 2G)");
  run->add_option("--pids", options->limits.pids, "Limit of processes and threads")->capture_default_str();
  run->add_option("--open-files", options->limits.open_files, "Limit of open files per process")->capture_default_str();
  run->add_option("--io", options->io, "Limit of disk traffic per second, as 50M (see `isola doctor`)");
  run->add_option("--timeout", options->timeout, "End it after this time, as 5s or 10m (exit code 124)");
  run->add_option("--env,-e", options->env, "NAME=value for the command; can be repeated")->allow_extra_args(false);
  run->add_option("--cwd,-w", options->cwd, "Working folder inside (default: the user's home)");
  run->add_option("--user,-u", options->user, "User inside: a name, or uid[:gid] (default root)");
  run->add_option("--net", options->net,
                  "What it may reach: none (default), all, package-registries, @FILE with a policy, or rules as "
                  "'allow *.example.org:443; allow 192.0.2.0/24'");
  run->add_option("--mount-ro", options->mounts, "HOST[:INSIDE]: show a folder or file of this machine, read-only")
      ->allow_extra_args(false);
  run->add_flag("-t,--tty", options->terminal, "Give the command a terminal");
  run->add_flag("--cold", options->cold, "Make a sandbox from nothing, even if a parked one waits");
  run->add_flag("--latency", options->latency, "Print where the time went");
  run->add_flag("--allow-unquotaed-disk", options->allow_unquotaed,
                "Run even where nothing can limit what the sandbox writes (it could fill this machine's disk)");
  run->add_option("command", options->command,
                  "The command and its arguments");  // for the help text: see command_begins
  run->callback([options, &common, &code] {
    options->command = guest_command;
    if (options->command.empty()) {
      code = isola::cli::complain("run what? Give a command: isola run -- echo hello");
      return;
    }
    if (auto named = isola::cli::check_environment(options->env); !named) {
      code = isola::cli::complain(named.error().message);
      return;
    }
    code = isola::cli::run(common, *options);
  });
}

void add_template(CLI::App& app, Common& common, int& code) {
  auto* group = app.add_subcommand("template", "What sandboxes start from")->require_subcommand(1);
  group->add_subcommand("ls", "List the templates on this machine")->callback([&] {
    code = isola::cli::template_list(common);
  });
  auto names = std::make_shared<std::vector<std::string>>();
  auto again = std::make_shared<bool>(false);
  auto* build = group->add_subcommand("build", "Make a template, if it is not there and current");
  build->add_option("name", *names, "base or minimal")->required();
  build->add_flag("--again", *again, "Make it anew in any case");
  build->callback([&, names, again] { code = isola::cli::template_build(common, *names, *again); });
  auto name = std::make_shared<std::string>();
  auto* verify = group->add_subcommand("verify", "Read a template's blob and compare it with its digest");
  verify->add_option("name", *name)->required();
  verify->callback([&, name] { code = isola::cli::template_verify(common, *name); });
  auto* remove = group->add_subcommand("rm", "Remove a template");
  remove->add_option("name", *name)->required();
  remove->callback([&, name] { code = isola::cli::template_remove(common, *name); });
}

void add_prove(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<isola::cli::ProveOptions>();
  auto* prove =
      app.add_subcommand("prove", "Attack sandboxes of this machine with the hostile programs and show that they hold");
  prove->add_option("--template", options->templates, "Only these (default: all that are built)")
      ->allow_extra_args(false);
  prove->add_option("--program", options->programs, "Only these programs")->allow_extra_args(false);
  prove->add_option("--birth", options->births, "Only these births: cold, pooled")->allow_extra_args(false);
  prove->add_flag("--verbose,-v", options->verbose, "Print what each program found");
  prove->callback([&, options] { code = isola::cli::prove(common, *options); });
}

void add_launcher(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<isola::launcher::LauncherOptions>();
  auto linger = std::make_shared<std::string>("0");
  auto* launcher =
      app.add_subcommand("launcher", "The privileged process that makes sandboxes (started by itself when needed)");
  launcher->add_option("--linger", *linger, "Leave after being idle for so long, as 5m; 0: stay")
      ->capture_default_str();
  launcher->add_option("--guest", options->guest_program, "The isola-guest program (default: beside this one)");
  launcher->add_option("--layer-store", options->layer_store,
                       "project-quota, btrfs, ext4-file or unquotaed (default: the first that works)");
  launcher->add_option("--user", options->user, "Who may use it besides root: a name or a uid (default: nobody)");
  launcher
      ->add_option("--name-servers", options->name_servers,
                   "Where sandboxes' names are looked up, as 192.0.2.53:53 (default: as this machine does)")
      ->envname("ISOLA_NAME_SERVERS");
  launcher->add_flag("--daemon", options->daemon, "Go into the background, log to DATA/launcher.log");
  launcher->add_option("--ready-fd", options->ready_fd, "Tell this descriptor when ready")->group("");
  auto* status = launcher->add_subcommand("status", "Show the launcher that runs on --data");
  status->callback([&] { code = isola::cli::launcher_status(common); });
  auto all = std::make_shared<bool>(false);
  auto* stop = launcher->add_subcommand("stop", "End it; its sandboxes live on and the next launcher adopts them");
  stop->add_flag("--all", *all, "End its sandboxes too");
  stop->callback([&, all] { code = isola::cli::launcher_stop(common, *all); });
  launcher->callback([&, options, linger, launcher] {
    if (!launcher->get_subcommands().empty()) return;
    auto time = isola::parse_duration(*linger);
    if (!time) {
      code = isola::cli::complain(time.error().message);
      return;
    }
    options->linger = std::chrono::ceil<std::chrono::seconds>(*time);
    options->data_dir = common.data_dir;
    options->cache_dir = common.cache_dir;
    code = isola::launcher::run_launcher(*options) ? 0 : isola::cli::kFailed;
  });
}

void add_net(CLI::App& app, Common& common, int& code) {
  auto* group = app.add_subcommand("net", "What a sandbox may reach, and what it tried to")->require_subcommand(1);
  auto id = std::make_shared<std::string>();
  auto text = std::make_shared<std::string>();
  auto cut = std::make_shared<bool>(false);
  auto command = [&](const char* name, const char* what) {
    auto* one = group->add_subcommand(name, what);
    one->add_option("sandbox", *id, "Its id")->required();
    return one;
  };
  auto changing = [&](CLI::App* one, const char* what) {
    one->add_option("what", *text, what)->required();
    one->add_flag("--cut", *cut, "End connections that are not allowed any longer, now");
    return one;
  };
  command("show", "Its policy, what was refused and why, and where it has been")->callback([&, id] {
    code = isola::cli::net_show(common, *id);
  });
  changing(command("set", "Give it another policy"), "none, all, package-registries, @FILE, or rules separated by ';'")
      ->callback([&, id, text, cut] { code = isola::cli::net_set(common, *id, *text, *cut); });
  for (std::string action : {"allow", "deny"})
    changing(command(action.c_str(),
                     action == "allow" ? "Put a rule in front that allows" : "Put a rule in front that denies"),
             "NAME, *.NAME, NETWORK or *, with :PORTS")
        ->callback([&, id, text, cut, action] { code = isola::cli::net_add(common, *id, action + " " + *text, *cut); });
  command("learn", "Let it through and record; a second time: print the smallest policy that would have sufficed")
      ->callback([&, id] { code = isola::cli::net_learn(common, *id); });
  auto* watch = group->add_subcommand("watch", "Decisions as they are made");
  watch->add_option("sandbox", *id, "Only this one");
  watch->callback([&, id] { code = isola::cli::net_watch(common, *id); });
}

// Started by the launcher, and of no use to anybody else.
void add_gate(CLI::App& app, int& code) {
  auto control = std::make_shared<int>(-1);
  auto servers = std::make_shared<std::string>();
  auto* gate = app.add_subcommand("gate", "The process that sandboxes reach the network through")->group("");
  gate->add_option("--control", *control, "The descriptor of the conversation with the launcher")->required();
  gate->add_option("--name-servers", *servers, "Instead of this machine's");
  gate->callback([control, servers, &code] {
    auto ran = isola::gate::run_gate({.control = isola::Fd(*control), .servers = *servers});
    code = ran ? 0 : isola::cli::complain(ran.error().message);
  });
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);  // a sandbox that ends while it is spoken to is an answer, not the end of us
  CLI::App app("Isola: every agent gets its own island.\nSandboxes for code that a model wrote, on one Linux machine.",
               "isola");
  Common common;
  read_environment(common);
  int code = 0;
  app.set_version_flag("--version", std::string("isola ") + ISOLA_VERSION);
  app.require_subcommand(1);
  add_common(app, common);
  add_run(app, common, code);
  isola::cli::add_serve(app, common, code);
  add_template(app, common, code);
  app.add_subcommand("doctor", "What works on this machine, and what to do about what does not")->callback([&] {
    code = isola::cli::doctor(common);
  });
  add_prove(app, common, code);
  add_launcher(app, common, code);
  add_net(app, common, code);
  add_gate(app, code);
  for (auto* command : app.get_subcommands({})) {
    add_common(*command, common);
    for (auto* nested : command->get_subcommands({})) add_common(*nested, common);
  }
  auto takes_value = [&](bool in_run, const std::string& option) {
    const auto* known = (in_run ? app.get_subcommand("run") : &app)->get_option_no_throw(option);
    return known && known->get_items_expected_max() > 0;
  };
  int begin = 1 + static_cast<int>(isola::cli::command_begins({argv + 1, argv + argc}, takes_value));
  if (begin < argc) {
    bool dashes = std::string_view(argv[begin]) == "--";
    guest_command.assign(argv + begin + (dashes ? 1 : 0), argv + argc);
    argc = begin;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help, version
    std::string message = error.what();
    for (int i = 1; i < argc && app.get_subcommands().empty(); ++i)
      if (argv[i][0] != '-' &&
          app.get_subcommands([&](const CLI::App* one) { return one->get_name() == argv[i]; }).empty()) {
        message = "there is no command '" + std::string(argv[i]) + "'";
        break;
      }
    return isola::cli::complain(message.substr(0, message.find('\n')) + " (see isola --help)");
  }
  return code;
}
