// isola usage, events and ledger: what was used, what happens, what happened.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/api.h"
#include "cli/event_stream.h"
#include "cli/register.h"
#include "cli/table.h"

namespace isola::cli {

using nlohmann::json;

namespace {

struct Filter {
  std::string project, sandbox, task, from, to, by = "sandbox", kind;
  uint64_t limit = 100, after = 0;
  bool newest = false;
};

// The filters that usage and ledger share, as a query.
Result<http::Pairs> query_of(Api& api, const Filter& filter) {
  http::Pairs query;
  if (!filter.sandbox.empty()) {
    ISOLA_TRY(std::string id, api.sandbox_id(filter.sandbox));
    query.emplace_back("sandbox", id);
  }
  if (!filter.project.empty()) query.emplace_back("project", filter.project);
  if (!filter.task.empty()) query.emplace_back("task", filter.task);
  for (const auto& [name, text] : {std::pair("from", filter.from), std::pair("to", filter.to)}) {
    if (text.empty()) continue;
    ISOLA_TRY(std::string moment, query_moment(text));
    query.emplace_back(name, moment);
  }
  return query;
}

double amount(const json& object, const char* name) {
  auto at = object.find(name);
  return at != object.end() && at->is_number() ? at->get<double>() : 0;
}

Result<void> usage(const Common& common, const Filter& filter) {
  ISOLA_TRY(Api api, Api::open(common));
  ISOLA_TRY(http::Pairs query, query_of(api, filter));
  query.emplace_back("by", filter.by);
  ISOLA_TRY(json all, api.get("/v1/usage?" + http::to_query(query)));
  for (json next = all.value("next", json()); next.is_string();) {
    http::Pairs rest = query;
    rest.emplace_back("after", next.get<std::string>());
    ISOLA_TRY(json more, api.get("/v1/usage?" + http::to_query(rest)));
    for (auto& one : more["usage"]) all["usage"].push_back(std::move(one));
    next = more.value("next", json());
  }
  all.erase("next");
  if (common.json) {
    print_json(all);
    return {};
  }
  std::string head = filter.by;
  for (char& c : head) c = static_cast<char>(c - 'a' + 'A');
  std::vector<std::string> heads = {head, "LIVED", "CPU", "IDLE", "MEMORY", "DISK", "OUT", "COMMANDS"};
  const json list = all.value("usage", json::array());
  bool named = std::any_of(list.begin(), list.end(), [](const json& one) { return one.contains("name"); });
  if (named) heads.insert(heads.begin() + 1, "NAME");
  bool money = std::any_of(list.begin(), list.end(), [](const json& one) { return one.contains("cost"); });
  if (money) heads.emplace_back("COST");
  Table table(heads);
  for (const auto& one : list) {
    std::vector<std::string> row = {text_of(one, "group"),
                                    short_span(static_cast<int64_t>(amount(one, "wall_seconds") * 1000)),
                                    fmt::format("{:.1f} s", amount(one, "cpu_seconds")),
                                    fmt::format("{:.0f}%", amount(one, "idle_ratio") * 100),
                                    fmt::format("{:.3f} GiB h", amount(one, "memory_gib_hours")),
                                    fmt::format("{:.3f} GiB h", amount(one, "disk_gib_hours")),
                                    format_size(static_cast<uint64_t>(amount(one, "bytes_out"))),
                                    text_of(one, "commands")};
    if (named) row.insert(row.begin() + 1, text_of(one, "name", ""));
    if (money) row.push_back(fmt::format("{:.4f} {}", amount(one, "cost"), text_of(one, "currency", "")));
    table.add(row);
  }
  print(table.text());
  return {};
}

// The data of an event as a person reads it: name=value, the long last.
std::string details(const json& data) {
  std::string out, last;
  for (const auto& [name, value] : data.items()) {
    std::string text = value.is_string() ? value.get<std::string>() : json_text(value);
    if (text.empty()) continue;
    if (text.size() > 200) text = text.substr(0, 200) + "…";
    (name == "command" ? last : out) += name + "=" + text + "  ";
  }
  return out + last;
}

std::string clock_of(const json& event) {
  std::string time = text_of(event, "time", "");
  return time.size() >= 19 ? time.substr(0, 10) + " " + time.substr(11, 8) : time;
}

Result<void> ledger(const Common& common, const Filter& filter) {
  ISOLA_TRY(Api api, Api::open(common));
  ISOLA_TRY(http::Pairs query, query_of(api, filter));
  if (!filter.kind.empty()) query.emplace_back("kind", filter.kind);
  if (filter.after) query.emplace_back("after", std::to_string(filter.after));
  if (filter.newest) query.emplace_back("order", "newest");
  query.emplace_back("limit", std::to_string(filter.limit));
  ISOLA_TRY(json all, api.get("/v1/ledger?" + http::to_query(query)));
  if (common.json) {
    print_json(all);
    return {};
  }
  Table table({"SEQ", "TIME (UTC)", "KIND", "SANDBOX", "TASK", "ACTOR", "DATA"});
  for (const auto& one : all.value("events", json::array()))
    table.add({text_of(one, "seq"), clock_of(one), text_of(one, "kind"), text_of(one, "sandbox", ""),
               text_of(one, "task", ""), text_of(one, "actor", ""), details(one.value("data", json::object()))});
  print(table.text());
  if (auto next = text_of(all, "next", ""); !next.empty())
    std::fprintf(stderr, "isola: there are more: --after %s\n", next.c_str());
  return {};
}

Result<void> events(const Common& common, const std::string& sandbox) {
  ISOLA_TRY(Api api, Api::open(common));
  std::string target = "/v1/events";
  if (!sandbox.empty()) {
    ISOLA_TRY(std::string id, api.sandbox_id(sandbox));
    target = "/v1/sandboxes/" + id + "/events";
  }
  EventStream stream([&](const std::string& kind, const std::string& data) {
    if (common.json) {
      print(data + "\n");
      return;
    }
    json event = json::parse(data, nullptr, false);
    if (kind == "lost")
      std::fprintf(stderr, "isola: %s events were lost\n", text_of(event, "count").c_str());
    else if (event.is_object())
      print(shown(fmt::format("{}  {:<16} {:<21}  {}", clock_of(event), text_of(event, "kind"),
                              text_of(event, "sandbox", ""), details(event.value("data", json::object())))) +
            "\n");
  });
  ISOLA_TRY(auto ended, api.request({.target = target, .sink = [&](std::string_view piece) -> Result<void> {
                                       stream.feed(piece);
                                       return {};
                                     }}));
  return {};
}

int code_for(const Result<void>& done) { return done ? 0 : complain(done.error().message); }

void add_filter(CLI::App& command, Filter& filter) {
  command.add_option("--project", filter.project, "Another project's, or * for all: with the operator's key");
  command.add_option("--sandbox", filter.sandbox, "Only this sandbox");
  command.add_option("--task", filter.task, "Only this task");
  command.add_option("--from", filter.from, "Since then: 2h (ago), 2026-01-31, or 2026-01-31T12:00:00Z");
  command.add_option("--to", filter.to, "Until then");
}

}  // namespace

void add_records(CLI::App& app, Common& common, int& code) {
  auto used = std::make_shared<Filter>(), asked = std::make_shared<Filter>();
  auto* usage_command = app.add_subcommand("usage", "What was used: processor, memory, disk, bytes, money");
  usage_command->add_option("--by", used->by, "Sums per sandbox, task, project, day, or all")->capture_default_str();
  add_filter(*usage_command, *used);
  usage_command->callback([=, &common, &code] { code = code_for(usage(common, *used)); });

  auto sandbox = std::make_shared<std::string>();
  auto* events_command = app.add_subcommand("events", "What happens, as it happens");
  events_command->add_option("id", *sandbox, "Only this sandbox");
  events_command->callback([=, &common, &code] { code = code_for(events(common, *sandbox)); });

  auto* ledger_command = app.add_subcommand("ledger", "What happened: lifecycle, commands, keys");
  ledger_command->add_option("--kind", asked->kind, "Only kinds that begin so: sandbox, command.ended …");
  ledger_command->add_option("--after", asked->after, "Only after this sequence number (with --newest: before it)");
  ledger_command->add_flag("--newest", asked->newest, "The newest first");
  ledger_command->add_option("--limit", asked->limit, "At most so many, up to 1000")->capture_default_str();
  add_filter(*ledger_command, *asked);
  ledger_command->callback([=, &common, &code] { code = code_for(ledger(common, *asked)); });
  for (auto* command : {usage_command, events_command, ledger_command}) add_server_options(*command, common);
}

}  // namespace isola::cli
