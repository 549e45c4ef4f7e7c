// /v1/keys, /v1/projects and /v1/tasks. An admin key manages the keys of its own project; an admin key of the project
// `default`, which only the operator has, manages projects too.
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "base/log.h"
#include "dialect/native/api.h"
#include "dialect/native/create_fields.h"
#include "dialect/native/fields.h"
#include "dialect/native/views.h"

namespace isola::native {

using nlohmann::json;
using store::Scope;

namespace {

// In the ledger's file before the caller hears of it.
Task<Result<void>> log_key(sandbox::Service& service, ledger::Kind kind, std::string project, std::string key,
                           json data) {
  ledger::Event event;
  event.time = sandbox::now_millis();
  event.project = std::move(project);
  event.actor = event.key = std::move(key);
  event.kind = kind;
  event.data = dump(data);
  co_return co_await service.record_durably(std::move(event));
}

Result<void> operator_only(const http::Exchange& ex) {
  if (is_operator(ex)) return {};
  return fail(Code::denied, "only an admin key of the project \"default\" may do that");
}

Task<Result<void>> create_key(sandbox::Service& service, store::KeyRing& ring, http::Exchange& ex) {
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  auto name = fields.text("name", "unnamed");
  auto project = fields.text("project", project_of(ex));
  auto scope = store::parse_scope(fields.text("scope", "use"));
  if (!scope) fields.wrong("scope", "must be read, use or admin");
  if (name.size() > 200) fields.wrong("name", "is too long");
  ISOLA_CO_CHECK(fields.done());
  if (project != project_of(ex)) ISOLA_CO_CHECK(operator_only(ex));
  ISOLA_CO_TRY(auto made, ring.issue(project, name, *scope, sandbox::now_millis()));
  json data = {{"key", made.record.id}, {"scope", to_string(*scope)}};
  std::string by(ex.noted("key"));
  auto logged = co_await log_key(service, ledger::Kind::key_created, project, by, data);
  if (!logged) {  // a key that the ledger does not know of opens nothing
    (void)ring.revoke(made.record.id, sandbox::now_millis());
    co_return logged;
  }
  json out = view(made.record);
  out["secret"] = made.secret;  // shown once, here
  ex.reply(201, dump(out));
  co_return Result<void>();
}

Task<Result<void>> revoke_key(sandbox::Service& service, store::KeyRing& ring, const Options& options,
                              http::Exchange& ex) {
  std::string id(ex.param("key"));
  bool all = operator_only(ex).has_value();
  ISOLA_CO_TRY(auto keys, service.store().list_keys(all ? "" : project_of(ex)));
  for (const auto& key : keys) {
    if (key.id != id) continue;
    ISOLA_CO_CHECK(ring.revoke(id, sandbox::now_millis()));
    if (options.end_streams) options.end_streams(id, ex.number());
    json data = {{"key", id}};
    std::string by(ex.noted("key"));
    auto logged = co_await log_key(service, ledger::Kind::key_revoked, key.project, by, data);
    if (!logged) co_return std::unexpected(logged.error().in("the key is revoked, but the ledger does not say so"));
    ex.reply(204);
    co_return Result<void>();
  }
  co_return fail(Code::not_found, "there is no such key");
}

// What is not named stays as it is: a change of one limit must not lower the project's boundary. 0: no such limit.
store::ProjectLimits read_limits(Fields& fields, store::ProjectLimits limits) {
  auto inner = fields.object("limits");
  if (!inner) return limits;
  if (auto live = inner->count("live_sandboxes", UINT32_MAX)) limits.live_sandboxes = static_cast<uint32_t>(*live);
  limits.cpus = inner->number("cpus").value_or(limits.cpus);
  limits.memory = inner->size("memory").value_or(limits.memory);
  limits.disk = inner->size("disk").value_or(limits.disk);
  limits.creates_per_second = inner->number("creates_per_second").value_or(limits.creates_per_second);
  limits.stored = inner->size("stored").value_or(limits.stored);
  if (auto word = inner->maybe_text("boundary")) {
    auto least = parse_boundary(*word);
    if (!least) inner->wrong("boundary", "must be jail, gvisor, uml or microvm: the weakest that is allowed");
    limits.boundary = least.value_or(BoundaryKind::jail);
  }
  fields.adopt(*inner, "limits");
  return limits;
}

Task<Result<void>> create_project(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_CHECK(operator_only(ex));
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  store::ProjectRecord project;
  project.id = new_project_id();
  project.name = fields.text("name");
  if (project.name.empty() || project.name.size() > 200) fields.wrong("name", "is missing or too long");
  project.limits = read_limits(fields, {});
  project.budget = read_budget(fields, "budget");
  project.created = sandbox::now_millis();
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_CHECK(service.add_project(project));
  json data = {{"name", project.name}};
  std::string by(ex.noted("key"));
  auto logged = co_await log_key(service, ledger::Kind::project_created, project.id, by, data);
  if (!logged) {  // nobody was told of it
    (void)service.store().remove_project(project.id);
    co_return logged;
  }
  ex.reply(201, dump(view(project)));
  co_return Result<void>();
}

Task<Result<void>> change_project(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_CHECK(operator_only(ex));
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  std::string id(ex.param("project"));
  ISOLA_CO_TRY(auto before, service.store().find_project(id));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  store::ProjectChange change;
  if (fields.has("limits")) change.limits = read_limits(fields, before.limits);
  if (fields.has("budget")) change.budget = read_budget(fields, "budget");
  change.ceiling = fields.maybe_text("ceiling");
  if (fields.has("allow_exposed")) change.allow_exposed = fields.flag("allow_exposed");
  json changed = json::array();
  for (const char* name : {"limits", "budget", "ceiling", "allow_exposed"})
    if (fields.has(name)) changed.push_back(name);
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_TRY(auto project, service.change_project(id, change));
  json data = {{"changed", changed}};
  std::string by(ex.noted("key"));
  auto logged = co_await log_key(service, ledger::Kind::project_updated, project.id, by, data);
  // What is written down holds for whatever is created or told anew, also where one cannot be told just now; and it is
  // told to those that live, whatever became of the entry.
  if (change.ceiling) {
    auto told = co_await service.apply_ceiling(project.id);
    if (!told && logged)
      co_return std::unexpected(told.error().in("the project is changed, but not every sandbox could be told"));
  }
  if (!logged) co_return std::unexpected(logged.error().in("the project is changed, but the ledger does not say so"));
  ex.reply(200, dump(view(project)));
  co_return Result<void>();
}

// A task is a word of the project's own choice: whoever may use the project may say what its work may cost.
Task<Result<void>> show_task(sandbox::Service& service, http::Exchange& ex) {
  std::string task(ex.param("task"));
  ISOLA_CO_TRY(auto use, co_await service.task_use(project_of(ex), task));
  json out = {{"task", task},
              {"budget", view(use.budget)},
              {"used", view(use.used, service.settings().prices)},
              {"spent", use.spent.empty() ? json(nullptr) : json(use.spent)}};
  ex.reply(200, dump(out));
  co_return Result<void>();
}

Task<Result<void>> set_task(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  if (!fields.has("budget")) fields.wrong("budget", "is missing; {} takes it away");
  auto budget = read_budget(fields, "budget");
  ISOLA_CO_CHECK(fields.done());
  std::string task(ex.param("task"));
  ISOLA_CO_CHECK(co_await service.set_task_budget(project_of(ex), task, budget));
  json data = {{"changed", {"task"}}, {"task", task}, {"budget", view(budget)}};
  std::string by(ex.noted("key"));
  auto logged = co_await log_key(service, ledger::Kind::project_updated, project_of(ex), by, data);
  if (!logged) co_return std::unexpected(logged.error().in("the task is changed, but the ledger does not say so"));
  co_return co_await show_task(service, ex);
}

}  // namespace

void Api::add_tenants(http::RouteGroup& group) {
  auto service = service_;
  auto ring = keys_;
  group.add("POST", "/v1/keys",
            handled(Scope::admin, [service, ring](http::Exchange& ex) { return create_key(*service, *ring, ex); }));
  group.add("GET", "/v1/keys",
            handled(Scope::admin, [service, ring](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              // When they were last used is written down every minute; whoever asks is told what is known.
              if (auto saved = ring->save_uses(); !saved) log::warn("api", "{}", saved.error().message);
              bool all = operator_only(ex).has_value();
              ISOLA_CO_TRY(auto keys, service->store().list_keys(all ? "" : project_of(ex)));
              json list = json::array();
              for (const auto& key : keys) list.push_back(view(key));
              ex.reply(200, dump({{"keys", list}}));
              co_return Result<void>();
            }));
  group.add("DELETE", "/v1/keys/{key}", handled(Scope::admin, [service, ring, options = options_](http::Exchange& ex) {
              return revoke_key(*service, *ring, options, ex);
            }));
  group.add("POST", "/v1/projects",
            handled(Scope::admin, [service](http::Exchange& ex) { return create_project(*service, ex); }));
  group.add("GET", "/v1/projects", handled(Scope::admin, [service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_CHECK(operator_only(ex));
              ISOLA_CO_TRY(auto projects, service->store().list_projects());
              json list = json::array();
              for (const auto& project : projects) list.push_back(view(project));
              ex.reply(200, dump({{"projects", list}}));
              co_return Result<void>();
            }));
  group.add("GET", "/v1/tasks/{task}", handled([service](http::Exchange& ex) { return show_task(*service, ex); }));
  group.add("PUT", "/v1/tasks/{task}",
            handled(Scope::use, [service](http::Exchange& ex) { return set_task(*service, ex); }));
  group.add("PATCH", "/v1/projects/{project}",
            handled(Scope::admin, [service](http::Exchange& ex) { return change_project(*service, ex); }));
}

}  // namespace isola::native
