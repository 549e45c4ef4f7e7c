// Looking at sandboxes from outside: metrics, logs and lifecycle events, the latter two out of the ledger.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/log.h"
#include "dialect/e2b/lifecycle.h"
#include "dialect/e2b/metrics.h"
#include "dialect/e2b/views.h"
#include "dialect/shared/door.h"
#include "dialect/shared/text.h"
#include "dialect/shared/until_gone.h"

namespace isola::e2b {

using nlohmann::json;
using sandbox::BoxPtr;

namespace {

constexpr size_t kMostEntries = 10000;   // of the ledger that one question looks at
constexpr size_t kLifecyclePage = 1000;  // entries that are held at a time, for as many pages as it takes

json view(const Measured& m) {
  return {{"timestamp", dialect::when(m.at)}, {"timestampUnix", m.at / 1000}, {"cpuCount", m.cpus},
          {"cpuUsedPct", m.cpu_percent},      {"memUsed", m.memory_used},     {"memTotal", m.memory_total},
          {"memCache", m.memory_cache},       {"diskUsed", m.disk_used},      {"diskTotal", m.disk_total}};
}

Result<std::optional<int64_t>> number_field(const http::Exchange& ex, const char* name) {
  auto text = ex.query(name);
  if (!text || text->empty()) return std::optional<int64_t>();
  char* end = nullptr;
  std::string copy(*text);
  int64_t value = std::strtoll(copy.c_str(), &end, 10);
  if (*end) return fail(Code::invalid, std::string(name) + ": must be a whole number");
  return std::optional(value);
}

Task<Result<void>> metrics(sandbox::Service& service, http::Exchange& ex, Metrics& seen) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(auto start, number_field(ex, "start"));
  ISOLA_CO_TRY(auto end, number_field(ex, "end"));
  if (start && end && *start > *end) co_return fail(Code::invalid, "start: must not be after end");
  json out = json::array();
  ISOLA_CO_TRY(auto past, co_await seen.of(box));
  for (const auto& one : past)
    if ((!start || one.at / 1000 >= *start) && (!end || one.at / 1000 <= *end)) out.push_back(view(one));
  ex.reply(200, dialect::dump(out));
  co_return Result<void>();
}

Task<Result<void>> metrics_of_many(sandbox::Service& service, http::Exchange& ex, Metrics& seen) {
  json out = json::object();
  std::vector<BoxPtr> boxes;
  std::string ids(ex.query("sandbox_ids").value_or(""));
  size_t count = 0;
  for (size_t at = 0; at < ids.size();) {
    size_t comma = std::min(ids.find(',', at), ids.size());
    std::string id = plain_id(std::string_view(ids).substr(at, comma - at));
    at = comma + 1;
    if (++count > 100) co_return fail(Code::invalid, "sandbox_ids: at most 100");
    auto box = service.find(dialect::project_of(ex), id);
    if (box) boxes.push_back(*box);
  }
  auto newest = co_await seen.newest_of(std::move(boxes));
  for (const auto& [id, measured] : newest) out[id] = view(measured);
  ex.reply(200, dialect::dump({{"sandboxes", out}}));
  co_return Result<void>();
}

json entry_of(const ledger::Event& event) {
  json fields = json::object();
  json data = json::parse(event.data, nullptr, false);
  if (data.is_object())
    for (const auto& [key, value] : data.items())
      fields[key] = value.is_string() ? value.get<std::string>() : dialect::dump(value);
  if (!event.actor.empty()) fields["actor"] = event.actor;
  return {{"timestamp", dialect::when(event.time)},
          {"level", event.kind == ledger::Kind::egress_denied ? "warn" : "info"},
          {"message", to_string(event.kind)},
          {"fields", fields}};
}

// The CLI takes a line apart as JSON again.
std::string line_of(const json& entry) {
  json line = entry["fields"];
  line["level"] = entry["level"];
  line["message"] = entry["message"];
  line["logger"] = "isola";
  return dialect::dump(line);
}

Task<Result<void>> logs(sandbox::Service& service, http::Exchange& ex, bool now) {
  // Also of one that has ended: that is when logs are looked at.
  ISOLA_CO_TRY(auto record, service.look(dialect::project_of(ex), plain_id(ex.param("id"))));
  ledger::EventFilter filter;
  filter.project = record.project;
  filter.sandbox = record.id;
  ISOLA_CO_TRY(auto limit, number_field(ex, "limit"));
  const auto most = static_cast<size_t>(std::clamp<int64_t>(limit.value_or(1000), 1, kMostEntries));
  std::string search(ex.query("search").value_or("")), level(ex.query("level").value_or(""));
  // What is left out does not count.
  filter.limit = search.empty() && level.empty() ? most : kMostEntries;
  ISOLA_CO_TRY(auto from, number_field(ex, now ? "cursor" : "start"));
  if (ex.query("direction").value_or("") == "backward") {
    filter.newest_first = true;
    if (from) filter.to = *from;
  } else if (from) {
    filter.from = *from;
  }
  (void)co_await service.flush_ledger();
  ISOLA_CO_TRY(auto events, co_await dialect::until_gone(ex, service.ask_ledger(filter.project, filter)));
  json entries = json::array(), lines = json::array();
  for (const auto& event : events) {
    if (entries.size() >= most) break;
    json entry = entry_of(event);
    std::string line = line_of(entry);
    if (!search.empty() && line.find(search) == std::string::npos) continue;
    if ((level == "warn" || level == "error") && entry["level"] == "info") continue;
    lines.push_back({{"timestamp", entry["timestamp"]}, {"line", line}});
    entries.push_back(std::move(entry));
  }
  if (now)
    ex.reply(200, dialect::dump({{"logs", entries}}));
  else
    ex.reply(200, dialect::dump({{"logs", lines}, {"logEntries", entries}}));
  co_return Result<void>();
}

// Each by itself, or several with commas between them.
Result<std::set<std::string, std::less<>>> types_of(const http::Exchange& ex) {
  std::set<std::string, std::less<>> out;
  auto words = lifecycle_words();
  for (const auto& [name, value] : ex.queries()) {
    if (name != "types") continue;
    for (std::string_view rest = value; !rest.empty();) {
      auto comma = rest.find(',');
      auto word = rest.substr(0, comma);
      if (std::ranges::find(words, word) == words.end())
        return fail(Code::invalid, "types: there is no type " + log::quoted(word));
      out.emplace(word);
      rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
    }
  }
  return out;
}

Task<Result<void>> lifecycle(sandbox::Service& service, http::Exchange& ex, const Look& look) {
  ledger::EventFilter filter;
  filter.project = dialect::project_of(ex);
  filter.sandbox = plain_id(ex.param("id"));
  filter.kind_prefix = "sandbox.";
  filter.newest_first = ex.query("orderAsc").value_or("") != "true";
  filter.limit = kLifecyclePage;
  ISOLA_CO_TRY(auto offset, number_field(ex, "offset"));
  ISOLA_CO_TRY(auto limit, number_field(ex, "limit"));
  if (limit && (*limit < 1 || *limit > 100)) co_return fail(Code::invalid, "limit: must be between 1 and 100");
  (void)co_await service.flush_ledger();
  ISOLA_CO_TRY(auto types, types_of(ex));
  json out = json::array();
  int64_t skip = offset.value_or(0);
  const auto most = static_cast<size_t>(limit.value_or(10));
  std::map<std::string, Subject> known;
  // Page after page: what is asked for may stand behind any number of entries that are nothing of it.
  while (out.size() < most) {
    ISOLA_CO_TRY(auto events, co_await dialect::until_gone(ex, service.ask_ledger(filter.project, filter)));
    if (events.empty()) break;
    (filter.newest_first ? filter.before : filter.after) = events.back().seq;
    for (const auto& event : events) {
      auto word = lifecycle_word(event);
      if (!word || (!types.empty() && !types.contains(*word))) continue;
      if (skip-- > 0) continue;
      if (out.size() >= most) break;
      auto about = known.find(event.sandbox);
      if (about == known.end()) about = known.emplace(event.sandbox, look(event.sandbox)).first;
      out.push_back(lifecycle_view(event, *word, about->second));
    }
  }
  ex.reply(200, dialect::dump(out));
  co_return Result<void>();
}

}  // namespace

