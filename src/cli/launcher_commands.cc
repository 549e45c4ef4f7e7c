#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "launcher/client.h"

namespace isola::cli {

int complain(const std::string& message) {
  std::fprintf(stderr, "isola: %s\n", message.c_str());
  return kFailed;
}

int launcher_status(const Common& common) {
  auto client = launcher::Client::connect(common.data_dir);
  if (!client) return complain(client.error().message);
  auto info = client->info();
  if (!info) return complain(info.error().message);
  if (common.json) {
    nlohmann::json out = {{"version", info->version},
                          {"pid", info->pid},
                          {"boundary", info->boundary},
                          {"layer_store", info->layer_store},
                          {"disk_enforced", info->disk_enforced},
                          {"live", info->live},
                          {"parked", info->parked},
                          {"cleaning", info->cleaning}};
    std::puts(out.dump(2).c_str());
    return 0;
  }
  std::printf(
      "launcher %s (process %d) on %s\n  boundary %s (shared kernel), disk limits by %s\n  %u live, %u parked\n",
      info->version.c_str(), info->pid, common.data_dir.c_str(), info->boundary.c_str(), info->layer_store.c_str(),
      info->live, info->parked);
  return 0;
}

int launcher_stop(const Common& common, bool end_all) {
  auto client = launcher::Client::connect(common.data_dir);
  if (!client && client.error().code == Code::unavailable) return 0;
  if (!client) return complain(client.error().message);
  auto stopped = client->shutdown(end_all);
  if (!stopped) return complain(stopped.error().message);
  return 0;
}

}  // namespace isola::cli
