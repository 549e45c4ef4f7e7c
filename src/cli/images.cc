// isola sandbox pause|resume|snapshot|fork|rollback, and isola snapshot: what is kept of sandboxes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/api.h"
#include "cli/register.h"
#include "cli/table.h"

namespace isola::cli {

using nlohmann::json;

namespace {

struct Options {
  std::vector<std::string> names;
  std::string name, timeout, expires, snapshot;
  uint32_t count = 1;
  bool files_only = false, latency = false, quiet = false;
};

std::string bytes_of(const json& object, const char* name) {
  auto at = object.find(name);
  return at != object.end() && at->is_number_unsigned() ? format_size(at->get<uint64_t>()) : "-";
}

void print_latency(const json& reply) {
  if (!reply.contains("latency_ms")) return;
  Table table({"STEP", "MS"});
  for (const auto& [step, ms] : reply["latency_ms"].items())
    table.add({step, ms.is_number() ? fmt::format("{:.2f}", ms.get<double>()) : ms.dump()});
  std::fputs(table.text().c_str(), stderr);
}

// The same call on each; goes on after a failure, and fails at the end.
int each(const Common& common, const Options& options,
         const std::function<Result<void>(Api&, const std::string& id)>& work) {
  auto api = Api::open(common);
  if (!api) return complain(api.error().message);
  int code = 0;
  for (const auto& name : options.names) {
    auto id = api->sandbox_id(name);
    auto done = id ? work(*api, *id) : Result<void>(std::unexpected(id.error()));
    if (!done) code = complain(done.error().message);
  }
  return code;
}

Result<void> pause(const Common& common, const Options& options, Api& api, const std::string& id) {
  json body = {{"memory", !options.files_only}};
  ISOLA_TRY(json now, api.send("POST", "/v1/sandboxes/" + id + "/pause", body));
  if (common.json)
    print_json(now);
  else
    print(id + ": " + text_of(now, "state") + "\n");
  return {};
}

Result<void> archive(const Common& common, const Options&, Api& api, const std::string& id) {
  ISOLA_TRY(json now, api.send("POST", "/v1/sandboxes/" + id + "/archive", json::object()));
  if (common.json)
    print_json(now);
  else
    print(id + ": " + text_of(now, "state") + "\n");
  return {};
}

Result<void> resume(const Common& common, const Options& options, Api& api, const std::string& id) {
  json body = json::object();
  if (!options.timeout.empty()) body["timeout"] = options.timeout;
  if (options.files_only) body["files_only"] = true;
  if (options.latency) body["latency"] = true;
  ISOLA_TRY(json now, api.send("POST", "/v1/sandboxes/" + id + "/resume", body));
  if (common.json) {
    print_json(now);
    return {};
  }
  print(id + ": " + text_of(now, "state") + "\n");
  print_latency(now);
  return {};
}

Result<void> rollback(const Common& common, const Options& options, Api& api, const std::string& id) {
  json body = {{"snapshot", options.snapshot}, {"latency", options.latency}};
  ISOLA_TRY(json now, api.send("POST", "/v1/sandboxes/" + id + "/rollback", body));
  if (common.json) {
    print_json(now);
    return {};
  }
  print(id + ": as it was in " + options.snapshot + "\n");
  print_latency(now);
  return {};
}

Result<void> snapshot(const Common& common, const Options& options, Api& api, const std::string& id) {
  json body = {{"memory", !options.files_only}};
  if (!options.name.empty()) body["name"] = options.name;
  if (!options.expires.empty()) body["expires_after"] = options.expires;
  ISOLA_TRY(json made, api.send("POST", "/v1/sandboxes/" + id + "/snapshot", body));
  if (common.json)
    print_json(made);
  else
    print(text_of(made, "id") + "\n");
  return {};
}

Result<void> fork(const Common& common, const Options& options, Api& api, const std::string& id) {
  json body = {{"count", options.count}, {"latency", options.latency}};
  if (!options.timeout.empty()) body["timeout"] = options.timeout;
  ISOLA_TRY(json made, api.send("POST", "/v1/sandboxes/" + id + "/fork", body));
  if (common.json) {
    print_json(made);
    return {};
  }
  for (const auto& one : made["sandboxes"]) {
    print(text_of(one, "id") + "\n");
    print_latency(one);
  }
  return {};
}

Result<json> all_of(Api& api, const std::string& filter) {
  json all = json::array();
  std::string cursor;
  do {
    std::string target = "/v1/snapshots?limit=1000" + filter;
    if (!cursor.empty()) target += "&cursor=" + http::percent_encode(cursor);
    ISOLA_TRY(json page, api.get(target));
    for (auto& one : page["snapshots"]) all.push_back(std::move(one));
    cursor = text_of(page, "next", "");
  } while (!cursor.empty());
  return all;
}

// Those that are named, or all. Goes on after one that is damaged, and fails at the end.
int verify(const Common& common, std::vector<std::string> names) {
  auto api = Api::open(common);
  if (!api) return complain(api.error().message);
  if (names.empty()) {
    auto all = all_of(*api, "");
    if (!all) return complain(all.error().message);
    for (const auto& one : *all) names.push_back(text_of(one, "id"));
  }
  int code = 0;
  for (const auto& name : names) {
    auto found = api->send("POST", "/v1/snapshots/" + http::percent_encode(name) + "/verify", json::object());
    if (!found) {
      code = complain(found.error().message);
      continue;
    }
    const bool whole = found->value("whole", false);
    if (!whole) code = 1;
    if (common.json)
      print_json(*found);
    else
      print(name + ": " + (whole ? "whole" : "damaged: " + text_of(*found, "damage")) + "\n");
  }
  return code;
}

Result<void> list(const Common& common, const Options& options) {
  ISOLA_TRY(Api api, Api::open(common));
  std::string filter;
  if (!options.names.empty()) {
    // One that has ended has no beginning that could be completed; its whole id serves.
    auto id = api.sandbox_id(options.names.front());
    filter = "&sandbox=" + http::percent_encode(id.value_or(options.names.front()));
  }
  ISOLA_TRY(json all, all_of(api, filter));
  if (common.json) {
    print_json({{"snapshots", all}});
    return {};
  }
  if (options.quiet) {
    for (const auto& one : all) print(text_of(one, "id") + "\n");
    return {};
  }
  Table table({"ID", "NAME", "SANDBOX", "TEMPLATE", "MEMORY", "FILES", "CREATED", "LAST USED"});
  for (const auto& one : all)
    table.add({text_of(one, "id"), text_of(one, "name"), text_of(one, "sandbox"), text_of(one, "template"),
               one.value("memory", false) ? bytes_of(one, "memory_bytes") : "none", bytes_of(one, "layer_bytes"),
               when_of(one, "created"), when_of(one, "last_used")});
  print(table.text());
  return {};
}

}  // namespace

void add_image_verbs(CLI::App& group, Common& common, int& code) {
  auto options = std::make_shared<Options>();
  using Verb = Result<void> (*)(const Common&, const Options&, Api&, const std::string&);
  auto verb = [&](const char* name, const char* help, Verb work) {
    auto* command = group.add_subcommand(name, help);
    command->add_option("id", options->names, "Sandboxes: ids, beginnings of them, or names")->required();
    command->callback([=, &common, &code] {
      code = each(common, *options, [&](Api& api, const std::string& id) { return work(common, *options, api, id); });
    });
    return command;
  };
  auto* pausing = verb("pause", "Keep it as it is, and free the machine of it", pause);
  pausing->add_flag("--files-only", options->files_only, "Its files, not its memory: programs end");
  verb("archive", "Pack what is kept of a paused one: it takes little room, and longer to come back", archive);
  auto* resuming = verb("resume", "Let a paused one go on", resume);
  resuming->add_option("--timeout", options->timeout, "Its deadline from now, as 10m; 0: never (default: as it had)");
  resuming->add_flag("--files-only", options->files_only, "Without its memory");
  auto* forking = verb("fork", "Copies of it, with what runs inside; prints their ids", fork);
  forking->add_option("--count,-n", options->count, "How many")->capture_default_str()->check(CLI::Range(1, 1000));
  forking->add_option("--timeout", options->timeout, "Their deadline from now (default: as long as the parent's)");
  auto* keeping = verb("snapshot", "Keep a copy of it while it goes on; prints the snapshot's id", snapshot);
  keeping->add_option("--name", options->name, "A name for the snapshot");
  keeping->add_option("--expires-after", options->expires, "Remove it so long after its last use, as 7d");
  keeping->add_flag("--files-only", options->files_only, "Without its memory");
  auto* back = group.add_subcommand("rollback", "Make it what it was in a snapshot, in place");
  auto one = std::make_shared<std::string>();
  back->add_option("id", *one, "The sandbox")->required();
  back->add_option("snapshot", options->snapshot, "The snapshot: an id or a name")->required();
  back->callback([=, &common, &code] {
    Options only = *options;
    only.names = {*one};
    code = each(common, only, [&](Api& api, const std::string& id) { return rollback(common, only, api, id); });
  });
  for (auto* command : {resuming, forking, back})
    command->add_flag("--latency", options->latency, "Print where the time went");
}

void add_snapshot(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<Options>();
  auto* group = app.add_subcommand("snapshot", "What is kept of sandboxes")->require_subcommand(1);
  auto* listing = group->add_subcommand("ls", "List snapshots");
  listing->add_option("--sandbox", options->names, "Only of this sandbox")->expected(1);
  listing->add_flag("-q,--quiet", options->quiet, "Ids only");
  listing->callback([=, &common, &code] {
    auto listed = list(common, *options);
    code = listed ? 0 : complain(listed.error().message);
  });
  auto removed = std::make_shared<std::vector<std::string>>();
  auto* removing = group->add_subcommand("rm", "Remove snapshots; sandboxes made from them live on");
  removing->add_option("snapshot", *removed, "Ids or names")->required();
  removing->callback([=, &common, &code] {
    auto api = Api::open(common);
    if (!api) return void(code = complain(api.error().message));
    for (const auto& name : *removed) {
      auto gone = api->remove("/v1/snapshots/" + http::percent_encode(name));
      if (!gone)
        code = complain(gone.error().message);
      else if (common.json)
        print_json({{"name", name}, {"removed", true}});
      else
        print(name + ": removed\n");
    }
  });
  auto read = std::make_shared<std::vector<std::string>>();
  auto* reading = group->add_subcommand("verify", "Read all of a snapshot, or of all: is it what was written?");
  reading->add_option("snapshot", *read, "Ids or names; none: all of them");
  reading->callback([=, &common, &code] { code = verify(common, *read); });
  for (auto* command : group->get_subcommands({})) add_server_options(*command, common);
}

}  // namespace isola::cli
