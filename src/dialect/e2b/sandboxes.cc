// Making, finding, changing and ending sandboxes.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/hash/sha256.h"
#include "base/ids.h"
#include "base/log.h"
#include "dialect/e2b/body.h"
#include "dialect/e2b/connect.h"
#include "dialect/e2b/secrets.h"
#include "dialect/e2b/views.h"
#include "dialect/shared/door.h"
#include "dialect/shared/text.h"
#include "http/url.h"
#include "store/cursor.h"

namespace isola::e2b {

using nlohmann::json;
using sandbox::BoxPtr;

namespace {

constexpr size_t kPage = 100;                              // at most, and where nothing is said
constexpr size_t kLongestKey = 255, kLongestAsItIs = 200;  // of idempotency

Result<store::Labels> labels(const json& body, const char* name) {
  store::Labels out;
  if (!given(body, name)) return out;
  if (!body[name].is_object()) return fail(Code::invalid, std::string(name) + ": must be an object of strings");
  for (const auto& [key, value] : body[name].items()) {
    if (!value.is_string())
      return fail(Code::invalid, std::string(name) + ": the value of " + log::quoted(key) + " must be a string");
    out[key] = value.get<std::string>();
  }
  return out;
}

// [{"name": "data", "path": "/mnt/data"}]
Result<void> read_volumes(const json& body, sandbox::CreateRequest& request) {
  if (!given(body, "volumeMounts") || body["volumeMounts"].empty()) return {};
  if (!body["volumeMounts"].is_array()) return fail(Code::invalid, "volumeMounts: must be a list");
  request.volumes.emplace();
  for (const auto& mount : body["volumeMounts"]) {
    if (!mount.is_object()) return fail(Code::invalid, "volumeMounts: must be a list of objects");
    store::VolumeUse use;
    ISOLA_TRY(use.volume, text(mount, "name"));
    ISOLA_TRY(use.path, text(mount, "path"));
    if (use.volume.empty() || use.path.empty()) return fail(Code::invalid, "volumeMounts: name or path is missing");
    request.volumes->push_back(std::move(use));
  }
  return {};
}

// What happens when its time is up, and whether a call brings it back.
Result<void> read_lifecycle(const json& body, sandbox::CreateRequest& request) {
  auto flag = [&](const json& in, const char* name, bool otherwise) -> Result<bool> {
    if (!given(in, name)) return otherwise;
    if (!in[name].is_boolean()) return fail(Code::invalid, std::string(name) + ": must be true or false");
    return in[name].get<bool>();
  };
  ISOLA_TRY(bool pauses, flag(body, "autoPause", false));
  ISOLA_TRY(bool memory, flag(body, "autoPauseMemory", true));
  if (!pauses && !memory) return fail(Code::invalid, "autoPauseMemory=false only applies when autoPause is true.");
  if (pauses) request.at_end = memory ? store::AtEnd::pause : store::AtEnd::stop;
  json resume = given(body, "autoResume") ? body["autoResume"] : json::object();
  if (!resume.is_object()) return fail(Code::invalid, "autoResume: must be an object");
  ISOLA_TRY(request.auto_resume, flag(resume, "enabled", false));
  return {};
}

// A template, or a snapshot: clients name both alike.
Task<Result<sandbox::Created>> create_of(sandbox::Service& service, sandbox::CreateRequest request) {
  const std::string name = request.template_name;
  auto use = [&](const store::ImageRecord& snapshot) {
    request.snapshot = snapshot.id;
    request.template_name.clear();
    request.limits = snapshot.limits;
    request.env["E2B_TEMPLATE_ID"] = template_id(service, request.project, snapshot.template_name);
  };
  if (is_image_id(name)) {
    ISOLA_CO_TRY(auto snapshot, service.find_snapshot(request.project, name));
    use(snapshot);
    co_return co_await service.create(std::move(request));
  }
  auto created = co_await service.create(request);
  if (created || created.error().code != Code::not_found) co_return created;
  auto snapshot = service.find_snapshot(request.project, name);
  if (!snapshot) co_return created;
  use(*snapshot);
  co_return co_await service.create(std::move(request));
}

Task<Result<void>> create(sandbox::Service& service, http::Exchange& ex, const Options& options, double timeout) {
  ISOLA_CO_TRY(json body, co_await read_body(ex));
  sandbox::CreateRequest request;
  request.limits = service.settings().default_limits;
  request.usual_limits = request.usual_disk = true;
  request.project = dialect::project_of(ex);
  request.by = request.actor = std::string(ex.noted("key"));
  request.may_mount_buckets = store::allows(dialect::scope_of(ex), store::Scope::admin);
  ISOLA_CO_TRY(request.template_name, text(body, "templateID"));
  if (request.template_name.empty()) co_return fail(Code::invalid, "templateID: is missing");
  const std::string asked_for = request.template_name;
  request.template_name = template_named(service, request.project, asked_for);
  if (given(body, "timeout") && body["timeout"].is_number() && !(body["timeout"].get<double>() > 0))
    co_return fail(Code::invalid, "Timeout must be greater than 0");
  ISOLA_CO_TRY(request.timeout, seconds(body, "timeout", timeout));
  ISOLA_CO_TRY(request.metadata, labels(body, "metadata"));
  ISOLA_CO_TRY(request.env, labels(body, "envVars"));
  ISOLA_CO_CHECK(read_lifecycle(body, request));
  ISOLA_CO_CHECK(read_volumes(body, request));
  if (request.metadata.contains(kNotesLabel))
    co_return fail(Code::invalid, std::string("metadata: the key ") + kNotesLabel + " is the server's own");
  ISOLA_CO_TRY(Network network, read_network(body));
  if (network.has_identity && service.settings().issuer.empty())
    co_return fail(Code::unsupported, "iam: tokens of a sandbox's identity need the setting `issuer` of this server");
  ISOLA_CO_CHECK(find_secrets(service, ex, network.rules));
  request.network = network.policy;
  request.network_grants = std::move(network.rules.grants);
  request.public_ports = network.public_ports;
  if (auto word = ex.header("idempotency-key"); !word.empty()) {
    if (word.size() > kLongestKey) co_return fail(Code::invalid, "Idempotency-Key: is too long");
    // The service's own keys are shorter.
    request.key = "e2b:" + std::string(word);
    if (word.size() > kLongestAsItIs) {
      ISOLA_CO_TRY(std::string hash, sha256(word));
      request.key = "e2b:sha256:" + hash;
    }
    ISOLA_CO_TRY(network.notes.asked, sha256(dialect::dump(body)));
  }
  const std::string asked = network.notes.asked;
  request.metadata[kNotesLabel] = network.notes.to_text();
  request.env["E2B_SANDBOX"] = "true";
  request.env["E2B_TEMPLATE_ID"] = options.template_id(request.project, request.template_name);
  auto created = co_await create_of(service, std::move(request));
  if (!created && created.error().code == Code::not_found)
    co_return fail(Code::not_found, "template " + log::quoted(asked_for) + " not found: " + created.error().message);
  if (!created) co_return std::unexpected(std::move(created).error());
  if (created->existed && Notes::of(created->box->record().metadata).value_or(Notes{}).asked != asked)
    co_return sandbox::conflict("Idempotency-Key: another sandbox was asked for under this key");
  ex.reply(201, dialect::dump(created_view(created->box->record(), options)));
  co_return Result<void>();
}

// Extends only: whoever joins must not cut short what others use.
Task<Result<void>> join(sandbox::Service& service, http::Exchange& ex, const Options& options) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(json body, co_await read_body(ex));
  sandbox::Update update;
  ISOLA_CO_TRY(update.timeout, seconds(body, "timeout", 300));
  update.only_extend = true;
  sandbox::Caller by = dialect::caller_of(ex);
  bool woken = box->state() == State::frozen || store::is_asleep(box->state());
  if (woken) {
    sandbox::ResumeRequest request;
    request.timeout = update.timeout;
    request.files_only = given(body, "memory") && body["memory"] == false;
    request.by = by;
    auto resumed = co_await service.resume(box, std::move(request));
    if (!resumed) co_return std::unexpected(std::move(resumed).error());
  }
  ISOLA_CO_TRY(auto record, co_await service.update(box, std::move(update), by));
  ex.reply(woken ? 201 : 200, dialect::dump(created_view(record, options)));
  co_return Result<void>();
}

Task<Result<void>> set_timeout(sandbox::Service& service, http::Exchange& ex, const char* field, bool only_extend) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(json body, co_await read_body(ex));
  sandbox::Update update;
  ISOLA_CO_TRY(update.timeout, seconds(body, field, 15));
  update.only_extend = only_extend;
  sandbox::Caller by = dialect::caller_of(ex);
  auto done = co_await service.update(box, std::move(update), by);
  if (!done) co_return std::unexpected(std::move(done).error());
  ex.reply(204);
  co_return Result<void>();
}

