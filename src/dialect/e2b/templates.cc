// Templates as far as there are any: those that the operator built, readable by everybody and changed by nobody here.
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "dialect/e2b/views.h"
#include "dialect/shared/door.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

// An id that looks like one: clients of some calls want a build beside the template.
std::string build_of(const sandbox::Service::Template& one) {
  const auto& d = one.digest;
  if (d.size() < 32) return d;
  return d.substr(0, 8) + "-" + d.substr(8, 4) + "-" + d.substr(12, 4) + "-" + d.substr(16, 4) + "-" + d.substr(20, 12);
}

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

Result<sandbox::Service::Template> find(sandbox::Service& service, std::string name) {
  name = without_tag(std::move(name));
  ISOLA_TRY(auto all, service.templates());
  for (const auto& one : all)
    if (one.name == name) return one;
  return fail(Code::not_found, "there is no template " + log::quoted(name));
}

}  // namespace

void Api::add_templates(http::Router& router) {
  auto service = service_;
  auto& templates = group(router, "/templates");
  auto list = handled([service](http::Exchange& ex) -> Task<Result<void>> {
    ISOLA_CO_TRY(auto all, service->templates());
    json out = json::array();
    for (const auto& one : all) out.push_back(view(one, service->settings()));
    ex.reply(200, dialect::dump(out));
    co_return Result<void>();
  });
  templates.add("GET", "/templates", list);
  group(router, "/v2/templates").add("GET", "/v2/templates", list);
  templates.add("GET", "/templates/aliases/{alias}", handled([service](http::Exchange& ex) -> Task<Result<void>> {
                  ISOLA_CO_TRY(auto one, find(*service, std::string(ex.param("alias"))));
                  ex.reply(200, dialect::dump({{"templateID", one.name}, {"public", true}}));
                  co_return Result<void>();
                }));
  templates.add("GET", "/templates/{template}", handled([service](http::Exchange& ex) -> Task<Result<void>> {
                  ISOLA_CO_TRY(auto one, find(*service, std::string(ex.param("template"))));
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
  // This is also how snapshots are deleted.
  templates.add("DELETE", "/templates/{template}", handled([service](http::Exchange& ex) -> Task<Result<void>> {
                  std::string project = dialect::project_of(ex);
                  std::string name = without_tag(std::string(ex.param("template")));
                  if (service->find_snapshot(project, name)) {
                    ISOLA_CO_CHECK(co_await service->remove_snapshot(std::move(project), std::move(name)));
                    ex.reply(204);
                    co_return Result<void>();
                  }
                  ISOLA_CO_TRY(auto one, find(*service, std::string(ex.param("template"))));
                  co_return fail(Code::denied,
                                 "the template " + one.name + " is the operator's: `isola template` manages it");
                }));
  templates.add("GET", "/templates/{template}/tags", handled([service](http::Exchange& ex) -> Task<Result<void>> {
                  ISOLA_CO_TRY(auto one, find(*service, std::string(ex.param("template"))));
                  ex.reply(200,
                           dialect::dump(json::array(
                               {{{"tag", "default"}, {"buildID", build_of(one)}, {"createdAt", dialect::when(0)}}})));
                  co_return Result<void>();
                }));
}

}  // namespace isola::e2b
