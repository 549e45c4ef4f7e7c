#include "builder/dockerfile_spec.h"

#include <algorithm>
#include <map>

#include "base/log.h"

namespace isola::builder {

namespace {

// A stage that others stand on or copy from is there once for each of them: few lines can ask for a lot.
constexpr size_t kMostStages = 100, kMostSteps = 5000;

class Flattener {
 public:
  Flattener(const Dockerfile& file, const std::string& context) : file_(file), context_(context) {}

  Result<Spec> spec() {
    if (file_.stages.size() > kMostStages)
      return fail(Code::invalid, "a Dockerfile has at most " + std::to_string(kMostStages) + " stages here");
    size_t last = file_.stages.size() - 1;
    ISOLA_TRY(Part result, flat(last));
    out_.user = "root";
    out_.from = std::move(result.from);
    out_.steps = std::move(result.steps);
    // What runs is the uppermost that says so.
    for (std::optional<size_t> at = last; at && out_.start.empty(); at = earlier(*at, file_.stages[*at].from))
      out_.start = file_.stages[*at].start;
    return std::move(out_);
  }

 private:
  std::optional<size_t> earlier(size_t before, const std::string& name) const {
    for (size_t i = 0; i < before; ++i)
      if (file_.stages[i].name == name || std::to_string(i) == name) return i;
    return std::nullopt;
  }

  // A stage with the steps of those that it stands on before its own.
  Result<Part> flat(size_t index) {
    const Stage& stage = file_.stages[index];
    Part part{.from = stage.from};
    if (auto below = earlier(index, stage.from)) {
      ISOLA_TRY(part, flat(*below));
    }
    for (const auto& one : stage.steps) {
      if (++steps_ > kMostSteps)
        return fail(Code::invalid, "the stages of the Dockerfile have too many steps together");
      ISOLA_TRY(Step step, placed(one, index));
      part.steps.push_back(std::move(step));
    }
    return part;
  }

  Result<Step> placed(Step step, size_t index) {
    if (step.kind != Step::Kind::copy) return step;
    auto wrong = [&](Code code, const std::string& why) {
      return fail(code, "Dockerfile line " + std::to_string(step.number) + ": " + log::quoted(step.line) + ": " + why);
    };
    if (!step.stage.empty()) {
      auto stage = earlier(index, step.stage);
      ISOLA_TRY(size_t number, part_for(stage ? std::to_string(*stage) : "image " + step.stage, stage, step.stage));
      step.stage = std::to_string(number);
      return step;
    }
    if (context_.empty()) return wrong(Code::invalid, "no files were uploaded (context)");
    step.context = context_;
    return step;
  }

  Result<size_t> part_for(const std::string& key, std::optional<size_t> stage, const std::string& image) {
    if (auto known = parts_.find(key); known != parts_.end()) return known->second;
    Part part{.from = image};
    if (stage) {
      ISOLA_TRY(part, flat(*stage));
    }
    out_.parts.push_back(std::move(part));
    return parts_[key] = out_.parts.size() - 1;
  }

  const Dockerfile& file_;
  const std::string& context_;
  Spec out_;
  std::map<std::string, size_t> parts_;
  size_t steps_ = 0;
};

}  // namespace

Result<Spec> to_spec(const Dockerfile& file, const std::string& context) { return Flattener(file, context).spec(); }

Result<Spec> read_written(Written written, const BaseVariables& variables, std::vector<std::string>* ignored) {
  ISOLA_TRY(Dockerfile file, parse_dockerfile(written.text, written.arguments, written.target, variables));
  ISOLA_TRY(Spec spec, to_spec(file, written.context));
  auto begin_there = [&](std::vector<Step>& steps) {
    for (auto& step : steps)
      if (step.stage.empty() && !written.folder.empty())
        for (auto& source : step.sources) source = source == "." ? written.folder : written.folder + "/" + source;
  };
  begin_there(spec.steps);
  for (auto& part : spec.parts) begin_there(part.steps);
  spec.steps.insert(spec.steps.end(), written.after.begin(), written.after.end());
  if (ignored) ignored->insert(ignored->end(), file.ignored.begin(), file.ignored.end());
  spec.written = std::move(written);
  return spec;
}

std::vector<std::string> bases_of(const Spec& spec) {
  std::vector<std::string> all = {spec.from};
  for (const auto& part : spec.parts)
    if (std::ranges::find(all, part.from) == all.end()) all.push_back(part.from);
  return all;
}

std::optional<std::string> template_for(const std::string& image) {
  std::string name = image.substr(0, image.find('@'));
  for (const char* prefix : {"index.docker.io/", "docker.io/", "library/"})
    if (name.starts_with(prefix)) name.erase(0, std::string_view(prefix).size());
  auto colon = name.find(':');
  std::string plain = name.substr(0, colon), tag = colon == name.npos ? "latest" : name.substr(colon + 1);
  if (plain == "e2bdev/base" || plain == "e2b/base") return "base";
  if (plain == "e2bdev/code-interpreter") return "code-interpreter";
  if (plain == "debian" && (tag.starts_with("bookworm") || tag.starts_with("12"))) return "base";
  return std::nullopt;
}

}  // namespace isola::builder