Task<Result<void>> set_network(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(BoxPtr box, box_of(service, ex));
  ISOLA_CO_TRY(json body, co_await read_body(ex));
  Notes before = Notes::of(box->record().metadata).value_or(Notes{});
  ISOLA_CO_TRY(Network network, read_network_update(body, before));
  sandbox::NetworkChange change{.network = network.policy, .cut = true};
  change.notes[kNotesLabel] = network.notes.to_text();
  ISOLA_CO_CHECK(find_secrets(service, ex, network.rules));
  if (before.have_rules() || !network.rules.grants.empty()) change.grants = std::move(network.rules.grants);
  sandbox::Caller by = dialect::caller_of(ex);
  ISOLA_CO_CHECK(co_await service.set_network(box, std::move(change), by));
  ex.reply(204);
  co_return Result<void>();
}

// k=v&k2=v2, in which every key and value is still encoded twice.
Result<store::Labels> metadata_filter(std::string_view text) {
  store::Labels out;
  auto twice = [](std::string_view part) -> std::optional<std::string> {
    auto once = http::percent_decode(part, true);
    return once ? http::percent_decode(*once, true) : std::nullopt;
  };
  while (!text.empty()) {
    auto end = text.find('&');
    auto pair = text.substr(0, end);
    auto equals = pair.find('=');
    auto key = twice(pair.substr(0, equals));
    auto value = equals == pair.npos ? std::optional<std::string>("") : twice(pair.substr(equals + 1));
    if (!key || !value) return fail(Code::invalid, "metadata: is not well encoded");
    if (!key->empty()) out[*key] = *value;
    if (end == text.npos) break;
    text.remove_prefix(end + 1);
  }
  return out;
}

