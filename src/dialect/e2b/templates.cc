// Templates: those of this machine, readable by everybody and changed by nobody here, and those that a project built.
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "dialect/e2b/body.h"
#include "dialect/e2b/build_id.h"
#include "dialect/e2b/views.h"
#include "dialect/shared/door.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

// An id that looks like one: clients of some calls want a build beside the template.
std::string build_of(const sandbox::Service::Template& one) { return uuid_of_digest(one.digest); }

json view(const sandbox::Service::Template& one, const sandbox::Settings& settings) {
  const auto& limits = settings.default_limits;
  std::string epoch = dialect::when(0);
  return {{"templateID", one.name},
          {"buildID", build_of(one)},
          {"cpuCount", static_cast<int>(std::max(1.0, limits.cpus))},
          {"memoryMB", limits.memory >> 20},
          {"diskSizeMB", limits.disk >> 20},
          {"public", true},
          {"aliases", {one.name}},
          {"names", {one.name}},
          {"createdAt", epoch},
          {"updatedAt", epoch},
          {"createdBy", nullptr},
          {"lastSpawnedAt", nullptr},
          {"spawnCount", 0},
          {"buildCount", 1},
          {"buildStatus", "ready"},
          {"envdVersion", kEnvdVersion}};
}

json build_view(const store::BuildRecord& build, const sandbox::Settings& settings) {
  const auto& limits = settings.default_limits;
  json out = {{"buildID", uuid_of(build.id)},
              {"status", status_of(build.state)},
              {"createdAt", dialect::when(build.created)},
              {"updatedAt", dialect::when(build.finished ? build.finished : build.created)},
              {"cpuCount", static_cast<int>(std::max(1.0, build.cpus > 0 ? build.cpus : limits.cpus))},
              {"memoryMB", (build.memory_limit ? build.memory_limit : limits.memory) >> 20},
              {"diskSizeMB", std::max(build.disk, limits.disk) >> 20},
              {"envdVersion", kEnvdVersion}};
  if (build.finished) out["finishedAt"] = dialect::when(build.finished);
  return out;
}

// One that the project built.
json view(const store::TemplateRecord& one, const std::vector<store::BuildRecord>& builds,
          const sandbox::Settings& settings) {
  json out = {{"templateID", one.id},
              {"public", one.published},
              {"aliases", {one.name}},
              {"names", {one.name}},
              {"createdBy", nullptr},
              {"lastSpawnedAt", nullptr},
              {"createdAt", dialect::when(one.created)},
              {"spawnCount", 0},
              {"buildCount", builds.size()}};
  store::BuildRecord none;
  json newest = build_view(builds.empty() ? none : builds.front(), settings);
  newest["buildStatus"] = newest["status"];
  newest.erase("status");
  newest.erase("createdAt");
  newest.erase("finishedAt");
  out.update(newest);
  return out;
}

// Of this machine, for everybody.
Result<sandbox::Service::Template> find(sandbox::Service& service, const http::Exchange& ex, std::string name) {
  name = template_named(service, dialect::project_of(ex), std::move(name));
  ISOLA_TRY(auto all, service.templates());
  for (const auto& one : all)
    if (one.name == name) return one;
  return fail(Code::not_found, "there is no template " + log::quoted(name));
}

Result<store::TemplateRecord> find_built(sandbox::Service& service, const http::Exchange& ex, std::string name) {
  return service.store().find_template(dialect::project_of(ex), plain_name(name));
}

// By its id or as project/name; in a path the slash comes encoded.
Result<store::TemplateRecord> find_foreign(sandbox::Service& service, const std::string& name) {
  return service.store().find_published(plain_name(name));
}

// Somebody else's, who published it: what it is made of, and not how it was built.
json foreign_view(const store::TemplateRecord& one, const store::BuildRecord& build,
                  const sandbox::Settings& settings) {
  json out = view(one, {build}, settings);
  const std::string whole = one.project + "/" + one.name;
  out["aliases"] = out["names"] = {whole};
  out["builds"] = json::array();
  return out;
}

// To everybody on this server, or no longer: for whoever manages the project, and written down.
Task<Result<void>> publish(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(json body, co_await read_body(ex));
  if (!given(body, "public") || !body["public"].is_boolean())
    co_return fail(Code::invalid, "public: must be true or false");
  auto built = find_built(service, ex, std::string(ex.param("template")));
  if (!built) {
    ISOLA_CO_TRY(auto one, find(service, ex, std::string(ex.param("template"))));
    co_return fail(Code::denied, "the template " + one.name + " is the operator's, and everybody's");
  }
  const bool open = body["public"].get<bool>();
  if (open && built->project.empty()) co_return fail(Code::internal, "the template is nobody's");
  if (!store::allows(dialect::scope_of(ex), store::Scope::admin))
    co_return fail(Code::denied, "publishing a template is for API keys of scope admin");
  ISOLA_CO_CHECK(service.store().set_published(built->id, open));
  json data = {{"changed", {"template"}}, {"template", built->id}, {"name", built->name}, {"published", open}};
  const auto by = dialect::caller_of(ex);
  ledger::Event event;
  event.time = sandbox::now_millis();
  event.project = built->project;
  event.actor = by.actor;
  event.key = by.key;
  event.kind = ledger::Kind::project_updated;
  event.data = dialect::dump(data);
  auto logged = co_await service.record_durably(std::move(event));
  if (!logged && open) (void)service.store().set_published(built->id, built->published);
  if (!logged) co_return std::unexpected(logged.error().in("the ledger cannot say so"));
  json names = json::array();
  if (open) names.push_back(built->project + "/" + built->name);
  ex.reply(200, dialect::dump({{"names", names}}));
  co_return Result<void>();
}

}  // namespace

