// Volumes: made and ended with an API key; their files are a plane of their own, opened by a token that names the
// volume.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "dialect/e2b/body.h"
#include "dialect/e2b/connect.h"
#include "dialect/e2b/views.h"
#include "dialect/shared/file_stream.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

constexpr const char* kOwner = "1000:1000";

Result<json> view(const store::VolumeRecord& volume, const http::Exchange& ex, const Options& options) {
  // The token opens files: nobody gets it who may only look.
  if (!store::allows(dialect::scope_of(ex), store::Scope::use)) return fail(Code::denied, "this API key may only read");
  json out = {{"volumeID", volume.id}, {"name", volume.name}};
  out["token"] = volume_token(options.secret, volume.id, std::string(ex.noted("key")));
  if (auto domain = domain_of(options); !domain.is_null()) out["domain"] = domain;
  return out;
}

Task<Result<void>> create(sandbox::Service& service, http::Exchange& ex, const Options& options) {
  ISOLA_CO_TRY(std::string body, co_await ex.read_all(1 << 20));
  ISOLA_CO_TRY(json fields, parse_object(body));
  sandbox::VolumeRequest request;
  request.project = dialect::project_of(ex);
  if (fields.contains("name") && fields["name"].is_string()) request.name = fields["name"];
  request.by = dialect::caller_of(ex);
  ISOLA_CO_TRY(auto made, co_await service.create_volume(std::move(request)));
  ISOLA_CO_TRY(json out, view(made.volume, ex, options));
  ex.reply(201, dialect::dump(out));
  co_return Result<void>();
}

Result<void> list_volumes(sandbox::Service& service, http::Exchange& ex) {
  json out = json::array();
  std::string cursor;
  do {
    ISOLA_TRY(auto page, service.store().list_volumes(dialect::project_of(ex), cursor, 1000));
    for (const auto& volume : page.volumes) out.push_back({{"volumeID", volume.id}, {"name", volume.name}});
    cursor = page.next;
  } while (!cursor.empty());
  ex.reply(200, dialect::dump(out));
  return {};
}

// ---- content --------------------------------------------------------------------------------------------------------

struct Content {
  sandbox::Service::VolumeFiles files;
  std::string path;
  sandbox::GuestLink& link() { return *files.use.link(); }
};

Task<Result<Content>> place_of(sandbox::Service& service, http::Exchange& ex) {
  Content at;
  at.path = std::string(ex.query("path").value_or(""));
  if (at.path.find('\0') != std::string::npos) co_return fail(Code::invalid, "path: holds a NUL byte");
  if (!at.path.starts_with('/')) at.path = "/" + at.path;
  std::string id(ex.param("volume"));
  if (id != ex.noted("volume")) co_return fail(Code::denied, "this token is for another volume");
  ISOLA_CO_TRY(auto volume, service.store().find_volume_of_any(id));
  ISOLA_CO_TRY(at.files, co_await service.volume_files(std::move(volume)));
  co_return at;
}

json stat_view(const std::string& path, const guest::Stat& stat) {
  auto type = [&] {
    switch (stat.type) {
      case guest::FileType::file: return "file";
      case guest::FileType::dir: return "directory";
      case guest::FileType::link: return "symlink";
      default: return "unknown";
    }
  };
  auto slash = path.find_last_not_of('/') == path.npos ? path.npos : path.rfind('/', path.find_last_not_of('/'));
  std::string changed = dialect::when(stat.mtime_ns / 1000000);
  json out = {{"name", slash == path.npos ? path : path.substr(slash + 1)},
              {"type", type()},
              {"path", path},
              {"size", stat.size},
              {"mode", stat.mode},
              {"uid", stat.uid},
              {"gid", stat.gid},
              {"atime", changed},  // volumes keep no other
              {"mtime", changed},
              {"ctime", dialect::when(stat.ctime_ns / 1000000)}};
  if (!stat.target.empty()) out["target"] = stat.target;
  return out;
}

Task<Result<void>> answer_stat(http::Exchange& ex, Content& at, int status) {
  guest::StatArgs args{at.path, "", false};
  ISOLA_CO_TRY(auto stat, co_await sandbox::call_for<guest::Stat>(at.link(), guest::Op::stat, args));
  ex.reply(status, dialect::dump(stat_view(at.path, stat)));
  co_return Result<void>();
}

Result<std::optional<uint32_t>> unsigned_field(const http::Exchange& ex, const char* name) {
  auto text = ex.query(name);
  if (!text) return std::optional<uint32_t>();
  uint32_t value = 0;
  auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size())
    return fail(Code::invalid, std::string(name) + ": must be a whole number");
  return std::optional(value);
}