struct Wanted {
  store::SandboxFilter filter;
  std::string template_name;  // without a tag; empty: any
  store::Millis from = 0;
  bool oldest_first = false;
  size_t limit = kPage;
  // What the store cannot say itself.
  bool special() const { return !template_name.empty() || from > 0 || oldest_first; }
};

Result<std::vector<State>> states_of(const http::Exchange& ex, bool pages) {
  bool running = true, paused = pages;
  if (auto given = ex.query("state"); given && !given->empty()) {
    running = paused = false;
    for (const auto& [name, value] : ex.queries()) {
      if (name != "state") continue;
      for (std::string_view rest = value; !rest.empty();) {
        auto comma = rest.find(',');
        auto word = rest.substr(0, comma);
        if (word != "running" && word != "paused")
          return fail(Code::invalid, "state: there is no state " + log::quoted(word));
        (word == "running" ? running : paused) = true;
        rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
      }
    }
  }
  std::vector<State> states;
  if (running) states = {State::creating, State::running};
  if (paused) states.insert(states.end(), {State::frozen, State::paused, State::stopped, State::archived});
  return states;
}

Result<Wanted> wanted_of(sandbox::Service& service, const http::Exchange& ex, bool pages) {
  Wanted wanted{.filter = {.project = dialect::project_of(ex)}};
  ISOLA_TRY(wanted.filter.states, states_of(ex, pages));
  ISOLA_TRY(wanted.filter.metadata, metadata_filter(ex.query("metadata").value_or("")));
  if (auto name = ex.query("template"); name && !name->empty())
    wanted.template_name = plain_name(template_named(service, wanted.filter.project, std::string(*name)));
  if (auto order = ex.query("order"); order && !order->empty()) {
    if (*order != "asc" && *order != "desc") return fail(Code::invalid, "order: must be asc or desc");
    wanted.oldest_first = *order == "asc";
  }
  if (auto after = ex.query("startedAfter"); after && !after->empty()) {
    auto time = parse_time(*after);
    if (!time) return fail(Code::invalid, "startedAfter: is no time");
    wanted.from = *time;
  }
  if (!pages) wanted.limit = 1000;
  if (auto word = ex.query("limit"); word && pages) {
    std::string text(*word);
    char* end = nullptr;
    long number = std::strtol(text.c_str(), &end, 10);
    if (text.empty() || *end || number < 1 || number > static_cast<long>(kPage))
      return fail(Code::invalid, "limit: must be between 1 and 100");
    wanted.limit = static_cast<size_t>(number);
  }
  return wanted;
}

// The store's pages, newest first, sifted. A token is where the last one that was shown stands, whether it is still
// there or not.
Task<Result<store::SandboxPage>> sifted(sandbox::Service& service, const Wanted& wanted, const std::string& token) {
  store::Cursor last;
  if (!token.empty()) {
    ISOLA_CO_TRY(last, store::parse_cursor(token));
  }
  std::vector<store::SandboxRecord> all;
  std::string cursor;
  do {
    ISOLA_CO_TRY(auto page, co_await service.list(wanted.filter, cursor, 1000));
    for (auto& record : page.sandboxes) {
      if (record.created < wanted.from) continue;
      if (!wanted.template_name.empty() && plain_name(record.template_name) != wanted.template_name) continue;
      all.push_back(std::move(record));
    }
    cursor = page.next;
  } while (!cursor.empty());
  if (wanted.oldest_first) std::reverse(all.begin(), all.end());
  auto begin = all.begin();
  if (!token.empty()) {
    begin = std::find_if(all.begin(), all.end(), [&](const auto& record) {
      auto here = std::tie(record.created, record.id);
      auto there = std::tie(std::as_const(last.created), std::as_const(last.id));
      return wanted.oldest_first ? here > there : here < there;
    });
  }
  store::SandboxPage page;
  for (; begin != all.end() && page.sandboxes.size() < wanted.limit; ++begin) page.sandboxes.push_back(*begin);
  if (begin != all.end()) page.next = to_text(store::Cursor{page.sandboxes.back().created, page.sandboxes.back().id});
  co_return page;
}

