// /v1/sandboxes: making, finding, changing, ending.
#include <nlohmann/json.hpp>

#include "dialect/native/api.h"
#include "dialect/native/create_fields.h"
#include "dialect/native/query.h"
#include "dialect/native/views.h"

namespace isola::native {

using nlohmann::json;
using sandbox::BoxPtr;

namespace {

Task<Result<void>> create_sandbox(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  bool latency = fields.flag("latency");
  auto settings = service.settings();
  // One that is made from a snapshot has the limits of what that was made of, unless it says others.
  if (auto snapshot = service.find_snapshot(project_of(ex), fields.text("snapshot")))
    settings.default_limits = snapshot->limits;
  ISOLA_CO_TRY(auto request, read_create(fields, settings));
  ISOLA_CO_CHECK(fields.done());
  request.project = project_of(ex);
  request.by = std::string(ex.noted("key"));
  if (request.actor.empty()) request.actor = request.by;
  auto begun = std::chrono::steady_clock::now();
  ISOLA_CO_TRY(sandbox::Created created, co_await create_for(service, ex, std::move(request)));
  json out = view(created.box->record());
  out["existed"] = created.existed;
  if (latency) {
    out["latency_ms"] = view(created.latency);
    out["latency_ms"]["server"] =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
  }
  ex.set_header("Location", "/v1/sandboxes/" + created.box->id());
  ex.reply(created.existed ? 200 : 201, dump(out));
  co_return Result<void>();
}

Task<Result<void>> list_sandboxes(sandbox::Service& service, http::Exchange& ex) {
  store::SandboxFilter filter{.project = project_of(ex)};
  size_t limit = 100;
  std::string cursor;
  for (const auto& [name, value] : ex.queries()) {
    if (name == "limit") {
      ISOLA_CO_TRY(limit, whole_number(name, value, 1, 1000));
    } else if (name == "cursor") {
      cursor = value;
    } else if (name == "state") {
      auto state = parse_state(value);
      if (!state) co_return fail(Code::invalid, "state: there is no state \"" + value + "\"");
      filter.states.push_back(*state);
    } else if (name == "name") {
      filter.name_prefix = value;
    } else if (name == "task") {
      filter.task = value;
    } else if (name.starts_with("metadata.")) {
      filter.metadata[name.substr(9)] = value;
    } else {
      co_return fail(Code::invalid, "there is no query parameter \"" + name + "\" here");
    }
  }
  ISOLA_CO_TRY(auto page, co_await service.list(filter, cursor, limit));
  json all = json::array();
  for (auto& record : page.sandboxes) {
    json item = view(record);
    item.erase("port_token");  // a list is looked at over shoulders; the single view has it
    all.push_back(std::move(item));
  }
  ex.reply(200, dump({{"sandboxes", all}, {"next", page.next.empty() ? json(nullptr) : json(page.next)}}));
  co_return Result<void>();
}

Task<Result<void>> change_sandbox(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  sandbox::Update update;
  update.timeout = fields.seconds("timeout");
  update.only_extend = fields.flag("only_extend");
  update.idle_limit = fields.seconds("idle_timeout");
  if (auto word = fields.maybe_text("at_end")) {
    update.at_end = store::parse_at_end(*word);
    if (!update.at_end) fields.wrong("at_end", "must be kill, pause or stop");
  }
  if (fields.has("auto_resume")) update.auto_resume = fields.flag("auto_resume");
  update.delete_after = fields.seconds("delete_after");
  update.freeze_after = fields.seconds("freeze_after");
  update.archive_after = fields.seconds("archive_after");
  if (fields.has("metadata")) update.metadata = fields.labels("metadata");
  if (fields.has("budget")) update.budget = read_budget(fields, "budget");
  ISOLA_CO_CHECK(fields.done());
  sandbox::Caller by = caller_of(ex);
  ISOLA_CO_TRY(auto record, co_await service.update(box, std::move(update), by));
  ex.reply(200, dump(view(record)));
  co_return Result<void>();
}

Task<Result<void>> metrics(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(auto stats, co_await service.stats(box));
  auto record = box->record();
  ex.reply(200, dump({{"cpu_usec", stats.cpu_usec},
                      {"cpus", record.limits.cpus},
                      {"memory_bytes", stats.memory_bytes},
                      {"memory_peak_bytes", stats.memory_peak_bytes},
                      {"memory_limit_bytes", record.limits.memory},
                      {"disk_bytes", stats.disk_bytes},
                      {"disk_limit_bytes", record.limits.disk},
                      {"processes", stats.processes},
                      {"oom_kills", stats.oom_kills},
                      {"commands", service.used_by(box).commands}}));
  co_return Result<void>();
}

Task<Result<void>> network(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  json out = {{"policy", sandbox::shown_policy(box->record().network)}};
  // The gate knows nothing of a sandbox that sleeps, or was born just now.
  auto report = co_await service.network_report(box);
  if (report) {
    json told = json::parse(*report, nullptr, false);
    if (told.is_object()) out.update(told);
  } else if (report.error().code != Code::not_found) {
    co_return std::unexpected(report.error());
  }
  mark_untrusted(ex);  // names that it asked for
  ex.reply(200, dump(out));
  co_return Result<void>();
}

Task<Result<void>> set_network(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  auto policy = fields.maybe_text("policy");
  if (!policy) fields.wrong("policy", "give a preset (none, package-registries, all) or a policy");
  bool cut = fields.flag("cut");
  auto replaces = fields.maybe_text("replaces");
  ISOLA_CO_CHECK(fields.done());
  sandbox::NetworkChange change{.network = *policy, .cut = cut, .replaces = std::move(replaces)};
  sandbox::Caller by = caller_of(ex);
  ISOLA_CO_CHECK(co_await service.set_network(box, std::move(change), by));
  ex.reply(200, dump(view(box->record())));
  co_return Result<void>();
}

}  // namespace

void Api::add_sandboxes(http::RouteGroup& group) {
  using store::Scope;
  auto service = service_;
  group.add("POST", "/v1/sandboxes",
            handled(Scope::use, [service](http::Exchange& ex) { return create_sandbox(*service, ex); }));
  group.add("GET", "/v1/sandboxes", handled([service](http::Exchange& ex) { return list_sandboxes(*service, ex); }));
  group.add("GET", "/v1/sandboxes/{id}", handled([service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              bool all = store::allows(scope_of(ex), Scope::use);
              auto show = [all](const store::SandboxRecord& record) {
                json out = view(record);
                if (!all) out.erase("port_token");
                return dump(out);
              };
              std::string project = project_of(ex), id(ex.param("id"));
              if (auto box = service->living_one(project, id)) {
                ex.reply(200, *box->text(all ? 0 : 1, show));
                co_return Result<void>();
              }
              ISOLA_CO_TRY(auto record, service->look(project, id));
              ex.reply(200, show(record));
              co_return Result<void>();
            }));
  group.add("PATCH", "/v1/sandboxes/{id}",
            handled(Scope::use, [service](http::Exchange& ex) { return change_sandbox(*service, ex); }));
  group.add("DELETE", "/v1/sandboxes/{id}",
            handled(Scope::use, [service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              auto record = service->look(project_of(ex), std::string(ex.param("id")));
              if (!record) co_return std::unexpected(record.error());
              auto box = service->find(project_of(ex), record->id);
              // One that has ended already is as deleted as it can be.
              sandbox::Caller by = caller_of(ex);
              if (box) ISOLA_CO_CHECK(co_await service->kill(*box, EndReason::killed, std::string(), by));
              ex.reply(204);
              co_return Result<void>();
            }));
  group.add("POST", "/v1/sandboxes/{id}/freeze",
            handled(Scope::use, [service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_TRY(BoxPtr box, box_of(*service, ex));
              ISOLA_CO_TRY(Fields fields, co_await read_fields(ex));
              ISOLA_CO_CHECK(fields.done());
              sandbox::Caller by = caller_of(ex);
              ISOLA_CO_CHECK(co_await service->freeze(box, std::string(), by));
              ex.reply(200, dump(view(box->record())));
              co_return Result<void>();
            }));
  group.add("POST", "/v1/sandboxes/{id}/thaw",
            handled(Scope::use, [service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_TRY(BoxPtr box, box_of(*service, ex));
              ISOLA_CO_TRY(Fields fields, co_await read_fields(ex));
              ISOLA_CO_CHECK(fields.done());
              sandbox::Caller by = caller_of(ex);
              ISOLA_CO_CHECK(co_await service->thaw(box, by));
              ex.reply(200, dump(view(box->record())));
              co_return Result<void>();
            }));
  group.add("GET", "/v1/sandboxes/{id}/network",
            handled([service](http::Exchange& ex) { return network(*service, ex); }));
  group.add("PUT", "/v1/sandboxes/{id}/network",
            handled(Scope::use, [service](http::Exchange& ex) { return set_network(*service, ex); }));
  group.add("GET", "/v1/sandboxes/{id}/metrics",
            handled([service](http::Exchange& ex) { return metrics(*service, ex); }));
}

}  // namespace isola::native
