// What a sandbox can be made of by name: a template that its project built, or one of this machine.
#include "image/template_cache.h"
#include "sandbox/service.h"

namespace isola::sandbox {

Result<std::string> Service::digest_of(const std::string& name) {
  auto found = templates_.digest(name);
  if (!found && (found.error().code == Code::not_found || found.error().code == Code::invalid))
    return fail(Code::not_found, "there is no template '" + name + "'; `isola template build` makes one");
  return found;
}

Result<std::vector<Service::Template>> Service::templates() {
  ISOLA_TRY(auto found, image::TemplateCache(parts_.cache_dir).list());
  std::vector<Template> all;
  for (const auto& one : found) all.push_back({one.name, one.digest});
  return all;
}

// A project's own template goes before one of this machine that has the same name. A tag stands behind a colon.
Result<Source> Service::source_of(const std::string& project, const std::string& name, bool of_machine) {
  auto colon = name.find(':');
  std::string plain = name.substr(0, colon), tag = colon == name.npos ? kUsualTag : name.substr(colon + 1);
  auto machines = [&]() -> Result<Source> {
    if (tag != kUsualTag) return fail(Code::not_found, "there is no template '" + name + "'");
    ISOLA_TRY(std::string digest, digest_of(plain));
    return Source{.name = plain, .base = plain, .digest = digest};
  };
  if (of_machine) return machines();
  auto built = parts_.store.find_template(project, plain);
  if (!built && built.error().code != Code::not_found) return std::unexpected(built.error());
  if (!built) return machines();
  auto build = parts_.store.tagged_build(built->id, tag);
  if (!build && build.error().code == Code::not_found) {
    // Until there is a build of it, it takes nothing away.
    if (auto otherwise = machines()) return otherwise;
    return fail(Code::not_found, "template '" + plain + "' has no build that is ready and tagged '" + tag + "'");
  }
  if (!build) return std::unexpected(build.error());
  return Source{.name = name,
                .base = build->base,
                .digest = build->digest,
                .image = build->image,
                .memory = build->memory,
                .env = build->env,
                .user = build->user,
                .cwd = build->cwd,
                .cpus = build->cpus,
                .memory_limit = build->memory_limit};
}

}  // namespace isola::sandbox
