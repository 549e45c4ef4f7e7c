#include "builder/dockerfile_spec.h"

#include "base/log.h"

namespace isola::builder {

namespace {

const Stage* earlier(const Dockerfile& file, size_t before, const std::string& name) {
  for (size_t i = 0; i < before; ++i)
    if (file.stages[i].name == name || std::to_string(i) == name) return &file.stages[i];
  return nullptr;
}

}  // namespace

Result<Spec> to_spec(const Dockerfile& file, const std::string& context) {
  Spec spec;
  spec.user = "root";
  const Stage* stage = &file.stages.back();
  spec.start = stage->start;
  for (;;) {
    spec.steps.insert(spec.steps.begin(), stage->steps.begin(), stage->steps.end());
    spec.from = stage->from;
    const Stage* below = earlier(file, static_cast<size_t>(stage - file.stages.data()), spec.from);
    if (!below) break;
    if (spec.start.empty()) spec.start = below->start;
    stage = below;
  }
  for (auto& step : spec.steps) {
    if (step.kind != Step::Kind::copy) continue;
    if (!step.stage.empty())
      return fail(Code::unsupported, log::quoted(step.line) + ": files of another stage cannot be copied here yet");
    if (context.empty()) return fail(Code::invalid, log::quoted(step.line) + ": no files were uploaded (context)");
    step.context = context;
  }
  return spec;
}

Result<std::string> template_for(const std::string& image) {
  std::string name = image.substr(0, image.find('@'));
  for (const char* prefix : {"index.docker.io/", "docker.io/", "library/"})
    if (name.starts_with(prefix)) name.erase(0, std::string_view(prefix).size());
  auto colon = name.find(':');
  std::string plain = name.substr(0, colon), tag = colon == name.npos ? "latest" : name.substr(colon + 1);
  if (plain == "e2bdev/base" || plain == "e2b/base") return "base";
  if (plain == "e2bdev/code-interpreter") return "code-interpreter";
  if (plain == "debian" && (tag.starts_with("bookworm") || tag.starts_with("12"))) return "base";
  return fail(Code::unsupported, "the image " + log::quoted(image) +
                                     " cannot be fetched: this server builds from its own templates, and from "
                                     "e2bdev/base, e2bdev/code-interpreter and debian:bookworm, which it has");
}

}  // namespace isola::builder