struct WantedFile {
  std::string owner = kOwner;
  std::optional<uint32_t> mode;
};
Result<WantedFile> wanted_of(const http::Exchange& ex) {
  WantedFile wanted;
  ISOLA_TRY(auto uid, unsigned_field(ex, "uid"));
  ISOLA_TRY(auto gid, unsigned_field(ex, "gid"));
  ISOLA_TRY(wanted.mode, unsigned_field(ex, "mode"));
  if (wanted.mode && *wanted.mode > 07777) return fail(Code::invalid, "mode: is out of range");
  if (uid || gid) wanted.owner = fmt::format("{}:{}", uid.value_or(1000), gid.value_or(uid.value_or(1000)));
  return wanted;
}

Result<std::optional<uint32_t>> number_of(const json& fields, const char* name, uint32_t most) {
  auto at = fields.find(name);
  if (at == fields.end() || at->is_null()) return std::optional<uint32_t>();
  if (!at->is_number_unsigned() || at->get<uint64_t>() > most)
    return fail(Code::invalid, fmt::format("{}: must be a whole number up to {}", name, most));
  return std::optional(at->get<uint32_t>());
}

Task<Result<void>> look(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(Content at, co_await place_of(service, ex));
  co_return co_await answer_stat(ex, at, 200);
}

Task<Result<void>> change(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(std::string body, co_await ex.read_all(1 << 20));
  ISOLA_CO_TRY(json fields, parse_object(body));
  ISOLA_CO_TRY(Content at, co_await place_of(service, ex));
  ISOLA_CO_TRY(auto uid, number_of(fields, "uid", UINT32_MAX));
  ISOLA_CO_TRY(auto gid, number_of(fields, "gid", UINT32_MAX));
  ISOLA_CO_TRY(auto mode, number_of(fields, "mode", 07777));
  if (uid || gid) {
    guest::StatArgs now{at.path, "", false};
    ISOLA_CO_TRY(auto stat, co_await sandbox::call_for<guest::Stat>(at.link(), guest::Op::stat, now));
    guest::Chown args;
    args.path = at.path;
    args.owner = fmt::format("{}:{}", uid.value_or(stat.uid), gid.value_or(stat.gid));
    ISOLA_CO_TRY(std::string done, co_await at.link().call(guest::Op::chown, guest::encode(args)));
  }
  if (mode) {
    guest::Chmod args;
    args.path = at.path;
    args.mode = *mode;
    ISOLA_CO_TRY(std::string done, co_await at.link().call(guest::Op::chmod, guest::encode(args)));
  }
  co_return co_await answer_stat(ex, at, 200);
}

Task<Result<void>> remove_path(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(Content at, co_await place_of(service, ex));
  guest::Remove args{at.path, "", true};
  ISOLA_CO_TRY(std::string done, co_await at.link().call(guest::Op::remove, guest::encode(args)));
  store::Labels data = {{"path", at.path}};
  service.record_volume(ledger::Kind::file_removed, at.files.volume, data, dialect::caller_of(ex));
  ex.reply(204);
  co_return Result<void>();
}

Task<Result<void>> list_folder(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(auto depth, unsigned_field(ex, "depth"));
  ISOLA_CO_TRY(Content at, co_await place_of(service, ex));
  guest::List args;
  args.path = at.path;
  args.depth = std::clamp<uint32_t>(depth.value_or(1), 1, guest::kMaxListDepth);
  auto channel = at.link().open(guest::Op::list, guest::encode(args));
  std::string root = at.path.ends_with('/') ? at.path : at.path + "/";
  json out = json::array();
  size_t bytes = 0;
  for (;;) {
    auto frame = co_await channel->read_frame();
    if (!frame) break;
    bytes += frame->size();
    if (bytes > dialect::kMaxListing) co_return fail(Code::exhausted, "the folder holds too much to be listed");
    guest::each_record<guest::Entry>(
        *frame, [&](const guest::Entry& entry) { out.push_back(stat_view(root + entry.path, entry.stat)); });
  }
  ISOLA_CO_TRY(std::string end, co_await channel->end());
  ex.reply(200, dialect::dump(out));
  co_return Result<void>();
}

Task<Result<void>> make_dir(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(WantedFile wanted, wanted_of(ex));
  ISOLA_CO_TRY(Content at, co_await place_of(service, ex));
  guest::Mkdir args;
  args.path = at.path;
  args.parents = ex.query("force").value_or("") == "true";
  args.mode = wanted.mode.value_or(0755);
  // The folders that lead to it belong to whom it does, where that one may make them.
  if (args.parents) {
    guest::Mkdir as_owner = args;
    as_owner.user = wanted.owner;
    (void)co_await at.link().call(guest::Op::mkdir, guest::encode(as_owner));
  }
  ISOLA_CO_TRY(std::string made, co_await at.link().call(guest::Op::mkdir, guest::encode(args)));
  guest::Chown owner;
  owner.path = at.path;
  owner.owner = wanted.owner;
  ISOLA_CO_TRY(std::string done, co_await at.link().call(guest::Op::chown, guest::encode(owner)));
  co_return co_await answer_stat(ex, at, 201);
}

