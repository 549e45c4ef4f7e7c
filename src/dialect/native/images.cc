// Pause, resume, snapshot, fork, rollback, and the snapshots that are kept (docs/images.md).
#include <nlohmann/json.hpp>

#include "dialect/native/api.h"
#include "dialect/native/create_fields.h"
#include "dialect/native/query.h"
#include "dialect/native/views.h"

namespace isola::native {

using nlohmann::json;
using sandbox::BoxPtr;

namespace {

Task<Result<void>> pause(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(Fields fields, co_await read_fields(ex));
  sandbox::PauseRequest request;
  request.memory = fields.flag("memory", true);
  request.allow_exposed = fields.flag("allow_exposed");
  request.by = caller_of(ex);
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_CHECK(co_await service.pause(box, std::move(request)));
  ex.reply(200, dump(view(box->record())));
  co_return Result<void>();
}

Task<Result<void>> archive(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(Fields fields, co_await read_fields(ex));
  ISOLA_CO_CHECK(fields.done());
  sandbox::Caller by = caller_of(ex);
  ISOLA_CO_CHECK(co_await service.archive(box, by));
  ex.reply(200, dump(view(box->record())));
  co_return Result<void>();
}

void answer(http::Exchange& ex, const BoxPtr& box, const Latency& latency, bool with_latency) {
  json out = view(box->record());
  if (with_latency) out["latency_ms"] = view(latency);
  ex.reply(200, dump(out));
}

Task<Result<void>> resume(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(Fields fields, co_await read_fields(ex));
  sandbox::ResumeRequest request;
  request.timeout = fields.seconds("timeout");
  request.files_only = fields.flag("files_only");
  if (fields.has("keep_grants")) request.keep_grants = fields.flag("keep_grants");
  request.by = caller_of(ex);
  bool with_latency = fields.flag("latency");
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_TRY(Latency latency, co_await service.resume(box, std::move(request)));
  answer(ex, box, latency, with_latency);
  co_return Result<void>();
}

Task<Result<void>> rollback(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(Fields fields, co_await read_fields(ex));
  auto snapshot = fields.text("snapshot");
  if (snapshot.empty()) fields.wrong("snapshot", "is missing: the id or the name of a snapshot");
  bool with_latency = fields.flag("latency");
  ISOLA_CO_CHECK(fields.done());
  sandbox::Caller by = caller_of(ex);
  ISOLA_CO_TRY(Latency latency, co_await service.rollback(box, std::move(snapshot), by));
  answer(ex, box, latency, with_latency);
  co_return Result<void>();
}

Task<Result<void>> snapshot(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(Fields fields, co_await read_fields(ex));
  sandbox::SnapshotRequest request;
  request.name = fields.text("name");
  request.memory = fields.flag("memory", true);
  request.expires_after = fields.seconds("expires_after").value_or(0);
  request.allow_exposed = fields.flag("allow_exposed");
  request.by = caller_of(ex);
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_TRY(auto made, co_await service.snapshot(box, std::move(request)));
  ex.set_header("Location", "/v1/snapshots/" + made.id);
  ex.reply(201, dump(view(made)));
  co_return Result<void>();
}

Task<Result<void>> fork(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(Fields fields, co_await read_fields(ex));
  sandbox::ForkRequest request;
  request.count = static_cast<uint32_t>(fields.count("count", sandbox::kMostForks).value_or(1));
  request.timeout = fields.seconds("timeout");
  if (fields.has("metadata")) request.metadata = fields.labels("metadata");
  request.keep_grants = fields.flag("keep_grants");
  request.allow_exposed = fields.flag("allow_exposed");
  request.by = caller_of(ex);
  bool with_latency = fields.flag("latency");
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_TRY(auto made, co_await service.fork(box, std::move(request)));
  json all = json::array();
  for (const auto& child : made.made) {
    json one = view(child.box->record());
    if (with_latency) one["latency_ms"] = view(child.latency);
    all.push_back(std::move(one));
  }
  ex.reply(201, dump({{"sandboxes", all}}));
  co_return Result<void>();
}

Task<Result<void>> verify(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(Fields fields, co_await read_fields(ex));
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_TRY(auto image, service.find_snapshot(project_of(ex), std::string(ex.param("snapshot"))));
  ISOLA_CO_TRY(std::string damage, co_await service.find_damage(image));
  json out = {{"id", image.id}, {"whole", damage.empty()}};
  out["damage"] = damage.empty() ? json(nullptr) : json(damage);
  ex.reply(200, dump(out));
  co_return Result<void>();
}

Result<void> list_snapshots(sandbox::Service& service, http::Exchange& ex) {
  size_t limit = 100;
  std::string cursor, sandbox;
  for (const auto& [name, value] : ex.queries()) {
    if (name == "limit") {
      ISOLA_TRY(limit, whole_number(name, value, 1, 1000));
    } else if (name == "cursor") {
      cursor = value;
    } else if (name == "sandbox") {
      sandbox = value;
    } else {
      return fail(Code::invalid, "there is no query parameter \"" + name + "\" here");
    }
  }
  ISOLA_TRY(auto page, service.store().list_snapshots(project_of(ex), sandbox, cursor, limit));
  json all = json::array();
  for (const auto& image : page.snapshots) all.push_back(view(image));
  ex.reply(200, dump({{"snapshots", all}, {"next", page.next.empty() ? json(nullptr) : json(page.next)}}));
  return {};
}

}  // namespace

void Api::add_images(http::RouteGroup& group) {
  using store::Scope;
  auto service = service_;
  using Verb = ::isola::Task<Result<void>> (*)(sandbox::Service&, http::Exchange&);
  constexpr std::pair<const char*, Verb> kVerbs[] = {
      {"/v1/sandboxes/{id}/pause", pause},   {"/v1/sandboxes/{id}/archive", archive},
      {"/v1/sandboxes/{id}/resume", resume}, {"/v1/sandboxes/{id}/snapshot", snapshot},
      {"/v1/sandboxes/{id}/fork", fork},     {"/v1/sandboxes/{id}/rollback", rollback}};
  for (const auto& [pattern, verb] : kVerbs)
    group.add("POST", pattern, handled(Scope::use, [service, verb](http::Exchange& ex) { return verb(*service, ex); }));
  group.add("GET", "/v1/snapshots", handled([service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              co_return list_snapshots(*service, ex);
            }));
  group.add("GET", "/v1/snapshots/{snapshot}", handled([service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_TRY(auto image, service->find_snapshot(project_of(ex), std::string(ex.param("snapshot"))));
              ex.reply(200, dump(view(image)));
              co_return Result<void>();
            }));
  group.add("POST", "/v1/snapshots/{snapshot}/verify",
            handled(Scope::use, [service](http::Exchange& ex) { return verify(*service, ex); }));
  group.add("DELETE", "/v1/snapshots/{snapshot}",
            handled(Scope::use, [service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              std::string project = project_of(ex), name(ex.param("snapshot"));
              ISOLA_CO_CHECK(co_await service->remove_snapshot(std::move(project), std::move(name)));
              ex.reply(204);
              co_return Result<void>();
            }));
}

}  // namespace isola::native