Look Api::subjects() const {
  return [service = service_, ids = options_.template_id](const std::string& sandbox) {
    Subject about;
    if (auto box = service->find_any(sandbox))
      about.record = (*box)->record();
    else if (auto ended = service->store().find_sandbox(sandbox))
      about.record = std::move(*ended);
    if (about.record) about.template_id = ids(about.record->project, about.record->template_name);
    return about;
  };
}

void Api::add_observation(http::Router& router) {
  auto service = service_;
  auto& old = group(router, "/sandboxes/");
  old.add("GET", "/sandboxes/{id}/metrics",
          handled([service, seen = metrics_](http::Exchange& ex) { return metrics(*service, ex, *seen); }));
  old.add("GET", "/sandboxes/metrics",
          handled([service, seen = metrics_](http::Exchange& ex) { return metrics_of_many(*service, ex, *seen); }));
  old.add("GET", "/sandboxes/{id}/logs", handled([service](http::Exchange& ex) { return logs(*service, ex, false); }));
  group(router, "/v2/sandboxes/").add("GET", "/v2/sandboxes/{id}/logs", handled([service](http::Exchange& ex) {
                                        return logs(*service, ex, true);
                                      }));
  auto& events = group(router, "/events");
  auto told = handled([service, look = subjects()](http::Exchange& ex) { return lifecycle(*service, ex, look); });
  events.add("GET", "/events/sandboxes", told);
  events.add("GET", "/events/sandboxes/{id}", told);
  // Whoever logs in with a key is of one team, its project.
  group(router, "/teams")
      .add("GET", "/teams", handled([](http::Exchange& ex) -> Task<Result<void>> {
             std::string project = dialect::project_of(ex);
             std::string key(ex.header("x-api-key"));
             if (auto bearer = ex.header("authorization"); key.empty() && bearer.starts_with("Bearer "))
               key = bearer.substr(7);
             ex.reply(200, dialect::dump(json::array(
                               {{{"teamID", project}, {"name", project}, {"apiKey", key}, {"isDefault", true}}})));
             co_return Result<void>();
           }));
}

}  // namespace isola::e2b
