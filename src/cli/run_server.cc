// isola run through a server: POST /v1/run, with the sandbox under a name of our choosing, so that its input and its
// signals can be addressed while it lives.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/register.h"
#include "cli/remote_command.h"
#include "cli/server_url.h"

namespace isola::cli {

using nlohmann::json;

namespace {

// A run ends with its connection; this is for one whose server was killed and nobody is left to end it.
constexpr std::chrono::hours kLongest{24};

// What only the launcher can do, by its option; empty: nothing.
std::string needs_launcher(const RunOptions& options) {
  if (!options.mounts.empty()) return "--mount-ro";
  if (options.terminal) return "--tty";
  if (!options.io.empty()) return "--io";
  if (options.latency) return "--latency";
  if (options.allow_unquotaed) return "--allow-unquotaed-disk";
  return "";
}

Result<json> body_of(const RunOptions& options, const std::string& name) {
  json body = {{"name", name},       {"argv", options.command}, {"stream", true}, {"wait_for_reader", true},
               {"open_stdin", true}, {"encoding", "base64"}};
  auto put = [&](const char* field, const std::string& text) {
    if (!text.empty()) body[field] = text;
  };
  put("template", options.template_name);
  put("boundary", options.boundary);
  put("memory", options.memory);
  put("disk", options.disk);
  put("cwd", options.cwd);
  put("user", options.user);
  if (options.cpus) body["cpus"] = *options.cpus;
  if (options.pids) body["pids"] = *options.pids;
  if (options.open_files) body["open_files"] = *options.open_files;
  if (options.cold) body["cold"] = true;
  if (!options.net.empty()) {
    // The server knows the presets, and what registries this machine has; a file is read here.
    ISOLA_TRY(NetChoice net, net_choice(options.net));
    bool preset = options.net == "none" || options.net == "all" || options.net == "package-registries";
    body["network"] = preset ? options.net : net.policy;
  }
  ISOLA_TRY(json env, parse_labels(options.env, "--env"));
  if (!env.empty()) body["command_env"] = env;
  double longest = std::chrono::duration<double>(kLongest).count();
  if (!options.timeout.empty()) {
    ISOLA_TRY(auto time, parse_duration(options.timeout));
    if (time.count() == 0) return fail(Code::invalid, "--timeout 0 would end before it began");
    double seconds = std::chrono::duration<double>(time).count();
    body["command_timeout"] = seconds;
    longest = seconds + 60;
  }
  body["timeout"] = longest;
  return body;
}

}  // namespace

std::optional<int> run_on_server(const Common& common, const RunOptions& options) {
  const bool named = names_server(common);
  std::string only = needs_launcher(options);
  if (!only.empty() && !common.url.empty()) return complain(only + " works only without a server: leave --url out");
  if (!only.empty() || (!named && !find_server_url(common.data_dir))) return std::nullopt;
  auto api = Api::open(common);
  if (!api) return complain(api.error().message);
  // Root without a key can still ask the launcher itself.
  if (!named && api->server().key.empty()) return std::nullopt;
  std::string name = "run-" + new_token().substr(0, 16);
  auto body = body_of(options, name);
  if (!body) return complain(body.error().message);
  return run_remote(
      *api, {.sandbox = name, .target = "/v1/run", .body = json_text(*body), .reattach = false, .json = common.json});
}

}  // namespace isola::cli
