// Template builds: a template is declared, its files are uploaded by hash, its steps are sent, and its status is asked
// for until it is ready. What it is built in is a sandbox of the project (builder/).
#include <nlohmann/json.hpp>

#include "base/hash/sha256.h"
#include "base/log.h"
#include "builder/dockerfile_spec.h"
#include "dialect/e2b/body.h"
#include "dialect/e2b/build_id.h"
#include "dialect/e2b/views.h"
#include "dialect/shared/base64.h"
#include "dialect/shared/disk.h"
#include "dialect/shared/text.h"
#include "image/oci_reference.h"
#include "vault/seal.h"

namespace isola::e2b {

using builder::Builder;
using builder::Spec;
using BuildStep = builder::Step;
using nlohmann::json;

namespace {

constexpr int64_t kUploadSeconds = 3600;  // that an address for the files of a build is good for

constexpr size_t kMostLogEntries = 100;
constexpr size_t kMostSteps = 1000;
constexpr size_t kMostCredentials = 16 << 10;
constexpr size_t kWritten = 1 << 20;  // of uploaded files, at once

// Users that are not there are told of in the words that clients know.
std::string reworded(std::string why) {
  constexpr std::string_view kOurs = "no such user: ";
  if (auto at = why.find(kOurs); at != std::string::npos)
    why = why.substr(0, at) + "command failed: unauthenticated: invalid username: '" + why.substr(at + kOurs.size()) +
          "'";
  return why;
}

json entry(const store::BuildLine& line) {
  json out = {{"timestamp", dialect::when(line.at)}, {"message", line.text}, {"level", line.level}};
  if (!line.step.empty()) out["step"] = line.step;
  return out;
}

Task<Result<void>> declare(Builder& builder, http::Exchange& ex, const char* name_field) {
  ISOLA_CO_TRY(json body, co_await read_body(ex));
  Builder::Asked asked;
  asked.project = dialect::project_of(ex);
  ISOLA_CO_TRY(asked.name, text(body, name_field));
  if (asked.name.empty()) co_return fail(Code::invalid, std::string(name_field) + ": is missing");
  if (given(body, "tags")) {
    if (!body["tags"].is_array()) co_return fail(Code::invalid, "tags: must be a list of strings");
    for (const auto& tag : body["tags"]) {
      if (!tag.is_string()) co_return fail(Code::invalid, "tags: must be a list of strings");
      asked.tags.push_back(tag.get<std::string>());
    }
  }
  for (auto [name, most] : {std::pair("cpuCount", 1024.0), std::pair("memoryMB", 1e7), std::pair("minFreeDiskMb", 1e9)})
    if (given(body, name) &&
        (!body[name].is_number() || !(body[name].get<double>() > 0) || body[name].get<double>() > most))
      co_return fail(Code::invalid, std::string(name) + ": must be a number above 0");
  if (given(body, "cpuCount")) asked.cpus = body["cpuCount"].get<double>();
  if (given(body, "memoryMB")) asked.memory = static_cast<uint64_t>(body["memoryMB"].get<double>()) << 20;
  // Of a sandbox's disk nothing is used by what its template has.
  if (given(body, "minFreeDiskMb")) asked.disk = static_cast<uint64_t>(body["minFreeDiskMb"].get<double>()) << 20;
  ISOLA_CO_TRY(auto build, builder.declare(asked));
  ISOLA_CO_TRY(auto spec, builder::spec_of(build.spec));
  std::string plain = asked.name.substr(0, asked.name.find(':'));
  ex.reply(202, dialect::dump({{"templateID", build.template_id},
                               {"buildID", uuid_of(build.id)},
                               {"public", false},
                               {"names", {plain}},
                               {"tags", spec.tags},
                               {"aliases", {plain}}}));
  co_return Result<void>();
}

// ---- steps ----------------------------------------------------------------------------------------------------------

Result<std::vector<std::string>> arguments(const json& step) {
  std::vector<std::string> out;
  if (!given(step, "args")) return out;
  if (!step["args"].is_array()) return fail(Code::invalid, "args: must be a list of strings");
  for (const auto& one : step["args"]) {
    if (!one.is_string()) return fail(Code::invalid, "args: must be a list of strings");
    out.push_back(one.get<std::string>());
  }
  return out;
}

Result<BuildStep> read_step(const json& in) {
  if (!in.is_object()) return fail(Code::invalid, "must be an object");
  ISOLA_TRY(std::string type, text(in, "type"));
  ISOLA_TRY(auto args, arguments(in));
  auto needs = [&](size_t count) { return args.size() >= count && !args[0].empty(); };
  BuildStep step;
  step.line = type;
  for (const auto& one : args) step.line += " " + one;
  step.line.resize(std::min<size_t>(step.line.size(), 1000));
  step.force = given(in, "force") && in["force"] == true;
  if (type == "RUN" && needs(1)) {
    step.kind = BuildStep::Kind::run;
    step.command = args[0];
    if (args.size() > 1) step.run_as = args[1];
    return step;
  }
  if (type == "COPY" && needs(2)) {
    step.kind = BuildStep::Kind::copy;
    step.sources = {args[0]};
    step.target = args[1];
    if (args.size() > 2) step.owner = args[2];
    if (args.size() > 3) step.mode = args[3];
    ISOLA_TRY(std::string hash, text(in, "filesHash"));
    step.context = builder::claimed(hash);
    while (step.sources[0].starts_with("./")) step.sources[0].erase(0, 2);
    if (step.sources[0].empty() || step.sources[0] == ".") step.sources[0] = "*";
    if (step.sources[0].starts_with('/') || step.sources[0].starts_with("..") ||
        step.sources[0].find("/../") != std::string::npos)
      return fail(Code::invalid, "the source leaves the folder of the build");
    return step;
  }
  if (type == "ENV" && args.size() >= 2 && args.size() % 2 == 0) {
    step.kind = BuildStep::Kind::env;
    for (size_t i = 0; i < args.size(); i += 2) {
      if (args[i].empty() || args[i].find('=') != std::string::npos) return fail(Code::invalid, "a name is wrong");
      step.env.emplace_back(args[i], args[i + 1]);
    }
    return step;
  }
  if (type == "WORKDIR" && needs(1)) {
    step.kind = BuildStep::Kind::workdir;
    step.value = args[0];
    return step;
  }
  if (type == "USER" && needs(1)) {
    step.kind = BuildStep::Kind::user;
    step.value = args[0];
    return step;
  }
  return fail(Code::invalid,
              "there is no step " + log::quoted(type) + " with " + std::to_string(args.size()) + " arguments");
}

Result<Spec> read_spec(sandbox::Service& service, const std::string& project, const json& body,
                       const Options& options) {
  Spec spec;
  spec.user = kDefaultUser;
  spec.at_home = true;
  ISOLA_TRY(std::string image, text(body, "fromImage"));
  ISOLA_TRY(spec.from, text(body, "fromTemplate"));
  if (!spec.from.empty() && !image.empty())
    return fail(Code::invalid, "fromImage and fromTemplate: a template is made from one of them");
  spec.fetches = !image.empty();
  // A template of ours goes before an image of that name, and what the operator says before that.
  if (auto known = options.images.find(image); known != options.images.end())
    spec.from = known->second;
  else
    spec.from = spec.from.empty() ? builder::template_for(image).value_or(image)
                                  : template_named(service, project, std::move(spec.from));
  if (spec.from.empty()) spec.from = "base";
  spec.force = given(body, "force") && body["force"] == true;
  ISOLA_TRY(spec.start, text(body, "startCmd"));
  ISOLA_TRY(spec.ready, text(body, "readyCmd"));
  if (!given(body, "steps")) return spec;
  if (!body["steps"].is_array() || body["steps"].size() > kMostSteps)
    return fail(Code::invalid, "steps: must be a list of at most " + std::to_string(kMostSteps));
  for (const auto& one : body["steps"]) {
    auto step = read_step(one);
    if (!step) return std::unexpected(step.error().in("step " + std::to_string(spec.steps.size() + 1)));
    spec.steps.push_back(std::move(*step));
  }
  return spec;
}

// A user and a password for the registry of the image, as the tools that fetch images have them in auth.json. They are
// for this one build, and written down nowhere.
Result<std::string> read_credentials(const json& body) {
  if (!given(body, "fromImageRegistry")) return std::string();
  const json& registry = body["fromImageRegistry"];
  if (!registry.is_object()) return fail(Code::invalid, "fromImageRegistry: must be an object");
  ISOLA_TRY(std::string image, text(body, "fromImage"));
  if (image.empty()) return fail(Code::invalid, "fromImageRegistry: is for an image (fromImage)");
  ISOLA_TRY(auto reference, image::parse_reference(image));
  ISOLA_TRY(std::string type, text(registry, "type"));
  std::string user, password;
  if (type == "registry") {
    ISOLA_TRY(user, text(registry, "username"));
    ISOLA_TRY(password, text(registry, "password"));
  } else if (type == "gcp") {
    user = "_json_key";
    ISOLA_TRY(password, text(registry, "serviceAccountJson"));
  } else {
    return fail(Code::unsupported, "fromImageRegistry: credentials of the type " + log::quoted(type) +
                                       " are not known here, only `registry` and `gcp`");
  }
  if (user.empty() || password.empty() || user.find(':') != user.npos ||
      user.size() + password.size() > kMostCredentials)
    return fail(Code::invalid, "fromImageRegistry: a user or a password is missing, or too long");
  json auth = {{"auths", {{reference.registry, {{"auth", dialect::base64(user + ":" + password)}}}}}};
  vault::wipe(password);
  return dialect::dump(auth);
}

Task<Result<void>> begin(Builder& builder, sandbox::Service& service, http::Exchange& ex, const Options& options) {
  ISOLA_CO_TRY(json body, co_await read_body(ex, false, 8 << 20));
  ISOLA_CO_TRY(auto build,
               builder.find(dialect::project_of(ex), std::string(ex.param("template")), build_id(ex.param("build"))));
  ISOLA_CO_TRY(Spec spec, read_spec(service, dialect::project_of(ex), body, options));
  ISOLA_CO_TRY(std::string credentials, read_credentials(body));
  // A template that is not there fails the build, as clients expect; an image that cannot be had is refused.
  if (!given(body, "fromTemplate")) ISOLA_CO_CHECK(builder.check_bases(dialect::project_of(ex), spec));
  ISOLA_CO_CHECK(
      builder.begin(build.template_id, build.id, std::move(spec), dialect::caller_of(ex), std::move(credentials)));
  ex.reply(202);
  co_return Result<void>();
}

Task<Result<void>> status(Builder& builder, http::Exchange& ex) {
  ISOLA_CO_TRY(auto build,
               builder.find(dialect::project_of(ex), std::string(ex.param("template")), build_id(ex.param("build"))));
  uint64_t offset = 0;
  if (auto asked = ex.query("logsOffset")) offset = std::strtoull(std::string(*asked).c_str(), nullptr, 10);
  ISOLA_CO_TRY(auto lines, builder.store().build_lines(build.id, offset, kMostLogEntries));
  json out = {{"templateID", build.template_id},
              {"buildID", uuid_of(build.id)},
              {"status", status_of(build.state)},
              {"logs", json::array()},
              {"logEntries", json::array()}};
  for (const auto& line : lines) {
    out["logs"].push_back(line.text);
    out["logEntries"].push_back(entry(line));
  }
  if (build.state == store::BuildState::failed)
    out["reason"] = {{"message", reworded(build.why)}, {"step", build.step}, {"logEntries", json::array()}};
  ex.reply(200, dialect::dump(out));
  co_return Result<void>();
}

// ---- files ----------------------------------------------------------------------------------------------------------

Task<Result<void>> where_to(Builder& builder, http::Exchange& ex, const std::string& secret) {
  std::string project = dialect::project_of(ex), hash(ex.param("hash")), key(ex.noted("key"));
  // Looking is for everybody, but what is handed out here lets files in.
  if (!store::allows(dialect::scope_of(ex), store::Scope::use)) co_return fail(Code::denied, "this key may only read");
  if (!builder::is_context_hash(hash)) co_return fail(Code::invalid, "the hash must be 64 hex digits");
  ISOLA_CO_TRY(auto known, builder.store().find_template(project, std::string(ex.param("template"))));
  std::string origin = std::string(ex.secure() ? "https://" : "http://") + std::string(ex.host_header());
  const std::string until = std::to_string(sandbox::now_millis() / 1000 + kUploadSeconds);
  // Said also when they are here: a client may want to put them anew.
  json out = {{"present", builder.contexts().has(project, builder::claimed(hash))},
              {"url", origin + "/build-files/" + project + "/" + hash + "?key=" + key + "&expires=" + until +
                          "&token=" + upload_token(secret, project, hash, key, until)}};
  ex.reply(201, dialect::dump(out));
  co_return Result<void>();
}

Task<Result<void>> take_files(Builder& builder, http::Exchange& ex) {
  using Draft = builder::ContextStore::Draft;
  ISOLA_CO_TRY(Draft begun, builder.contexts().begin(std::string(ex.param("project")),
                                                     builder::claimed(std::string(ex.param("hash")))));
  auto draft = std::make_shared<Draft>(std::move(begun));
  ex.keep_encoding();  // the packed bytes are the file
  for (bool more = true; more;) {
    std::string piece;  // several of the connection's: each goes to another thread
    while (more && piece.size() < kWritten) {
      ISOLA_CO_TRY(std::string_view next, co_await ex.read_some());
      more = !next.empty();
      piece += next;
    }
    auto write = [draft, piece = std::move(piece)] { return draft->write(piece); };
    auto written = co_await dialect::on_disk(std::move(write));
    if (!written) {
      co_await swallow(ex);
      co_return written;
    }
  }
  auto keep = [draft, contexts = builder.contexts()] { return contexts.keep(std::move(*draft)); };
  ISOLA_CO_CHECK(co_await dialect::on_disk(std::move(keep)));
  ex.reply(200);
  co_return Result<void>();
}

// ---- tags -----------------------------------------------------------------------------------------------------------

Result<std::vector<std::string>> read_tags(const json& body) {
  std::vector<std::string> tags;
  if (!given(body, "tags") || !body["tags"].is_array() || body["tags"].empty() || body["tags"].size() > 100)
    return fail(Code::invalid, "tags: must be a list of 1 to 100 strings");
  for (const auto& tag : body["tags"]) {
    if (!tag.is_string() || !builder::is_tag(tag.get<std::string>()))
      return fail(Code::invalid, "tags: use letters, digits, '-', '_' and '.'");
    tags.push_back(tag.get<std::string>());
  }
  return tags;
}

Task<Result<void>> assign_tags(Builder& builder, http::Exchange& ex) {
  ISOLA_CO_TRY(json body, co_await read_body(ex));
  ISOLA_CO_TRY(std::string target, text(body, "target"));
  ISOLA_CO_TRY(auto tags, read_tags(body));
  auto colon = target.find(':');
  ISOLA_CO_TRY(auto known, builder.store().find_template(dialect::project_of(ex), target.substr(0, colon)));
  std::string tag = colon == target.npos ? sandbox::kUsualTag : target.substr(colon + 1);
  ISOLA_CO_TRY(auto build, builder.store().tagged_build(known.id, tag));
  ISOLA_CO_CHECK(builder.store().put_tags(known.id, tags, build.id));
  ex.reply(201, dialect::dump({{"buildID", uuid_of(build.id)}, {"tags", tags}}));
  co_return Result<void>();
}

Task<Result<void>> remove_tags(Builder& builder, http::Exchange& ex) {
  ISOLA_CO_TRY(json body, co_await read_body(ex));
  ISOLA_CO_TRY(std::string name, text(body, "name"));
  ISOLA_CO_TRY(auto tags, read_tags(body));
  ISOLA_CO_TRY(auto known, builder.store().find_template(dialect::project_of(ex), plain_name(name)));
  ISOLA_CO_CHECK(builder.store().remove_tags(known.id, tags));
  ex.reply(204);
  co_return Result<void>();
}

}  // namespace

void Api::add_builds(http::Router& router) {
  auto step = [builder = builder_](auto what) {
    return handled([builder, what](http::Exchange& ex) -> Task<Result<void>> { return what(*builder, ex); });
  };
  auto named = [builder = builder_](const char* field) {
    return handled([builder, field](http::Exchange& ex) -> Task<Result<void>> { return declare(*builder, ex, field); });
  };
  auto& templates = group(router, "/templates");
  group(router, "/v3/templates").add("POST", "/v3/templates", named("name"));
  auto& second = group(router, "/v2/templates");
  second.add("POST", "/v2/templates", named("alias"));
  second
      .add("POST", "/v2/templates/{template}/builds/{build}",
           handled([service = service_, builder = builder_, options = options_](
                       http::Exchange& ex) -> Task<Result<void>> { return begin(*builder, *service, ex, options); }))
      .body_limit = 8 << 20;
  templates.add("GET", "/templates/{template}/builds/{build}/status", step(status));
  templates.add("GET", "/templates/{template}/files/{hash}",
                handled([builder = builder_, secret = options_.secret](http::Exchange& ex) -> Task<Result<void>> {
                  return where_to(*builder, ex, secret);
                }));
  templates.add("POST", "/templates/tags", step(assign_tags));
  templates.add("DELETE", "/templates/tags", step(remove_tags));

  // Clients put files where they are told to, without a key.
  auto& files = router.group("/build-files");
  files.dress(dress);
  files.filter([service = service_, keys = keys_, secret = options_.secret](http::Exchange& ex) -> Task<bool> {
    std::string key(ex.query("key").value_or("")), token(ex.query("token").value_or(""));
    std::string_view path = ex.path();
    path.remove_prefix(std::min(path.size(), std::string_view("/build-files/").size()));
    auto slash = path.find('/');
    std::string project(path.substr(0, slash)), hash(slash == path.npos ? "" : path.substr(slash + 1));
    std::string until(ex.query("expires").value_or(""));
    std::string right = upload_token(secret, project, hash, key, until);
    if (right.empty() || !equal_secrets(right, token) || keys->revoked_at(key) ||
        std::strtoll(until.c_str(), nullptr, 10) < sandbox::now_millis() / 1000) {
      ex.fail(http::ErrorReply{401, "unauthenticated", "this address does not take the files of a build", {}});
      co_return false;
    }
    if (!service->ready()) {
      ex.fail(Error{Code::unavailable, "the server is starting"}, 1);
      co_return false;
    }
    ex.note("key", key);
    ex.note("project", project);
    co_return true;
  });
  files.add("PUT", "/build-files/{project}/{hash}", step(take_files)).body_limit = http::Exchange::kNoLimit;
}

}  // namespace isola::e2b