Task<Result<void>> read(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(Content at, co_await place_of(service, ex));
  guest::Read args;
  args.path = at.path;
  auto channel = at.link().open(guest::Op::read, guest::encode(args), 1 << 20);
  ISOLA_CO_TRY(std::string reply, co_await channel->reply());
  co_await dialect::stream_file(ex, channel, "application/octet-stream");
  co_return Result<void>();
}

Task<Result<void>> write(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(WantedFile wanted, wanted_of(ex));
  ISOLA_CO_TRY(Content at, co_await place_of(service, ex));
  if (auto slash = at.path.rfind('/'); slash > 0) {
    guest::Mkdir folder;
    folder.path = at.path.substr(0, slash);
    folder.user = wanted.owner;
    (void)co_await at.link().call(guest::Op::mkdir, guest::encode(folder));
  }
  guest::Write args;
  args.path = at.path;
  args.how = guest::WriteMode::replace;
  args.mode = wanted.mode.value_or(0644);
  args.parents = true;
  args.owner = wanted.owner;
  auto channel = at.link().open(guest::Op::write, guest::encode(args));
  ISOLA_CO_TRY(std::string ready, co_await channel->reply());
  for (;;) {
    ISOLA_CO_TRY(std::string_view piece, co_await ex.read_some());
    if (piece.empty()) break;
    ISOLA_CO_CHECK(co_await channel->write(piece));
  }
  channel->close_write();
  ISOLA_CO_TRY(std::string end, co_await channel->end());
  ISOLA_CO_TRY(guest::Done done, guest::decode<guest::Done>(end));
  store::Labels data = {{"path", at.path}, {"bytes", std::to_string(done.bytes)}};
  service.record_volume(ledger::Kind::file_written, at.files.volume, data, dialect::caller_of(ex));
  co_return co_await answer_stat(ex, at, 201);
}

// Here a code is a word.
void dress_content(http::Exchange& ex, const http::ErrorReply& reply) {
  ex.reply(reply.status, dialect::dump({{"code", reply.code}, {"message", reply.message}}));
}

}  // namespace

void Api::add_volumes(http::Router& router) {
  auto service = service_;
  Options options = options_;
  auto& into = group(router, "/volumes");
  into.add("GET", "/volumes",
           handled([service](http::Exchange& ex) -> Task<Result<void>> { co_return list_volumes(*service, ex); }));
  into.add("POST", "/volumes",
           handled([service, options](http::Exchange& ex) { return create(*service, ex, options); }));
  into.add("GET", "/volumes/{volume}", handled([service, options](http::Exchange& ex) -> Task<Result<void>> {
             std::string name(ex.param("volume"));
             ISOLA_CO_TRY(auto volume, service->store().find_volume(dialect::project_of(ex), name));
             ISOLA_CO_TRY(json out, view(volume, ex, options));
             ex.reply(200, dialect::dump(out));
             co_return Result<void>();
           }));
  into.add("DELETE", "/volumes/{volume}", handled([service](http::Exchange& ex) -> Task<Result<void>> {
             std::string project = dialect::project_of(ex), name(ex.param("volume"));
             sandbox::Caller by = dialect::caller_of(ex);
             ISOLA_CO_CHECK(co_await service->remove_volume(std::move(project), std::move(name), std::move(by)));
             ex.reply(204);
             co_return Result<void>();
           }));

  auto& content = router.group("/volumecontent");
  content.dress(dress_content);
  content.filter([service, secret = options_.secret, keys = keys_](http::Exchange& ex) -> Task<bool> {
    auto token = read_volume_token(secret, dialect::bearer_of(ex));
    if (!token || keys->revoked_at(token->key)) {
      ex.fail(http::ErrorReply{401, "unauthenticated", "the token does not open this volume", {}});
      co_return false;
    }
    if (!service->ready()) {
      ex.fail(Error{Code::unavailable, "the server is starting"}, 1);
      co_return false;
    }
    ex.note("volume", token->volume);
    ex.note("key", token->key);
    co_return true;
  });
  auto step = [service](auto what) {
    return handled([service, what](http::Exchange& ex) -> Task<Result<void>> {
      auto done = co_await what(*service, ex);
      if (done || ex.replied()) co_return done;
      co_await swallow(ex);  // whoever still sends would see a broken connection and not why
      const int error = done.error().sys_errno;
      if (error == ENOSPC || error == EDQUOT) {
        ex.fail(http::ErrorReply{507, "disk_full", "not enough space in this volume: " + done.error().message, {}});
        co_return Result<void>();
      }
      co_return done;
    });
  };
  const std::string root = "/volumecontent/{volume}";
  content.add("GET", root + "/path", step(look));
  content.add("PATCH", root + "/path", step(change));
  content.add("DELETE", root + "/path", step(remove_path));
  content.add("GET", root + "/dir", step(list_folder));
  content.add("POST", root + "/dir", step(make_dir));
  content.add("GET", root + "/file", step(read));
  content.add("PUT", root + "/file", step(write)).body_limit = http::Exchange::kNoLimit;
}

}  // namespace isola::e2b
