// Pausing, resuming, forking, and snapshots, which clients use as templates.
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "dialect/e2b/body.h"
#include "dialect/e2b/connect.h"
#include "dialect/e2b/views.h"
#include "dialect/shared/door.h"
#include "dialect/shared/text.h"
#include "http/error_reply.h"

namespace isola::e2b {

using nlohmann::json;
using sandbox::BoxPtr;

namespace {

constexpr uint32_t kMostForks = 100;
constexpr size_t kSnapshotsPage = 100;

Result<std::optional<store::Millis>> timeout_in(const json& body) {
  if (!given(body, "timeout")) return std::nullopt;
  return seconds(body, "timeout", 0);
}

bool rests(const BoxPtr& box) { return store::is_asleep(box->state()); }

Task<Result<void>> pause(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(json body, co_await read_body(ex, true));
  if (rests(box)) co_return sandbox::conflict("Sandbox " + log::quoted(box->id()) + " is already paused");
  if (given(body, "requireHealthyGuest") && body["requireHealthyGuest"] == true) {
    ISOLA_CO_TRY(auto link, co_await service.link(box));
    std::string nothing;
    auto pong = co_await link->call(guest::Op::ping, nothing);
    if (!pong) co_return fail(Code::unavailable, "the sandbox does not answer: " + pong.error().message);
  }
  sandbox::PauseRequest request;
  request.memory = !(given(body, "memory") && body["memory"] == false);
  request.by = dialect::caller_of(ex);
  auto paused = co_await service.pause(box, std::move(request));
  // Clients take a conflict for "it rests already", whatever its words are.
  if (!paused && paused.error().sys_errno == EBUSY && !rests(box)) {
    const bool runs = box->state() == State::running || box->state() == State::frozen;
    co_return fail(runs ? Code::invalid : Code::unavailable, paused.error().message);
  }
  if (!paused) co_return std::unexpected(std::move(paused).error());
  ex.reply(204);
  co_return Result<void>();
}

Task<Result<void>> resume(sandbox::Service& service, http::Exchange& ex, const Options& options) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(json body, co_await read_body(ex, true));
  if (!rests(box)) co_return sandbox::conflict("Sandbox " + log::quoted(box->id()) + " is already running");
  sandbox::ResumeRequest request;
  ISOLA_CO_TRY(request.timeout, timeout_in(body));
  request.files_only = given(body, "memory") && body["memory"] == false;
  request.by = dialect::caller_of(ex);
  // What happens at its end next time.
  sandbox::Update update;
  if (given(body, "autoPause")) {
    if (!body["autoPause"].is_boolean()) co_return fail(Code::invalid, "autoPause: must be true or false");
    update.at_end = body["autoPause"].get<bool>() ? store::AtEnd::pause : store::AtEnd::kill;
  }
  sandbox::Caller by = request.by;
  auto resumed = co_await service.resume(box, std::move(request));
  if (!resumed) co_return std::unexpected(std::move(resumed).error());
  if (update.at_end) {
    auto changed = co_await service.update(box, std::move(update), by);
    if (!changed) co_return std::unexpected(std::move(changed).error());
  }
  ex.reply(201, dialect::dump(created_view(box->record(), options)));
  co_return Result<void>();
}

Task<Result<void>> fork(sandbox::Service& service, http::Exchange& ex, const Options& options) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(json body, co_await read_body(ex, true));
  sandbox::ForkRequest request;
  ISOLA_CO_TRY(request.timeout, timeout_in(body));
  if (given(body, "count")) {
    if (!body["count"].is_number_integer() || body["count"].get<int64_t>() < 1 ||
        body["count"].get<int64_t>() > kMostForks)
      co_return fail(Code::invalid, "count: must be between 1 and 100");
    request.count = body["count"].get<uint32_t>();
  }
  // Rules about its network are a fork's, too: nobody can ask for that here, and its caller knows them.
  request.keep_grants = box->record().keep_grants;
  request.each = true;
  request.by = dialect::caller_of(ex);
  ISOLA_CO_TRY(auto made, co_await service.fork(box, std::move(request)));
  json out = json::array();
  for (const auto& why : made.refused)
    out.push_back({{"error", {{"code", http::status_of(why.code)}, {"message", why.message}}}});
  for (const auto& child : made.made) out.push_back({{"sandbox", created_view(child.box->record(), options)}});
  ex.reply(201, dialect::dump(out));
  co_return Result<void>();
}

