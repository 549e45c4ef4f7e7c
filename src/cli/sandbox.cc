// isola sandbox: making, finding, changing, ending.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/units.h"
#include "cli/api.h"
#include "cli/register.h"
#include "cli/table.h"

namespace isola::cli {

using nlohmann::json;

namespace {

constexpr int64_t kIdle = 10 * 60 * 1000;

struct CreateOptions {
  std::map<std::string, std::string> texts;  // by the API's name
  std::map<std::string, double> numbers;
  std::vector<std::string> env, labels, on_create, on_resume, volumes, buckets;
  std::map<std::string, double> budget;
  std::string at_limit;
  bool public_ports = false, cold = false, latency = false, no_auto_resume = false;
};

Result<json> body_of(const CreateOptions& options) {
  json body = json::object();
  for (const auto& [name, text] : options.texts) {
    size_t dot = name.find('.');
    if (dot == name.npos)
      body[name] = text;
    else
      body[name.substr(0, dot)][name.substr(dot + 1)] = text;
  }
  if (auto net = body.value("network", ""); net.find_first_of("@; ") != std::string::npos) {
    ISOLA_TRY(NetChoice choice, net_choice(net));  // a file of this machine, or rules in one line
    body["network"] = choice.policy;
  }
  for (const auto& [name, number] : options.numbers) {
    if (number == static_cast<double>(static_cast<uint64_t>(number)))
      body[name] = static_cast<uint64_t>(number);  // counts have no fraction
    else
      body[name] = number;
  }
  for (const auto& [name, number] : options.budget) {
    bool whole = name == "commands" || name == "bytes_out";
    body["budget"][name] = whole ? json(static_cast<uint64_t>(number)) : json(number);
  }
  if (!options.at_limit.empty()) body["budget"]["at_limit"] = options.at_limit;
  ISOLA_TRY(json env, parse_labels(options.env, "--env"));
  ISOLA_TRY(json labels, parse_labels(options.labels, "--label"));
  if (!env.empty()) body["env"] = env;
  if (!labels.empty()) body["metadata"] = labels;
  if (!options.on_create.empty()) body["on_create"] = options.on_create;
  if (!options.on_resume.empty()) body["on_resume"] = options.on_resume;
  for (const auto& text : options.volumes) {
    ISOLA_TRY(json volume, parse_volume(text));
    body["volumes"].push_back(std::move(volume));
  }
  for (const auto& text : options.buckets) {
    ISOLA_TRY(json bucket, parse_bucket(text));
    body["buckets"].push_back(std::move(bucket));
  }
  if (options.public_ports) body["public_ports"] = true;
  if (options.cold) body["cold"] = true;
  if (options.no_auto_resume) body["auto_resume"] = false;
  if (options.latency) body["latency"] = true;
  return body;
}

Result<void> create(const Common& common, const CreateOptions& options) {
  ISOLA_TRY(json body, body_of(options));
  ISOLA_TRY(Api api, Api::open(common));
  ISOLA_TRY(json made, api.send("POST", "/v1/sandboxes", body));
  if (common.json) {
    print_json(made);
    return {};
  }
  print(text_of(made, "id") + "\n");
  if (options.latency && made.contains("latency_ms")) {
    Table table({"STEP", "MS"});
    for (const auto& [step, ms] : made["latency_ms"].items())
      table.add({step, ms.is_number() ? fmt::format("{:.2f}", ms.get<double>()) : ms.dump()});
    std::fputs(table.text().c_str(), stderr);
  }
  return {};
}

struct ListOptions {
  std::vector<std::string> states, labels;
  std::string name, task;
  bool all = false, quiet = false;
  size_t limit = 1000;
};

// Those that run for nobody stand out.
std::string state_of(const json& sandbox) {
  std::string state = text_of(sandbox, "state");
  if (state == "ended") return "ended (" + text_of(sandbox, "end_reason") + ")";
  auto used = parse_moment(text_of(sandbox, "last_active"));
  if (state == "running" && used && milliseconds_now() - *used >= kIdle)
    return "running (idle " + short_span(milliseconds_now() - *used) + ")";
  return state;
}

Result<void> list(const Common& common, const ListOptions& options) {
  ISOLA_TRY(json labels, parse_labels(options.labels, "--label"));
  std::string filter;
  auto add = [&](const std::string& name, const std::string& value) {
    filter += "&" + http::percent_encode(name) + "=" + http::percent_encode(value);
  };
  for (const auto& state : options.states) add("state", state);
  if (options.states.empty() && !options.all) filter += kLivingStates;
  if (!options.name.empty()) add("name", options.name);
  if (!options.task.empty()) add("task", options.task);
  for (const auto& [name, value] : labels.items()) add("metadata." + name, value.get<std::string>());
  ISOLA_TRY(Api api, Api::open(common));
  json all = json::array();
  std::string cursor;
  do {
    std::string target =
        fmt::format("/v1/sandboxes?limit={}{}", std::min<size_t>(options.limit - all.size(), 1000), filter);
    if (!cursor.empty()) target += "&cursor=" + http::percent_encode(cursor);
    ISOLA_TRY(json page, api.get(target));
    for (auto& one : page["sandboxes"]) all.push_back(std::move(one));
    cursor = text_of(page, "next", "");
  } while (!cursor.empty() && all.size() < options.limit);
  if (common.json) {
    print_json({{"sandboxes", all}, {"next", cursor.empty() ? json(nullptr) : json(cursor)}});
    return {};
  }
  if (options.quiet) {
    for (const auto& one : all) print(text_of(one, "id") + "\n");
    return {};
  }
  Table table({"ID", "NAME", "STATE", "TEMPLATE", "BOUNDARY", "CREATED", "ENDS", "TASK"});
  for (const auto& one : all) {
    bool ended = text_of(one, "state") == "ended";
    table.add({text_of(one, "id"), text_of(one, "name"), state_of(one), text_of(one, "template"),
               text_of(one, "boundary"), when_of(one, "created"),
               ended ? when_of(one, "ended") : when_of(one, "deadline", "never"), text_of(one, "task", "")});
  }
  print(table.text());
  if (!cursor.empty()) std::fprintf(stderr, "isola: there are more; raise --limit\n");
  return {};
}

std::string size_of(const json& object, const char* name) {
  auto at = object.find(name);
  return at != object.end() && at->is_number_unsigned() ? format_size(at->get<uint64_t>()) : "-";
}

void describe(const json& sandbox) {
  Table table({"ID", text_of(sandbox, "id")});
  auto line = [&](const char* label, const std::string& text) {
    if (!text.empty() && text != "-") table.add({label, text});
  };
  line("NAME", text_of(sandbox, "name"));
  line("KEY", text_of(sandbox, "key"));
  line("STATE", state_of(sandbox));
  if (sandbox.contains("end_reason")) {
    line("ENDED", when_of(sandbox, "ended") + ": " + text_of(sandbox, "end_reason"));
    line("", text_of(sandbox, "end_detail", ""));
  }
  line("TEMPLATE", text_of(sandbox, "template"));
  line("BOUNDARY", text_of(sandbox, "boundary") + (sandbox.value("shared_kernel", false) ? " (a shared kernel)" : "") +
                       ", " + text_of(sandbox, "engine") + " " + text_of(sandbox, "engine_version"));
  line("BIRTH", text_of(sandbox, "birth"));
  line("CREATED", when_of(sandbox, "created"));
  line("LAST ACTIVE", when_of(sandbox, "last_active"));
  line("DEADLINE", when_of(sandbox, "deadline", "never"));
  if (auto idle = text_of(sandbox, "idle_timeout", ""); !idle.empty()) line("IDLE LIMIT", idle + "s");
  line("AT END", text_of(sandbox, "at_end"));
  line("PAUSED", when_of(sandbox, "paused"));
  if (auto time = text_of(sandbox, "delete_after", ""); !time.empty()) line("DELETED AFTER", time + "s of pause");
  line("LIMITS", fmt::format("{} cpus, memory {}, disk {}, {} processes", text_of(sandbox, "cpus"),
                             size_of(sandbox, "memory"), size_of(sandbox, "disk"), text_of(sandbox, "pids")));
  std::string net = text_of(sandbox, "network");
  for (auto at = net.find('\n'); at != std::string::npos; at = net.find('\n')) net.replace(at, 1, "; ");
  line("NETWORK", net);
  for (const auto& volume : sandbox.value("volumes", json::array()))
    line("VOLUME", text_of(volume, "name") + " at " + text_of(volume, "path") +
                       (volume.value("read_only", false) ? " (read-only)" : ""));
  for (const auto& bucket : sandbox.value("buckets", json::array()))
    line("BUCKET", text_of(bucket, "bucket") +
                       (bucket.contains("prefix") ? "/" + text_of(bucket, "prefix") : std::string()) + " of " +
                       text_of(bucket, "endpoint") + " at " + text_of(bucket, "path") +
                       (bucket.value("read_only", false) ? " (read-only)" : ""));
  line("LABELS", join_labels(sandbox.value("metadata", json::object())));
  line("TASK", text_of(sandbox, "task"));
  line("ACTOR", text_of(sandbox, "actor"));
  line("BUDGET", join_labels(sandbox.value("budget", json::object())));
  line("PORTS", sandbox.value("public_ports", false) ? "public" : "private");
  print(table.text());
}

// One call on each of some sandboxes; goes on after a failure, and fails at the end.
int each(const Common& common, const std::vector<std::string>& names,
         const std::function<Result<void>(Api&, const std::string& id)>& work) {
  auto api = Api::open(common);
  if (!api) return complain(api.error().message);
  int code = 0;
  for (const auto& name : names) {
    auto id = api->sandbox_id(name);
    auto done = id ? work(*api, *id) : Result<void>(std::unexpected(id.error()));
    if (!done) code = complain(done.error().message);
  }
  return code;
}

// Calls that answer with the sandbox.
int change(const Common& common, const std::vector<std::string>& names, const std::string& method,
           const std::string& tail, const json& body, const std::string& said) {
  return each(common, names, [&](Api& api, const std::string& id) -> Result<void> {
    ISOLA_TRY(json changed, api.send(method, "/v1/sandboxes/" + id + tail, body));
    if (common.json)
      print_json(changed);
    else
      print(id + ": " + (said.empty() ? "ends " + when_of(changed, "deadline", "never") : said) + "\n");
    return {};
  });
}

void add_create(CLI::App& group, Common& common, int& code) {
  auto options = std::make_shared<CreateOptions>();
  auto not_negative = [] {
    return CLI::Validator(
        [](const std::string& text) { return text.starts_with('-') ? "must not be negative: " + text : std::string(); },
        "NUMBER");
  };
  auto* create_command = group.add_subcommand("create", "Make a sandbox and print its id");
  auto text = [&](const char* flag, const char* name, const char* help) {
    create_command->add_option_function<std::string>(
        flag, [options, name](const std::string& value) { options->texts[name] = value; }, help);
  };
  auto number = [&](const char* flag, const char* name, const char* help) {
    create_command
        ->add_option_function<double>(
            flag, [options, name](const double& value) { options->numbers[name] = value; }, help)
        ->check(not_negative());
  };
  auto budget = [&](const char* flag, const char* name, const char* help) {
    create_command
        ->add_option_function<double>(
            flag, [options, name](const double& value) { options->budget[name] = value; }, help)
        ->check(not_negative());
  };
  text("--name", "name", "A name to call it by");
  text("--key", "key", "Give back the sandbox that was made with this key, if it lives");
  text("--template", "template", "What it starts from (default: the server's)");
  text("--boundary", "boundary", "auto, jail, gvisor, uml, microvm or strongest");
  text("--net", "network", "What it may reach: none (default), all, package-registries, @FILE, or rules");
  text("--memory", "memory", "Memory limit, as 64M or 2G");
  text("--disk", "disk", "Limit of what it can write");
  number("--cpus", "cpus", "Processor limit, in cores");
  number("--pids", "pids", "Limit of processes and threads");
  number("--open-files", "open_files", "Limit of open files per process");
  text("--timeout", "timeout", "Its deadline from now, as 10m; 0: never");
  text("--idle-timeout", "idle_timeout", "Its time is up after so long without use");
  text("--at-end", "at_end", "What happens then: kill, pause or stop");
  text("--freeze-after", "freeze_after", "Idle for so long, it stands still until the next call, as 30s");
  text("--delete-after", "delete_after", "Paused for so long, it ends for good, as 7d");
  text("--archive-after", "archive_after", "Paused for so long, what is kept of it is packed, as 1d");
  text("--git", "git.url", "A repository to check out in it, as https://…");
  text("--git-ref", "git.ref", "… at a branch, a tag or a commit");
  text("--git-path", "git.path", "… in this folder");
  text("--snapshot", "snapshot", "Make it from a snapshot (an id or a name) instead of a template");
  create_command->add_flag("--no-auto-resume", options->no_auto_resume, "Paused, it waits for resume and nothing else");
  text("--task", "task", "The task it is for");
  text("--actor", "actor", "Who acts in it");
  text("--probe", "probe", "A command that succeeds when the sandbox is ready");
  create_command->add_option("--on-create", options->on_create, "A command to run first; can be repeated")
      ->allow_extra_args(false);
  create_command->add_option("--on-resume", options->on_resume, "A command to run after each resume; can be repeated")
      ->allow_extra_args(false);
  create_command->add_option("--env,-e", options->env, "NAME=value for every command; can be repeated")
      ->allow_extra_args(false);
  create_command->add_option("--label,-l", options->labels, "NAME=value; can be repeated")->allow_extra_args(false);
  create_command
      ->add_option("--volume,-v", options->volumes, "NAME[/FOLDER]:/path[:ro], a volume inside; can be repeated")
      ->allow_extra_args(false);
  create_command
      ->add_option("--bucket", options->buckets,
                   "path=/p,endpoint=https://HOST,bucket=NAME,secret=NAME[,prefix=P][,region=R][,ro], a bucket of an "
                   "S3-compatible store inside; can be repeated")
      ->allow_extra_args(false);
  budget("--budget-cpu", "cpu_seconds", "End it after so many seconds of processor time");
  budget("--budget-wall", "wall_seconds", "… seconds of living");
  budget("--budget-commands", "commands", "… commands");
  budget("--budget-bytes-out", "bytes_out", "… bytes that leave through the gate");
  budget("--budget-money", "money", "… money, by the server's price sheet");
  create_command->add_option("--at-limit", options->at_limit, "When a budget is spent: end, freeze or pause")
      ->check(CLI::IsMember({"end", "freeze", "pause"}));
  create_command->add_flag("--public-ports", options->public_ports, "Its ports need no token");
  create_command->add_flag("--cold", options->cold, "Make it from nothing, even if a parked one waits");
  create_command->add_flag("--latency", options->latency, "Print where the time went");
  create_command->callback([=, &common, &code] {
    auto made = create(common, *options);
    code = made ? 0 : complain(made.error().message);
  });
}

void add_list(CLI::App& group, Common& common, int& code) {
  auto options = std::make_shared<ListOptions>();
  auto* command = group.add_subcommand("ls", "List sandboxes");
  command->add_option("--state", options->states, "Only these states; can be repeated")->allow_extra_args(false);
  command->add_option("--name", options->name, "Only names that begin so");
  command->add_option("--task", options->task, "Only of this task");
  command->add_option("--label,-l", options->labels, "Only with NAME=value; can be repeated")->allow_extra_args(false);
  command->add_option("--limit", options->limit, "At most so many")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  command->add_flag("-a,--all", options->all, "Those that have ended, too");
  command->add_flag("-q,--quiet", options->quiet, "Ids only");
  command->callback([=, &common, &code] {
    auto listed = list(common, *options);
    code = listed ? 0 : complain(listed.error().message);
  });
}

void add_changes(CLI::App& group, Common& common, int& code) {
  auto names = std::make_shared<std::vector<std::string>>();
  auto on_some = [&](const char* name, const char* help) {
    auto* command = group.add_subcommand(name, help);
    command->add_option("id", *names, "Sandboxes: ids, beginnings of them, or names")->required();
    return command;
  };
  on_some("get", "Everything about a sandbox")->callback([=, &common, &code] {
    code = each(common, *names, [&](Api& api, const std::string& id) -> Result<void> {
      ISOLA_TRY(json sandbox, api.get("/v1/sandboxes/" + id));
      if (common.json)
        print_json(sandbox);
      else
        describe(sandbox);
      return {};
    });
  });
  on_some("kill", "End sandboxes for good")->callback([=, &common, &code] {
    code = each(common, *names, [&](Api& api, const std::string& id) -> Result<void> {
      ISOLA_CHECK(api.remove("/v1/sandboxes/" + id));
      if (common.json)
        print_json({{"id", id}, {"state", "ended"}});
      else
        print(id + ": ended\n");
      return {};
    });
  });
  on_some("freeze", "Stop everything in it where it is")->callback([=, &common, &code] {
    code = change(common, *names, "POST", "/freeze", json::object(), "frozen");
  });
  on_some("thaw", "Let it go on")->callback([=, &common, &code] {
    code = change(common, *names, "POST", "/thaw", json::object(), "running");
  });
  auto one = std::make_shared<std::string>();
  auto time = std::make_shared<std::string>();
  auto* extend = group.add_subcommand("extend", "Move its deadline: it lives at least so long from now");
  extend->add_option("id", *one, "The sandbox")->required();
  extend->add_option("time", *time, "As 30m or 2h; 0: for ever")->required();
  extend->callback([=, &common, &code] {
    json body = {{"timeout", *time}};
    if (*time != "0") body["only_extend"] = true;
    code = change(common, {*one}, "PATCH", "", body, "");
  });
}

}  // namespace

void add_sandbox(CLI::App& app, Common& common, int& code) {
  auto* group = app.add_subcommand("sandbox", "Sandboxes of a server")->require_subcommand(1);
  add_create(*group, common, code);
  add_list(*group, common, code);
  add_changes(*group, common, code);
  add_image_verbs(*group, common, code);
  for (auto* command : group->get_subcommands({})) add_server_options(*command, common);
  add_logs(*group, common, code);
  add_port(*group, common, code);
  for (auto* place : {group, &app}) {
    add_exec(*place, common, code);
    add_shell(*place, common, code);
    add_copy(*place, common, code);
  }
}

}  // namespace isola::cli
