// /v1/templates: what a sandbox can start from, and builds of a project's own (docs/templates.md).
#include <nlohmann/json.hpp>

#include "builder/builder.h"
#include "builder/devcontainer.h"
#include "builder/dockerfile_spec.h"
#include "dialect/native/api.h"
#include "dialect/native/fields.h"
#include "dialect/native/query.h"
#include "dialect/native/views.h"

namespace isola::native {

using builder::Builder;
using nlohmann::json;

namespace {

constexpr size_t kMostLines = 1000;

json view_of_build(const store::BuildRecord& build, const std::string& name) {
  json out = {{"template", name},
              {"template_id", build.template_id},
              {"build", build.id},
              {"state", to_string(build.state)},
              {"created", when(build.created)}};
  if (build.finished) out["finished"] = when(build.finished);
  if (build.state == store::BuildState::failed) out["error"] = {{"message", build.why}, {"step", build.step}};
  return out;
}

Task<Result<void>> list_templates(sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(auto all, service.templates());
  json list = json::array();
  ISOLA_CO_TRY(auto built, service.store().list_templates(project_of(ex)));
  for (const auto& one : built) {
    ISOLA_CO_TRY(auto tags, service.store().tags_of(one.id));
    list.push_back({{"name", one.name}, {"id", one.id}, {"tags", tags}});
  }
  for (const auto& one : all) list.push_back({{"name", one.name}, {"digest", one.digest}});
  ex.reply(200, dump({{"templates", list}}));
  co_return Result<void>();
}

Task<Result<void>> build(Builder& builder, sandbox::Service& service, http::Exchange& ex) {
  ISOLA_CO_TRY(std::string body, co_await ex.read_all(2 << 20));
  ISOLA_CO_TRY(Fields fields, Fields::parse(body));
  Builder::Asked asked;
  asked.project = project_of(ex);
  asked.name = fields.text("name");
  asked.tags = fields.texts("tags");
  asked.cpus = fields.number("cpus", 0.01, 1024).value_or(0);
  asked.memory = fields.size("memory").value_or(0);
  builder::Written written;
  written.text = fields.text("dockerfile");
  written.context = fields.text("context");
  written.target = fields.text("target");
  written.arguments = fields.labels("arguments");
  auto names = fields.labels("bases");
  std::optional<std::string> devcontainer;
  builder::DevcontainerPlace place;
  if (auto inner = fields.object("devcontainer")) {
    devcontainer = inner->text("text");
    place.folder = inner->text("folder", place.folder);
    place.workspace = inner->text("workspace", place.workspace);
    if (!sandbox::is_plain_name(place.workspace)) inner->wrong("workspace", "use letters, digits, '-', '_' and '.'");
    fields.adopt(*inner, "devcontainer");
  }
  auto start = fields.maybe_text("start");
  std::string ready = fields.text("ready"), network = fields.text("network");
  bool force = fields.flag("force");
  if (written.text.empty() && !devcontainer) fields.wrong("dockerfile", "is missing");
  if (!written.context.empty() && !builder.contexts().has(asked.project, written.context))
    fields.wrong("context", "no files were uploaded under this hash");
  ISOLA_CO_CHECK(fields.done());
  std::vector<std::string> ignored;
  if (devcontainer) {
    ISOLA_CO_TRY(auto dev, builder::parse_devcontainer(*devcontainer, place));
    ISOLA_CO_TRY(written, builder::to_written(dev, written.text, written.context));
    ignored = dev.ignored;
  }
  written.names = std::move(names);
  auto variables = [&](const std::string& from) -> std::optional<store::Labels> {
    auto base = builder::known_base(service, asked.project, written.meant(from));
    return base ? std::optional(base->env) : std::nullopt;
  };
  ISOLA_CO_TRY(auto spec, builder::read_written(written, variables, &ignored));
  ISOLA_CO_CHECK(builder.check_bases(asked.project, spec));
  if (start) spec.start = *start, spec.own_start = true;
  spec.ready = ready;
  spec.network = network;
  spec.force = force;
  ISOLA_CO_TRY(auto declared, builder.declare(asked));
  ISOLA_CO_CHECK(builder.begin(declared.template_id, declared.id, std::move(spec), caller_of(ex)));
  ISOLA_CO_TRY(auto begun, builder.store().find_build(declared.template_id, declared.id));
  json out = view_of_build(begun, asked.name.substr(0, asked.name.find(':')));
  out["ignored"] = ignored;
  ex.set_header("Location", "/v1/templates/" + begun.template_id + "/builds/" + begun.id);
  ex.reply(202, dump(out));
  co_return Result<void>();
}

// With the lines of its log from a number on.
Task<Result<void>> show_build(Builder& builder, http::Exchange& ex) {
  uint64_t from = 0;
  for (const auto& [name, value] : ex.queries()) {
    if (name != "from") co_return fail(Code::invalid, "there is no query parameter \"" + name + "\" here");
    ISOLA_CO_TRY(from, whole_number(name, value, 0, INT64_MAX));
  }
  ISOLA_CO_TRY(auto known, builder.store().find_template(project_of(ex), std::string(ex.param("template"))));
  ISOLA_CO_TRY(auto build, builder.store().find_build(known.id, std::string(ex.param("build"))));
  ISOLA_CO_TRY(auto lines, builder.store().build_lines(build.id, from, kMostLines));
  json out = view_of_build(build, known.name);
  out["log"] = json::array();
  for (const auto& line : lines)
    out["log"].push_back({{"number", line.number},
                          {"time", when(line.at)},
                          {"level", line.level},
                          {"step", line.step},
                          {"text", line.text}});
  mark_untrusted(ex);
  ex.reply(200, dump(out));
  co_return Result<void>();
}

Task<Result<void>> take_files(Builder& builder, http::Exchange& ex) {
  ISOLA_CO_TRY(auto draft, builder.contexts().begin(project_of(ex), std::string(ex.param("hash"))));
  for (;;) {
    ISOLA_CO_TRY(std::string_view piece, co_await ex.read_some());
    if (piece.empty()) break;
    ISOLA_CO_CHECK(draft.write(piece));
  }
  ISOLA_CO_CHECK(builder.contexts().keep(std::move(draft)));
  ex.reply(204);
  co_return Result<void>();
}

}  // namespace

void Api::add_templates(http::RouteGroup& group) {
  auto service = service_;
  auto builder = builder_;
  auto step = [builder](auto what) {
    return [builder, what](http::Exchange& ex) -> ::isola::Task<Result<void>> { return what(*builder, ex); };
  };
  group.add("GET", "/v1/templates", handled([service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              return list_templates(*service, ex);
            }));
  group
      .add("POST", "/v1/templates",
           handled(store::Scope::use,
                   [service, builder](http::Exchange& ex) -> ::isola::Task<Result<void>> {
                     return build(*builder, *service, ex);
                   }))
      .body_limit = 2 << 20;
  group.add("DELETE", "/v1/templates/{template}",
            handled(store::Scope::use, [builder](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_CHECK(builder->remove(project_of(ex), std::string(ex.param("template"))));
              ex.reply(204);
              co_return Result<void>();
            }));
  group.add("GET", "/v1/templates/{template}/builds/{build}", handled(step(show_build)));
  group.add("POST", "/v1/templates/{template}/builds/{build}/cancel",
            handled(store::Scope::use, [builder](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_TRY(auto build, builder->find(project_of(ex), std::string(ex.param("template")),
                                                     std::string(ex.param("build"))));
              builder->cancel(build.id);
              ex.reply(204);
              co_return Result<void>();
            }));
  group.add("PUT", "/v1/build-files/{hash}", handled(store::Scope::use, step(take_files))).body_limit =
      http::Exchange::kNoLimit;
}

}  // namespace isola::native
