#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/commands.h"
#include "cli/register.h"
#include "cli/table.h"
#include "gate/gate.h"
#include "launcher/client.h"
#include "launcher/launcher.h"

namespace isola::cli {

int complain(const std::string& message) {
  std::fprintf(stderr, "isola: %s\n", message.c_str());
  return kFailed;
}

nlohmann::json boundaries_json(const std::vector<boundary::Offer>& offers) {
  auto out = nlohmann::json::array();
  for (const auto& offer : offers) {
    nlohmann::json one = {{"boundary", to_string(offer.kind)}, {"offered", offer.offered}, {"detail", offer.detail}};
    if (offer.offered)
      one.update({{"engine", offer.engine.name},
                  {"engine_version", offer.engine.version},
                  {"accelerated", offer.engine.accelerated}});
    else
      one["missing"] = offer.missing;
    out.push_back(std::move(one));
  }
  return out;
}

// "jail (linux 6.1, shared kernel)"
std::string boundary_words(const boundary::Offer& offer) {
  if (!offer.offered) return std::string(to_string(offer.kind)) + ": " + offer.missing;
  return std::string(to_string(offer.kind)) + " (" + offer.engine.name + " " + offer.engine.version +
         (offer.detail.empty() ? "" : ", " + offer.detail) + ")";
}

int launcher_status(const Common& common) {
  auto client = launcher::Client::connect(common.data_dir);
  if (!client) return complain(client.error().message);
  auto info = client->info();
  if (!info) return complain(info.error().message);
  if (common.json) {
    nlohmann::json out = {{"version", info->version},
                          {"pid", info->pid},
                          {"boundaries", boundaries_json(info->boundaries)},
                          {"layer_store", info->layer_store},
                          {"checkpointer", info->checkpointer},
                          {"disk_enforced", info->disk_enforced},
                          {"live", info->live},
                          {"parked", info->parked},
                          {"cleaning", info->cleaning}};
    std::puts(out.dump(2).c_str());
    return 0;
  }
  std::printf("launcher %s (process %d) on %s\n", info->version.c_str(), info->pid, common.data_dir.c_str());
  for (const auto& offer : info->boundaries)
    std::printf("  boundary %s%s\n", offer.offered ? "" : "not offered: ", boundary_words(offer).c_str());
  std::printf("  disk limits by %s\n  %u live, %u parked\n", info->layer_store.c_str(), info->live, info->parked);
  return 0;
}

int launcher_stop(const Common& common, bool end_all) {
  auto client = launcher::Client::connect(common.data_dir);
  bool there = client || client.error().code != Code::unavailable;
  if (there && !client) return complain(client.error().message);
  if (there) {
    auto stopped = client->shutdown(end_all);
    if (!stopped) return complain(stopped.error().message);
  }
  if (common.json) print_json({{"stopped", there}});
  return 0;
}

void add_launcher(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<launcher::LauncherOptions>();
  auto linger = std::make_shared<std::string>("0");
  auto* command =
      app.add_subcommand("launcher", "The privileged process that makes sandboxes (started by itself when needed)");
  command->add_option("--linger", *linger, "Leave after being idle for so long, as 5m; 0: stay")->capture_default_str();
  command->add_option("--guest", options->guest_program, "The isola-guest program (default: beside this one)");
  command->add_option("--layer-store", options->layer_store,
                      "project-quota, btrfs, ext4-file or unquotaed (default: the first that works)");
  command->add_option("--user", options->user, "Who may use it besides root: a name or a uid (default: nobody)");
  command
      ->add_option("--name-servers", options->name_servers,
                   "Where sandboxes' names are looked up, as 192.0.2.53:53 (default: as this machine does)")
      ->envname("ISOLA_NAME_SERVERS");
  command
      ->add_option("--authorities", options->authorities,
                   "A PEM file of certificates that the gate trusts beside this machine's, where it looks into TLS")
      ->envname("ISOLA_AUTHORITIES");
  command->add_flag("--daemon", options->daemon, "Go into the background, log to DATA/launcher.log");
  command->add_option("--ready-fd", options->ready_fd, "Tell this descriptor when ready")->group("");
  auto* status = command->add_subcommand("status", "Show the launcher that runs on --data");
  status->callback([&] { code = launcher_status(common); });
  auto all = std::make_shared<bool>(false);
  auto* stop = command->add_subcommand("stop", "End it; its sandboxes live on and the next launcher adopts them");
  stop->add_flag("--all", *all, "End its sandboxes too");
  stop->callback([&, all] { code = launcher_stop(common, *all); });
  command->callback([&, options, linger, command] {
    if (!command->get_subcommands().empty()) return;
    auto time = parse_duration(*linger);
    if (!time) {
      code = complain(time.error().message);
      return;
    }
    options->linger = std::chrono::ceil<std::chrono::seconds>(*time);
    options->data_dir = common.data_dir;
    options->cache_dir = common.cache_dir;
    code = launcher::run_launcher(*options) ? 0 : kFailed;
  });
}

// Started by the launcher, and of no use to anybody else.
void add_gate(CLI::App& app, int& code) {
  auto control = std::make_shared<int>(-1);
  auto servers = std::make_shared<std::string>();
  auto* command = app.add_subcommand("gate", "The process that sandboxes reach the network through")->group("");
  command->add_option("--control", *control, "The descriptor of the conversation with the launcher")->required();
  auto authorities = std::make_shared<std::string>();
  command->add_option("--name-servers", *servers, "Instead of this machine's");
  command->add_option("--authorities", *authorities, "Certificates to trust beside this machine's, a PEM file");
  command->callback([control, servers, authorities, &code] {
    auto ran = gate::run_gate({.control = Fd(*control), .servers = *servers, .authorities = *authorities});
    code = ran ? 0 : complain(ran.error().message);
  });
}

}  // namespace isola::cli
