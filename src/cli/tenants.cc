// isola key, isola project: who may use the server, and how much.
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

// A project's id from its id or name. `default` is both.
Result<json> find_project(Api& api, const std::string& text) {
  ISOLA_TRY(json all, api.get("/v1/projects"));
  json match;
  for (const auto& one : all.value("projects", json::array())) {
    if (text_of(one, "id") == text) return one;
    if (text_of(one, "name") != text) continue;
    if (!match.is_null()) return fail(Code::invalid, "several projects are called " + text + ": give the id");
    match = one;
  }
  if (match.is_null()) return fail(Code::not_found, "there is no project " + text);
  return match;
}

struct KeyOptions {
  std::string name, project, scope = "use";
};

Result<void> create_key(const Common& common, const KeyOptions& options) {
  ISOLA_TRY(Api api, Api::open(common));
  json body = {{"scope", options.scope}};
  if (!options.name.empty()) body["name"] = options.name;
  if (!options.project.empty()) {
    ISOLA_TRY(json project, find_project(api, options.project));
    body["project"] = text_of(project, "id");
  }
  ISOLA_TRY(json made, api.send("POST", "/v1/keys", body));
  if (common.json) {
    print_json(made);
    return {};
  }
  // The secret alone on standard output, for scripts.
  print(text_of(made, "secret") + "\n");
  std::fprintf(stderr, "isola: key %s (%s) of project %s; it is shown only now\n", text_of(made, "id").c_str(),
               text_of(made, "scope").c_str(), text_of(made, "project").c_str());
  return {};
}

Result<void> list_keys(const Common& common, bool revoked) {
  ISOLA_TRY(Api api, Api::open(common));
  ISOLA_TRY(json all, api.get("/v1/keys"));
  if (common.json) {
    print_json(all);
    return {};
  }
  Table table({"ID", "NAME", "PROJECT", "SCOPE", "BEGINS", "CREATED", "LAST USED", "REVOKED"});
  for (const auto& one : all.value("keys", json::array())) {
    if (!revoked && !text_of(one, "revoked", "").empty()) continue;
    table.add({text_of(one, "id"), text_of(one, "name"), text_of(one, "project"), text_of(one, "scope"),
               text_of(one, "prefix") + "…", when_of(one, "created"), when_of(one, "last_used", "never"),
               when_of(one, "revoked", "")});
  }
  print(table.text());
  return {};
}

Result<void> revoke_keys(const Common& common, const std::vector<std::string>& ids) {
  ISOLA_TRY(Api api, Api::open(common));
  for (const auto& id : ids) {
    ISOLA_CHECK(api.remove("/v1/keys/" + http::percent_encode(id)));
    if (common.json)
      print_json({{"id", id}, {"revoked", true}});
    else
      print(id + ": revoked\n");
  }
  return {};
}

struct LimitOptions {
  std::string project;
  std::optional<uint64_t> sandboxes;
  std::optional<double> cpus, creates;
  std::string memory, disk, stored, boundary;
};

void put_limits(json& limits, const LimitOptions& options) {
  if (options.sandboxes) limits["live_sandboxes"] = *options.sandboxes;
  if (options.cpus) limits["cpus"] = *options.cpus;
  if (options.creates) limits["creates_per_second"] = *options.creates;
  if (!options.memory.empty()) limits["memory"] = options.memory;
  if (!options.disk.empty()) limits["disk"] = options.disk;
  if (!options.stored.empty()) limits["stored"] = options.stored;
  if (!options.boundary.empty()) limits["boundary"] = options.boundary;
}

std::string limits_text(const json& project) {
  json limits = project.value("limits", json::object());
  std::string out;
  auto part = [&](const std::string& text) { out += (out.empty() ? "" : ", ") + text; };
  for (const auto& [name, value] : limits.items()) {
    if (name == "live_sandboxes") part(value.dump() + " sandboxes");
    if (name == "cpus") part(text_of(limits, "cpus") + " cpus");
    if (name == "boundary") part("at least " + text_of(limits, "boundary"));
    if (name == "creates_per_second") part(text_of(limits, "creates_per_second") + " creates/s");
    if ((name == "memory" || name == "disk" || name == "stored") && value.is_number_unsigned())
      part(name + " " + format_size(value.get<uint64_t>()));
  }
  return out.empty() ? "none" : out;
}

void show_project(const Common& common, const json& project) {
  if (common.json)
    print_json(project);
  else
    print(text_of(project, "id") + ": " + shown(text_of(project, "name")) + ", limits: " + limits_text(project) + "\n");
}