// For those who do not ask for pages: the store's may be shorter than what was asked for.
Task<Result<store::SandboxPage>> gathered(sandbox::Service& service, const Wanted& wanted, const std::string& token) {
  store::SandboxPage all;
  all.next = token;
  do {
    ISOLA_CO_TRY(auto page, co_await service.list(wanted.filter, all.next, wanted.limit - all.sandboxes.size()));
    std::move(page.sandboxes.begin(), page.sandboxes.end(), std::back_inserter(all.sandboxes));
    all.next = page.next;
  } while (!all.next.empty() && all.sandboxes.size() < wanted.limit);
  co_return all;
}

Task<Result<void>> list_sandboxes(sandbox::Service& service, http::Exchange& ex, const Options& options, bool pages) {
  ISOLA_CO_TRY(Wanted wanted, wanted_of(service, ex, pages));
  std::string token(ex.query("nextToken").value_or(""));
  auto asked = wanted.special() ? sifted(service, wanted, token)
               : pages          ? service.list(wanted.filter, token, wanted.limit)
                                : gathered(service, wanted, token);
  auto page = co_await std::move(asked);
  if (!page) co_return std::unexpected(std::move(page).error());
  json all = json::array();
  for (const auto& record : page->sandboxes) all.push_back(listed_view(record, options));
  if (pages && !page->next.empty()) ex.set_header("X-Next-Token", page->next);
  ex.reply(200, dialect::dump(all));
  co_return Result<void>();
}

}  // namespace

void Api::add_sandboxes(http::Router& router) {
  auto service = service_;
  Options options = options_;
  auto& old = group(router, "/sandboxes");
  auto& now = group(router, "/v2/sandboxes");
  old.add("POST", "/sandboxes",
          handled([service, options](http::Exchange& ex) { return create(*service, ex, options, 15); }));
  now.add("POST", "/v2/sandboxes",
          handled([service, options](http::Exchange& ex) { return create(*service, ex, options, 300); }));
  auto joins = handled([service, options](http::Exchange& ex) { return join(*service, ex, options); });
  old.add("POST", "/sandboxes/{id}/connect", joins);
  now.add("POST", "/v2/sandboxes/{id}/connect", joins);
  old.add("GET", "/sandboxes",
          handled([service, options](http::Exchange& ex) { return list_sandboxes(*service, ex, options, false); }));
  now.add("GET", "/v2/sandboxes",
          handled([service, options](http::Exchange& ex) { return list_sandboxes(*service, ex, options, true); }));
  auto get = handled([service, options](http::Exchange& ex) -> Task<Result<void>> {
    ISOLA_CO_TRY(BoxPtr box, box_of(*service, ex));
    json out = detail_view(box->record(), options);
    if (!store::allows(dialect::scope_of(ex), store::Scope::use)) out.erase("envdAccessToken");
    ex.reply(200, dialect::dump(out));
    co_return Result<void>();
  });
  old.add("GET", "/sandboxes/{id}", get);
  now.add("GET", "/v2/sandboxes/{id}", get);
  auto kill = handled([service](http::Exchange& ex) -> Task<Result<void>> {
    ISOLA_CO_TRY(BoxPtr box, box_of(*service, ex));
    sandbox::Caller by = dialect::caller_of(ex);
    ISOLA_CO_CHECK(service->kill_soon(box, by));
    ex.reply(204);
    co_return Result<void>();
  });
  old.add("DELETE", "/sandboxes/{id}", kill);
  now.add("DELETE", "/v2/sandboxes/{id}", kill);
  old.add("POST", "/sandboxes/{id}/timeout",
          handled([service](http::Exchange& ex) { return set_timeout(*service, ex, "timeout", false); }));
  old.add("POST", "/sandboxes/{id}/refreshes",
          handled([service](http::Exchange& ex) { return set_timeout(*service, ex, "duration", true); }));
  old.add("PUT", "/sandboxes/{id}/network",
          handled([service](http::Exchange& ex) { return set_network(*service, ex); }));
}

}  // namespace isola::e2b