json view(const store::ImageRecord& snapshot) {
  std::string name = snapshot.name.empty() ? snapshot.id : snapshot.name;
  if (name.find(':') == name.npos) name += ":default";
  json names = json::array();
  if (!snapshot.name.empty()) names.push_back(name);
  return {{"snapshotID", name}, {"names", names}};
}

Task<Result<void>> snapshot(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(json body, co_await read_body(ex, true));
  sandbox::SnapshotRequest request;
  if (given(body, "name")) {
    if (!body["name"].is_string()) co_return fail(Code::invalid, "name: must be a string");
    request.name = without_tag(body["name"].get<std::string>());
    std::string plain = plain_name(request.name);
    if (service.source_of(box->project(), plain))
      co_return fail(Code::exists, "the name " + log::quoted(plain) + " is taken by a template");
  }
  request.memory = !(given(body, "memory") && body["memory"] == false);
  request.replace = true;  // a name that is used again means the newest
  request.by = dialect::caller_of(ex);
  ISOLA_CO_TRY(auto made, co_await service.snapshot(box, std::move(request)));
  ex.reply(201, dialect::dump(view(made)));
  co_return Result<void>();
}

Result<void> list_snapshots(sandbox::Service& service, http::Exchange& ex) {
  std::string project = dialect::project_of(ex), token(ex.query("nextToken").value_or(""));
  std::string sandbox = plain_id(ex.query("sandboxID").value_or(""));
  std::string name = without_tag(std::string(ex.query("name").value_or("")));
  size_t limit = kSnapshotsPage;
  if (auto text = ex.query("limit"); text && !text->empty()) {
    char* end = nullptr;
    std::string word(*text);
    limit = std::strtoul(word.c_str(), &end, 10);
    if (*end || limit < 1 || limit > kSnapshotsPage) return fail(Code::invalid, "limit: must be between 1 and 100");
  }
  json out = json::array();
  std::string next;
  if (!name.empty()) {
    auto one = service.find_snapshot(project, name);
    if (one && (sandbox.empty() || one->sandbox == sandbox)) out.push_back(view(*one));
  } else {
    ISOLA_TRY(auto page, service.store().list_snapshots(project, sandbox, token, limit));
    for (const auto& image : page.snapshots) out.push_back(view(image));
    next = page.next;
  }
  if (!next.empty()) ex.set_header("X-Next-Token", next);
  ex.reply(200, dialect::dump(out));
  return {};
}

}  // namespace

void Api::add_images(http::Router& router) {
  auto service = service_;
  Options options = options_;
  for (const char* prefix : {"", "/v2"}) {
    std::string root = std::string(prefix) + "/sandboxes";
    auto& into = group(router, root.c_str());
    into.add("POST", root + "/{id}/pause", handled([service](http::Exchange& ex) { return pause(*service, ex); }));
    into.add("POST", root + "/{id}/resume",
             handled([service, options](http::Exchange& ex) { return resume(*service, ex, options); }));
    into.add("POST", root + "/{id}/fork",
             handled([service, options](http::Exchange& ex) { return fork(*service, ex, options); }));
    into.add("POST", root + "/{id}/snapshots",
             handled([service](http::Exchange& ex) { return snapshot(*service, ex); }));
  }
  group(router, "/snapshots").add("GET", "/snapshots", handled([service](http::Exchange& ex) -> Task<Result<void>> {
                                    co_return list_snapshots(*service, ex);
                                  }));
}

}  // namespace isola::e2b
