// /v1/sandboxes/{id}/files. Paths go to the guest as they come: it alone resolves them, with the rights of the acting
// user, inside. The host opens nothing.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "base/log.h"
#include "dialect/native/api.h"
#include "dialect/native/fields.h"
#include "dialect/native/file_calls.h"
#include "dialect/native/output.h"
#include "dialect/native/query.h"
#include "dialect/native/unpack.h"
#include "dialect/native/views.h"

namespace isola::native {

using nlohmann::json;
using sandbox::BoxPtr;

namespace {

struct Place {
  BoxPtr box;
  std::shared_ptr<sandbox::GuestLink> link;
  std::string path, user;
  sandbox::Box::Use use;
};

// The sandbox, and the path and user that the query names.
Task<Result<Place>> place_of(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(std::string path, path_of(ex));
  auto use = box->use();
  ISOLA_CO_TRY(auto link, co_await service.link(box));
  co_return Place{box, link, std::move(path), std::string(ex.query("user").value_or("")), std::move(use)};
}

Task<Result<void>> read(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(Place at, co_await place_of(service, ex));
  co_return co_await read_file(ex, *at.link, at.path, at.user);
}

Task<Result<void>> write(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(Place at, co_await place_of(service, ex));
  ISOLA_CO_TRY(uint64_t bytes, co_await write_file(ex, *at.link, at.path, at.user));
  json data = {{"path", at.path}, {"bytes", bytes}};
  service.record(ledger::Kind::file_written, at.box, dump(data), caller_of(ex));
  ex.reply(200, dump(data));
  co_return Result<void>();
}

Task<Result<void>> stat(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(Place at, co_await place_of(service, ex));
  co_return co_await stat_file(ex, *at.link, at.path, at.user);
}

Task<Result<void>> list(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(Place at, co_await place_of(service, ex));
  co_return co_await list_folder(ex, *at.link, at.path, at.user);
}

Task<Result<void>> remove(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(Place at, co_await place_of(service, ex));
  ISOLA_CO_TRY(bool recursive, co_await remove_file(ex, *at.link, at.path, at.user));
  json data = {{"path", at.path}, {"recursive", recursive}};
  service.record(ledger::Kind::file_removed, at.box, dump(data), caller_of(ex));
  ex.reply(204);
  co_return Result<void>();
}

// The small changes: one body each, one call each.
template <typename Args, typename Read>
http::Handler changes(std::shared_ptr<sandbox::Service> service, guest::Op op, Read read) {
  return handled(store::Scope::use, [service, op, read](http::Exchange& ex) -> ::isola::Task<Result<void>> {
    ISOLA_CO_TRY(BoxPtr box, box_of(*service, ex));
    ISOLA_CO_TRY(std::string body, co_await small_body(ex));
    ISOLA_CO_TRY(Fields fields, Fields::parse(body));
    Args args;
    args.user = fields.text("user");
    read(fields, args);
    ISOLA_CO_CHECK(fields.done());
    auto use = box->use();
    ISOLA_CO_TRY(auto link, co_await service->link(box));
    ISOLA_CO_TRY(std::string done, co_await link->call(op, guest::encode(args)));
    if constexpr (std::is_same_v<Args, guest::Rename>)
      service->record(ledger::Kind::file_moved, box, dump({{"from", args.from}, {"to", args.to}}), caller_of(ex));
    ex.reply(204);
    co_return Result<void>();
  });
}

Task<Result<void>> watch(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(Place at, co_await place_of(service, ex));
  ISOLA_CO_CHECK(only_queries(ex, {"path", "user", "recursive"}));
  ISOLA_CO_TRY(bool recursive, query_flag(ex, "recursive", true));
  guest::Watch args{at.path, at.user, recursive};
  auto channel = at.link->open(guest::Op::watch, guest::encode(args));
  ISOLA_CO_TRY(std::string ready, co_await channel->reply());
  static constexpr std::string_view kWords[] = {"none",     "created",    "modified", "removed", "moved_from",
                                                "moved_to", "attributes", "overflow", "limit"};
  ex.set_header("Cache-Control", "no-store");
  mark_untrusted(ex);
  ex.begin(200, "text/event-stream");
  std::string text = ": watching\n\n";
  while (co_await ex.write(text)) {
    auto frame = co_await channel->read_frame_for(std::chrono::seconds(15));
    if (!frame) break;
    text = frame->empty() ? ": ping\n\n" : "";
    guest::each_record<guest::WatchEvent>(*frame, [&](const guest::WatchEvent& event) {
      auto change = static_cast<size_t>(event.change);
      json data = {{"change", change < std::size(kWords) ? kWords[change] : kWords[0]},
                   {"path", event.path},
                   {"dir", event.is_dir}};
      if (event.cookie) data["cookie"] = event.cookie;
      text += "data: " + dump(data) + "\n\n";
    });
  }
  (void)co_await ex.finish();
  co_return Result<void>();
}

// ---- whole trees, as tar: the sandbox's own tar packs and unpacks, so that nothing of it is resolved out here ----

// Into a file inside first: the output of a command waits for nobody, a file waits for slow readers.
Task<Result<void>> tar_out(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_CHECK(only_queries(ex, {"path", "user"}));
  ISOLA_CO_TRY(Place at, co_await place_of(service, ex));
  const std::string packed = "/tmp/.isola-" + new_command_id() + ".tar";
  guest::Remove remove{packed, at.user, false};
  auto work = [&]() -> ::isola::Task<Result<void>> {
    sandbox::CommandSpec spec;
    spec.argv = {"tar", "-C", at.path, "-cf", packed, "."};
    spec.user = at.user;
    spec.by = std::string(ex.noted("key"));
    spec.counted = false;
    ISOLA_CO_TRY(sandbox::Running running, co_await service.run(at.box, std::move(spec)));
    OutputOptions options;
    Shares::Share room = room_for_answer(running.box->project());
    ISOLA_CO_TRY(json result, co_await collect(service, running, options, room));
    // 1: a file changed while it was read, as those of a workspace that is at work do. The archive is whole.
    if (result["exit_code"] != 0 && result["exit_code"] != 1) {
      mark_untrusted(ex);
      co_return std::unexpected(tar_error(result["stderr"].get<std::string>()));
    }
    guest::Read args{.path = packed, .user = at.user};
    co_return co_await send_file(ex, *at.link, args, "application/x-tar");
  };
  auto worked = co_await work();
  (void)co_await at.link->call(guest::Op::remove, guest::encode(remove));
  co_return worked;
}

Task<Result<void>> tar_in(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(Place at, co_await place_of(service, ex));
  ISOLA_CO_CHECK(only_queries(ex, {"path", "user"}));
  ISOLA_CO_CHECK(co_await unpack(service, ex, at.box, at.link, at.path, at.user));
  ex.reply(204);
  co_return Result<void>();
}

}  // namespace

void Api::add_files(http::RouteGroup& group) {
  using store::Scope;
  auto service = service_;
  auto step = [service](auto what) {
    return [service, what](http::Exchange& ex) -> ::isola::Task<Result<void>> { return what(*service, ex); };
  };
  const std::string files = "/v1/sandboxes/{id}/files";
  group.add("GET", files, handled(Scope::use, step(read)));
  group.add("PUT", files, handled(Scope::use, step(write))).body_limit = http::Exchange::kNoLimit;
  group.add("DELETE", files, handled(Scope::use, step(remove)));
  group.add("GET", files + "/stat", handled(Scope::use, step(stat)));
  group.add("GET", files + "/list", handled(Scope::use, step(list)));
  group.add("GET", files + "/watch", handled(Scope::use, step(watch)));
  group.add("GET", files + "/tar", handled(Scope::use, step(tar_out)));
  group.add("PUT", files + "/tar", handled(Scope::use, step(tar_in))).body_limit = http::Exchange::kNoLimit;
  group.add("POST", files + "/mkdir",
            changes<guest::Mkdir>(service, guest::Op::mkdir, [](Fields& fields, guest::Mkdir& args) {
              args.path = needed(fields, "path");
              args.mode = octal(fields, "mode", 0755);
            }));
  group.add("POST", files + "/move",
            changes<guest::Rename>(service, guest::Op::rename, [](Fields& fields, guest::Rename& args) {
              args.from = needed(fields, "from");
              args.to = needed(fields, "to");
              args.replace = fields.flag("replace", true);
            }));
  group.add("POST", files + "/chmod",
            changes<guest::Chmod>(service, guest::Op::chmod, [](Fields& fields, guest::Chmod& args) {
              args.path = needed(fields, "path");
              args.mode = octal(fields, "mode", UINT32_MAX);
            }));
  group.add("POST", files + "/chown",
            changes<guest::Chown>(service, guest::Op::chown, [](Fields& fields, guest::Chown& args) {
              args.path = needed(fields, "path");
              args.owner = needed(fields, "owner");
            }));
  group.add("POST", files + "/symlink",
            changes<guest::Symlink>(service, guest::Op::symlink, [](Fields& fields, guest::Symlink& args) {
              args.path = needed(fields, "path");
              args.target = needed(fields, "target");
            }));
}

}  // namespace isola::native