void Api::add_templates(http::Router& router) {
  auto service = service_;
  auto& templates = group(router, "/templates");
  auto list = handled([service](http::Exchange& ex) -> Task<Result<void>> {
    ISOLA_CO_TRY(auto all, service->templates());
    json out = json::array();
    ISOLA_CO_TRY(auto built, service->store().list_templates(dialect::project_of(ex)));
    for (const auto& one : built) {
      ISOLA_CO_TRY(auto builds, service->store().list_builds(one.id));
      out.push_back(view(one, builds, service->settings()));
    }
    for (const auto& one : all) out.push_back(view(one, service->settings()));
    ex.reply(200, dialect::dump(out));
    co_return Result<void>();
  });
  templates.add("GET", "/templates", list);
  group(router, "/v2/templates").add("GET", "/v2/templates", list);
  templates.add("GET", "/templates/aliases/{alias}", handled([service](http::Exchange& ex) -> Task<Result<void>> {
                  if (auto built = find_built(*service, ex, std::string(ex.param("alias")))) {
                    ex.reply(200, dialect::dump({{"templateID", built->id}, {"public", built->published}}));
                    co_return Result<void>();
                  }
                  if (auto other = find_foreign(*service, std::string(ex.param("alias")))) {
                    ex.reply(200, dialect::dump({{"templateID", other->id}, {"public", true}}));
                    co_return Result<void>();
                  }
                  ISOLA_CO_TRY(auto one, find(*service, ex, std::string(ex.param("alias"))));
                  ex.reply(200, dialect::dump({{"templateID", one.name}, {"public", true}}));
                  co_return Result<void>();
                }));
  templates.add("GET", "/templates/{template}", handled([service](http::Exchange& ex) -> Task<Result<void>> {
                  if (auto built = find_built(*service, ex, std::string(ex.param("template")))) {
                    ISOLA_CO_TRY(auto builds, service->store().list_builds(built->id));
                    json out = view(*built, builds, service->settings());
                    out["builds"] = json::array();
                    for (const auto& build : builds) out["builds"].push_back(build_view(build, service->settings()));
                    ex.reply(200, dialect::dump(out));
                    co_return Result<void>();
                  }
                  if (auto other = find_foreign(*service, std::string(ex.param("template")))) {
                    store::BuildRecord build;
                    if (auto tagged = service->store().tagged_build(other->id, sandbox::kUsualTag)) build = *tagged;
                    ex.reply(200, dialect::dump(foreign_view(*other, build, service->settings())));
                    co_return Result<void>();
                  }
                  ISOLA_CO_TRY(auto one, find(*service, ex, std::string(ex.param("template"))));
                  json out = view(one, service->settings());
                  out["builds"] = json::array({{{"buildID", out["buildID"]},
                                                {"status", "ready"},
                                                {"createdAt", out["createdAt"]},
                                                {"updatedAt", out["updatedAt"]},
                                                {"finishedAt", out["updatedAt"]},
                                                {"cpuCount", out["cpuCount"]},
                                                {"memoryMB", out["memoryMB"]},
                                                {"diskSizeMB", out["diskSizeMB"]},
                                                {"envdVersion", kEnvdVersion}}});
                  ex.reply(200, dialect::dump(out));
                  co_return Result<void>();
                }));
  auto published = handled([service](http::Exchange& ex) { return publish(*service, ex); });
  templates.add("PATCH", "/templates/{template}", published);
  group(router, "/v2/templates").add("PATCH", "/v2/templates/{template}", published);
  // This is also how snapshots are deleted.
  templates.add("DELETE", "/templates/{template}",
                handled([service, builder = builder_](http::Exchange& ex) -> Task<Result<void>> {
                  std::string project = dialect::project_of(ex);
                  std::string name = without_tag(std::string(ex.param("template")));
                  // One name means one of the two. Where both have it since before that was so, the order is a
                  // create's.
                  if (find_built(*service, ex, name)) {
                    ISOLA_CO_CHECK(builder->remove(project, plain_name(name)));
                    ex.reply(204);
                    co_return Result<void>();
                  }
                  if (service->find_snapshot(project, name)) {
                    ISOLA_CO_CHECK(co_await service->remove_snapshot(std::move(project), std::move(name)));
                    ex.reply(204);
                    co_return Result<void>();
                  }
                  ISOLA_CO_TRY(auto one, find(*service, ex, std::string(ex.param("template"))));
                  co_return fail(Code::denied,
                                 "the template " + one.name + " is the operator's: `isola template` manages it");
                }));
  templates.add(
      "GET", "/templates/{template}/tags", handled([service](http::Exchange& ex) -> Task<Result<void>> {
        if (auto built = find_built(*service, ex, std::string(ex.param("template")))) {
          ISOLA_CO_TRY(auto tags, service->store().tags_of(built->id));
          json out = json::array();
          for (const auto& [tag, id] : tags) {
            ISOLA_CO_TRY(auto build, service->store().find_build(built->id, id));
            out.push_back({{"tag", tag}, {"buildID", uuid_of(id)}, {"createdAt", dialect::when(build.finished)}});
          }
          ex.reply(200, dialect::dump(out));
          co_return Result<void>();
        }
        ISOLA_CO_TRY(auto one, find(*service, ex, std::string(ex.param("template"))));
        ex.reply(200, dialect::dump(json::array(
                          {{{"tag", "default"}, {"buildID", build_of(one)}, {"createdAt", dialect::when(0)}}})));
        co_return Result<void>();
      }));
}

}  // namespace isola::e2b
