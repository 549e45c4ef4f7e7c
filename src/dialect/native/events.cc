// What happened and happens: events as they come (SSE), the ledger, usage.
#include <nlohmann/json.hpp>

#include "dialect/native/api.h"
#include "dialect/native/query.h"
#include "dialect/native/views.h"
#include "dialect/shared/until_gone.h"

namespace isola::native {

using nlohmann::json;

namespace {

Task<Result<void>> follow(sandbox::Service& service, http::Exchange& ex, std::string sandbox) {
  ISOLA_CO_CHECK(only_queries(ex, {}));
  auto events = service.events().subscribe(project_of(ex), std::move(sandbox));
  ex.set_header("Cache-Control", "no-store");
  mark_untrusted(ex);
  ex.begin(200, "text/event-stream");
  std::string text = ": listening\n\n";
  while (co_await ex.write(text)) {
    auto event = co_await events->next_for(std::chrono::seconds(15));
    text.clear();
    if (uint64_t lost = events->take_lost()) text = "event: lost\ndata: {\"count\":" + std::to_string(lost) + "}\n\n";
    if (event)
      text += "event: " + std::string(to_string(event->kind)) + "\ndata: " + dump(view(*event)) + "\n\n";
    else if (text.empty())
      text = ": ping\n\n";
  }
  co_return Result<void>();
}

Result<store::Millis> moment(const http::Exchange& ex, std::string_view name) {
  auto text = ex.query(name);
  if (!text) return store::Millis(0);
  auto time = parse_moment(std::string(*text));
  if (!time) return fail(Code::invalid, std::string(name) + ": must be a date or a time such as 2026-01-31T12:00:00Z");
  return *time;
}

// The caller's own; the operator may look at another, or at all of them (*).
Result<std::string> asked_project(const http::Exchange& ex) {
  auto asked = ex.query("project");
  if (!asked || *asked == project_of(ex)) return std::string(project_of(ex));
  if (!is_operator(ex)) return fail(Code::denied, "project: only an admin key of the project \"default\" sees others");
  return *asked == "*" ? std::string() : std::string(*asked);
}

Result<ledger::EventFilter> event_filter(const http::Exchange& ex) {
  ISOLA_CHECK(only_queries(ex, {"project", "sandbox", "task", "kind", "from", "to", "order", "after", "limit"}));
  ledger::EventFilter filter;
  ISOLA_TRY(filter.project, asked_project(ex));
  filter.sandbox = std::string(ex.query("sandbox").value_or(""));
  filter.task = std::string(ex.query("task").value_or(""));
  filter.kind_prefix = std::string(ex.query("kind").value_or(""));
  ISOLA_TRY(filter.from, moment(ex, "from"));
  ISOLA_TRY(filter.to, moment(ex, "to"));
  auto order = ex.query("order").value_or("oldest");
  if (order != "oldest" && order != "newest") return fail(Code::invalid, "order: must be oldest or newest");
  filter.newest_first = order == "newest";
  // What `next` of the page before said: to go on from there, whichever way.
  ISOLA_TRY(uint64_t next, query_number(ex, "after", 0));
  (filter.newest_first ? filter.before : filter.after) = next;
  ISOLA_TRY(filter.limit, query_number(ex, "limit", 100, 1, 1000));
  return filter;
}

std::optional<ledger::GroupBy> group_by(std::string_view word) {
  using ledger::GroupBy;
  if (word == "all") return GroupBy::all;
  if (word == "sandbox") return GroupBy::sandbox;
  if (word == "task") return GroupBy::task;
  if (word == "project") return GroupBy::project;
  if (word == "day") return GroupBy::day;
  return std::nullopt;
}

json usage_view(const ledger::UsageTotals& total, const ledger::PriceSheet& prices) {
  json item = view(total.used, prices);
  item["group"] = total.key;
  item["idle_ratio"] = total.idle_ratio();
  return item;
}

// What people call the groups.
Result<store::Labels> names_of(store::Store& store, const std::vector<ledger::UsageTotals>& totals,
                               ledger::GroupBy by) {
  store::Labels names;
  if (by == ledger::GroupBy::sandbox) {
    std::vector<std::string> ids;
    for (const auto& total : totals) ids.push_back(total.key);
    return store.names_of(ids);
  }
  if (by != ledger::GroupBy::project) return names;
  for (const auto& total : totals)
    if (auto project = store.find_project(total.key)) names[total.key] = project->name;
  return names;
}

}  // namespace

void Api::add_events(http::RouteGroup& group) {
  using store::Scope;
  auto service = service_;
  group.add("GET", "/v1/events", handled([service](http::Exchange& ex) { return follow(*service, ex, ""); }));
  group.add("GET", "/v1/sandboxes/{id}/events", handled([service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_TRY(auto record, service->look(project_of(ex), std::string(ex.param("id"))));
              co_return co_await follow(*service, ex, record.id);
            }));
  group.add("GET", "/v1/ledger", handled([service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_TRY(auto filter, event_filter(ex));
              ISOLA_CO_CHECK(co_await service->flush_ledger());
              ISOLA_CO_TRY(auto events, co_await dialect::until_gone(ex, service->ask_ledger(project_of(ex), filter)));
              json list = json::array();
              for (const auto& event : events) list.push_back(view(event));
              mark_untrusted(ex);
              json next = ledger::goes_on(events, filter) ? json(events.back().seq) : json(nullptr);
              ex.reply(200, dump({{"events", list}, {"next", next}}));
              co_return Result<void>();
            }));
  group.add("POST", "/v1/ledger/rotate",
            handled(store::Scope::admin, [service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              if (!is_operator(ex))
                co_return fail(Code::denied, "only an admin key of the project \"default\" may do that");
              ISOLA_CO_TRY(Fields fields, co_await read_fields(ex));
              ISOLA_CO_CHECK(fields.done());
              ISOLA_CO_CHECK(co_await service->flush_ledger());
              ISOLA_CO_TRY(auto done, co_await service->rotate_ledger(project_of(ex)));
              ex.reply(200, dump({{"file", done.file}, {"head", to_text(done.head)}}));
              co_return Result<void>();
            }));
  group.add("GET", "/v1/usage", handled([service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_CHECK(only_queries(ex, {"project", "sandbox", "task", "from", "to", "by", "after", "limit"}));
              ledger::UsageFilter filter;
              ISOLA_CO_TRY(filter.project, asked_project(ex));
              filter.sandbox = std::string(ex.query("sandbox").value_or(""));
              filter.task = std::string(ex.query("task").value_or(""));
              ISOLA_CO_TRY(filter.from, moment(ex, "from"));
              ISOLA_CO_TRY(filter.to, moment(ex, "to"));
              auto by = group_by(ex.query("by").value_or("sandbox"));
              if (!by) co_return fail(Code::invalid, "by: must be sandbox, task, project, day or all");
              if (auto after = ex.query("after")) filter.after = std::string(*after);
              ISOLA_CO_TRY(filter.limit, query_number(ex, "limit", 1000, 1, 10000));
              ISOLA_CO_CHECK(co_await service->flush_ledger());
              ISOLA_CO_TRY(auto totals,
                           co_await dialect::until_gone(ex, service->ask_usage(project_of(ex), filter, *by)));
              auto prices = service->settings().prices;
              json list = json::array();
              ISOLA_CO_TRY(auto names, names_of(service->store(), totals, *by));
              for (const auto& total : totals) {
                list.push_back(usage_view(total, prices));
                if (auto named = names.find(total.key); named != names.end()) list.back()["name"] = named->second;
              }
              json next = totals.size() == filter.limit ? json(totals.back().key) : json(nullptr);
              ex.reply(200, dump({{"usage", list}, {"next", next}}));
              co_return Result<void>();
            }));
}

}  // namespace isola::native