Result<void> create_project(const Common& common, const LimitOptions& options) {
  ISOLA_TRY(Api api, Api::open(common));
  json body = {{"name", options.project}}, limits = json::object();
  put_limits(limits, options);
  if (!limits.empty()) body["limits"] = limits;
  ISOLA_TRY(json made, api.send("POST", "/v1/projects", body));
  show_project(common, made);
  return {};
}

Result<void> limit_project(const Common& common, const LimitOptions& options) {
  ISOLA_TRY(Api api, Api::open(common));
  ISOLA_TRY(json project, find_project(api, options.project));
  // The server takes all limits anew: those that were not named stay.
  json limits = project.value("limits", json::object());
  put_limits(limits, options);
  ISOLA_TRY(json changed, api.send("PATCH", "/v1/projects/" + text_of(project, "id"), {{"limits", limits}}));
  show_project(common, changed);
  return {};
}

Result<void> list_projects(const Common& common) {
  ISOLA_TRY(Api api, Api::open(common));
  ISOLA_TRY(json all, api.get("/v1/projects"));
  if (common.json) {
    print_json(all);
    return {};
  }
  Table table({"ID", "NAME", "CREATED", "LIMITS"});
  for (const auto& one : all.value("projects", json::array()))
    table.add({text_of(one, "id"), text_of(one, "name"), when_of(one, "created"), limits_text(one)});
  print(table.text());
  return {};
}

void add_limits(CLI::App& command, LimitOptions& options) {
  command.add_option("--sandboxes", options.sandboxes, "Living sandboxes at once; 0: no limit");
  command.add_option("--cpus", options.cpus, "Cores, over all its sandboxes; 0: no limit");
  command.add_option("--memory", options.memory, "Memory, over all its sandboxes, as 64G; 0: no limit");
  command.add_option("--disk", options.disk, "Disk, over all its sandboxes; 0: no limit");
  command.add_option("--stored", options.stored, "Bytes of paused sandboxes and snapshots, as 64G; 0: no limit");
  command.add_option("--boundary", options.boundary, "The weakest that it may have: jail, gvisor, uml or microvm");
  command.add_option("--creates-per-second", options.creates, "Creates per second; 0: no limit");
}

int code_for(const Result<void>& done) { return done ? 0 : complain(done.error().message); }

}  // namespace

void add_key(CLI::App& app, Common& common, int& code) {
  auto* group = app.add_subcommand("key", "API keys")->require_subcommand(1);
  auto options = std::make_shared<KeyOptions>();
  auto* create = group->add_subcommand("create", "Make a key; its secret is printed once, now");
  create->add_option("--name", options->name, "What it is for");
  create->add_option("--scope", options->scope, "read, use or admin")->capture_default_str();
  create->add_option("--project", options->project, "Whose key (default: the project of the key you use)");
  create->callback([=, &common, &code] { code = code_for(create_key(common, *options)); });
  auto all = std::make_shared<bool>(false);
  auto* list = group->add_subcommand("ls", "List keys");
  list->add_flag("-a,--all", *all, "Revoked ones, too");
  list->callback([=, &common, &code] { code = code_for(list_keys(common, *all)); });
  auto ids = std::make_shared<std::vector<std::string>>();
  auto* revoke = group->add_subcommand("revoke", "Keys that open nothing from now on");
  revoke->add_option("id", *ids, "The keys' ids (see isola key ls)")->required();
  revoke->callback([=, &common, &code] { code = code_for(revoke_keys(common, *ids)); });
  for (auto* command : group->get_subcommands({})) add_server_options(*command, common);
}

void add_project(CLI::App& app, Common& common, int& code) {
  auto* group = app.add_subcommand("project", "Projects: each sees only its own sandboxes")->require_subcommand(1);
  auto made = std::make_shared<LimitOptions>(), limited = std::make_shared<LimitOptions>();
  auto* create = group->add_subcommand("create", "Make a project");
  create->add_option("name", made->project, "Its name")->required();
  add_limits(*create, *made);
  create->callback([=, &common, &code] { code = code_for(create_project(common, *made)); });
  group->add_subcommand("ls", "List projects")->callback([&] { code = code_for(list_projects(common)); });
  auto* limit = group->add_subcommand("limit", "Change a project's limits; those not named stay");
  limit->add_option("project", limited->project, "Its id or name")->required();
  add_limits(*limit, *limited);
  limit->callback([=, &common, &code] { code = code_for(limit_project(common, *limited)); });
  for (auto* command : group->get_subcommands({})) add_server_options(*command, common);
}

}  // namespace isola::cli
