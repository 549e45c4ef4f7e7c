// /v1/volumes: files that outlive every sandbox (docs/storage.md), and calls on them without one.
#include <nlohmann/json.hpp>

#include "dialect/native/api.h"
#include "dialect/native/file_calls.h"
#include "dialect/native/query.h"
#include "dialect/native/views.h"

namespace isola::native {

using nlohmann::json;

namespace {

// As whom templates run programs: what is written here is theirs to change.
constexpr const char* kUser = "1000:1000";

json view_of_volume(const sandbox::VolumeLook& look) {
  const auto& volume = look.volume;
  return {{"id", volume.id},
          {"name", volume.name},
          {"size", volume.size},
          {"used", look.used},
          {"created", when(volume.created)},
          {"labels", volume.labels},
          {"sandboxes", look.sandboxes}};
}

std::string volume_name(const http::Exchange& ex) { return std::string(ex.param("volume")); }

Task<Result<void>> create_volume(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  sandbox::VolumeRequest request;
  request.project = project_of(ex);
  request.name = fields.text("name");
  request.size = fields.size("size").value_or(sandbox::kVolumeSize);
  request.labels = fields.labels("labels");
  request.or_get = fields.flag("get_or_create");
  request.by = caller_of(ex);
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_TRY(auto look, co_await service.create_volume(std::move(request)));
  ex.set_header("Location", "/v1/volumes/" + look.volume.id);
  ex.reply(look.existed ? 200 : 201, dump(view_of_volume(look)));
  co_return Result<void>();
}

Task<Result<void>> list_volumes(sandbox::Service& service, http::Exchange& ex) {
  size_t limit = 100;
  std::string cursor;
  for (const auto& [name, value] : ex.queries()) {
    if (name == "limit") {
      ISOLA_CO_TRY(limit, whole_number(name, value, 1, 1000));
    } else if (name == "cursor") {
      cursor = value;
    } else {
      co_return fail(Code::invalid, "there is no query parameter \"" + name + "\" here");
    }
  }
  std::string project = project_of(ex);
  ISOLA_CO_TRY(auto page, co_await service.list_volumes(std::move(project), std::move(cursor), limit));
  json all = json::array();
  for (const auto& look : page.volumes) all.push_back(view_of_volume(look));
  ex.reply(200, dump({{"volumes", all}, {"next", page.next.empty() ? json(nullptr) : json(page.next)}}));
  co_return Result<void>();
}

Task<Result<void>> show_volume(sandbox::Service& service, http::Exchange& ex) {
  std::string project = project_of(ex), name = volume_name(ex);
  ISOLA_CO_TRY(auto found, co_await service.look_at_volume(std::move(project), std::move(name)));
  ex.reply(200, dump(view_of_volume(found)));
  co_return Result<void>();
}

Task<Result<void>> change_volume(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  auto size = fields.size("size");
  if (!size) fields.wrong("size", "is missing");
  ISOLA_CO_CHECK(fields.done());
  std::string project = project_of(ex), name = volume_name(ex);
  sandbox::Caller by = caller_of(ex);
  ISOLA_CO_TRY(auto found, co_await service.resize_volume(std::move(project), std::move(name), *size, std::move(by)));
  ex.reply(200, dump(view_of_volume(found)));
  co_return Result<void>();
}

Task<Result<void>> remove_volume(sandbox::Service& service, http::Exchange& ex) {
  std::string project = project_of(ex), name = volume_name(ex);
  sandbox::Caller by = caller_of(ex);
  ISOLA_CO_CHECK(co_await service.remove_volume(std::move(project), std::move(name), std::move(by)));
  ex.reply(204);
  co_return Result<void>();
}

// Of a folder of a sandbox or of a volume: kept as it is now.
Task<Result<void>> keep(sandbox::Service& service, http::Exchange& ex, bool of_sandbox) {
  sandbox::Service::FolderRequest request;
  if (of_sandbox) {
    ISOLA_CO_TRY(request.box, box_of(service, ex));
  } else {
    request.volume = volume_name(ex);
  }
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  request.project = project_of(ex);
  request.name = needed(fields, "name");
  request.path = of_sandbox ? needed(fields, "path") : fields.text("path", "/");
  request.by = caller_of(ex);
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_TRY(auto look, co_await service.keep_folder(std::move(request)));
  ex.set_header("Location", "/v1/volumes/" + look.volume.id);
  ex.reply(201, dump(view_of_volume(look)));
  co_return Result<void>();
}

Task<Result<void>> keep_of_sandbox(sandbox::Service& service, http::Exchange& ex) { return keep(service, ex, true); }
Task<Result<void>> keep_of_volume(sandbox::Service& service, http::Exchange& ex) { return keep(service, ex, false); }

// ---- its files ------------------------------------------------------------------------------------------------------

struct PlaceInVolume {
  sandbox::Service::VolumeFiles files;
  std::string path, user;
  sandbox::GuestLink& link() { return *files.use.link(); }
};

// Paths begin at the volume's root. Root reads and removes everything; what is written is its user's.
Task<Result<PlaceInVolume>> place_in_volume(sandbox::Service& service, http::Exchange& ex, const char* user) {
  PlaceInVolume at;
  ISOLA_CO_TRY(at.path, path_of(ex));
  if (at.path[0] != '/') at.path = "/" + at.path;
  at.user = std::string(ex.query("user").value_or(user));
  ISOLA_CO_TRY(auto volume, service.store().find_volume(project_of(ex), volume_name(ex)));
  ISOLA_CO_TRY(at.files, co_await service.volume_files(std::move(volume)));
  co_return at;
}

Task<Result<void>> read_from_volume(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(PlaceInVolume at, co_await place_in_volume(service, ex, "0:0"));
  co_return co_await read_file(ex, at.link(), at.path, at.user);
}

Task<Result<void>> write_into_volume(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(PlaceInVolume at, co_await place_in_volume(service, ex, kUser));
  ISOLA_CO_TRY(uint64_t bytes, co_await write_file(ex, at.link(), at.path, at.user));
  store::Labels data = {{"path", at.path}, {"bytes", std::to_string(bytes)}};
  service.record_volume(ledger::Kind::file_written, at.files.volume, data, caller_of(ex));
  ex.reply(200, dump({{"path", at.path}, {"bytes", bytes}}));
  co_return Result<void>();
}

Task<Result<void>> stat_in_volume(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(PlaceInVolume at, co_await place_in_volume(service, ex, "0:0"));
  co_return co_await stat_file(ex, at.link(), at.path, at.user);
}

Task<Result<void>> list_in_volume(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(PlaceInVolume at, co_await place_in_volume(service, ex, "0:0"));
  co_return co_await list_folder(ex, at.link(), at.path, at.user);
}

Task<Result<void>> remove_from_volume(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(PlaceInVolume at, co_await place_in_volume(service, ex, "0:0"));
  ISOLA_CO_TRY(bool recursive, co_await remove_file(ex, at.link(), at.path, at.user));
  store::Labels data = {{"path", at.path}, {"recursive", recursive ? "true" : "false"}};
  service.record_volume(ledger::Kind::file_removed, at.files.volume, data, caller_of(ex));
  ex.reply(204);
  co_return Result<void>();
}

Task<Result<void>> make_folder_in_volume(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(std::string body, co_await small_body(ex));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  guest::Mkdir args;
  args.path = needed(fields, "path");
  if (!args.path.empty() && args.path[0] != '/') args.path = "/" + args.path;
  args.user = fields.text("user", kUser);
  args.mode = octal(fields, "mode", 0755);
  ISOLA_CO_CHECK(fields.done());
  ISOLA_CO_TRY(auto volume, service.store().find_volume(project_of(ex), volume_name(ex)));
  ISOLA_CO_TRY(auto files, co_await service.volume_files(std::move(volume)));
  ISOLA_CO_TRY(std::string made, co_await files.use.link()->call(guest::Op::mkdir, guest::encode(args)));
  ex.reply(204);
  co_return Result<void>();
}

}  // namespace

void Api::add_volumes(http::RouteGroup& group) {
  using store::Scope;
  auto service = service_;
  auto step = [service](auto what) {
    return [service, what](http::Exchange& ex) -> ::isola::Task<Result<void>> { return what(*service, ex); };
  };
  const std::string one = "/v1/volumes/{volume}", files = one + "/files";
  group.add("POST", "/v1/volumes", handled(Scope::use, step(create_volume)));
  group.add("GET", "/v1/volumes", handled(step(list_volumes)));
  group.add("POST", one + "/snapshot", handled(Scope::use, step(keep_of_volume)));
  group.add("POST", "/v1/sandboxes/{id}/folders", handled(Scope::use, step(keep_of_sandbox)));
  group.add("GET", one, handled(step(show_volume)));
  group.add("PATCH", one, handled(Scope::use, step(change_volume)));
  group.add("DELETE", one, handled(Scope::use, step(remove_volume)));
  group.add("GET", files, handled(Scope::use, step(read_from_volume)));
  group.add("PUT", files, handled(Scope::use, step(write_into_volume))).body_limit = http::Exchange::kNoLimit;
  group.add("DELETE", files, handled(Scope::use, step(remove_from_volume)));
  group.add("GET", files + "/stat", handled(Scope::use, step(stat_in_volume)));
  group.add("GET", files + "/list", handled(Scope::use, step(list_in_volume)));
  group.add("POST", files + "/mkdir", handled(Scope::use, step(make_folder_in_volume)));
}

}  // namespace isola::native
