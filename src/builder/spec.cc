#include "builder/spec.h"

#include <nlohmann/json.hpp>

#include "base/hash/sha256.h"

namespace isola::builder {

using nlohmann::json;

namespace {

constexpr const char* kKinds[] = {"run", "copy", "env", "workdir", "user"};

json to_object(const Step& step) {
  json out = {{"kind", kKinds[static_cast<int>(step.kind)]}, {"line", step.line}};
  auto add = [&](const char* name, const std::string& text) {
    if (!text.empty()) out[name] = text;
  };
  add("command", step.command);
  add("run_as", step.run_as);
  add("target", step.target);
  add("owner", step.owner);
  add("mode", step.mode);
  add("context", step.context);
  add("stage", step.stage);
  add("value", step.value);
  if (!step.sources.empty()) out["sources"] = step.sources;
  if (!step.env.empty()) out["env"] = step.env;
  if (step.unpack) out["unpack"] = true;
  if (step.force) out["force"] = true;
  return out;
}

Step step_of(const json& object) {
  Step step;
  std::string kind = object.value("kind", "run");
  for (int i = 0; i < 5; ++i)
    if (kind == kKinds[i]) step.kind = static_cast<Step::Kind>(i);
  for (auto [name, text] :
       {std::pair("line", &step.line), std::pair("command", &step.command), std::pair("run_as", &step.run_as),
        std::pair("target", &step.target), std::pair("owner", &step.owner), std::pair("mode", &step.mode),
        std::pair("context", &step.context), std::pair("stage", &step.stage), std::pair("value", &step.value)})
    *text = object.value(name, "");
  step.sources = object.value("sources", step.sources);
  step.env = object.value("env", step.env);
  step.unpack = object.value("unpack", false);
  step.force = object.value("force", false);
  return step;
}

}  // namespace

std::string to_json(const Spec& spec) {
  json out = {{"from", spec.from},       {"user", spec.user}, {"start", spec.start}, {"ready", spec.ready},
              {"network", spec.network}, {"tags", spec.tags}, {"force", spec.force}, {"steps", json::array()}};
  for (const auto& step : spec.steps) out["steps"].push_back(to_object(step));
  for (const auto& part : spec.parts) {
    json steps = json::array();
    for (const auto& step : part.steps) steps.push_back(to_object(step));
    out["parts"].push_back({{"from", part.from}, {"steps", std::move(steps)}});
  }
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<Spec> spec_of(const std::string& text) {
  try {
    json in = json::parse(text);
    Spec spec;
    for (auto [name, into] :
         {std::pair("from", &spec.from), std::pair("user", &spec.user), std::pair("start", &spec.start),
          std::pair("ready", &spec.ready), std::pair("network", &spec.network)})
      *into = in.value(name, "");
    spec.tags = in.value("tags", spec.tags);
    spec.force = in.value("force", false);
    for (const auto& step : in.value("steps", json::array())) spec.steps.push_back(step_of(step));
    for (const auto& one : in.value("parts", json::array())) {
      Part part{.from = one.value("from", "")};
      for (const auto& step : one.value("steps", json::array())) part.steps.push_back(step_of(step));
      spec.parts.push_back(std::move(part));
    }
    return spec;
  } catch (const json::exception& error) {
    return fail(Code::corrupt, std::string("a build's steps cannot be read: ") + error.what());
  }
}

std::string key_after(const std::string& before, const Step& step, const std::string& user, const std::string& folder,
                      const std::vector<std::pair<std::string, std::string>>& env) {
  json all = {before, to_object(step), user, folder, env};
  all[1].erase("line");
  all[1].erase("force");
  return sha256(all.dump(-1, ' ', false, json::error_handler_t::replace)).value_or("");
}

}  // namespace isola::builder
