// What a sandbox can be made of by name: a template that its project built, or one of this machine.
#include <algorithm>

#include "image/oci_import.h"
#include "image/template_cache.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace {

std::unexpected<Error> no_template(const std::string& name) {
  return fail(Code::not_found, "there is no template '" + name + "'; `isola template ls` shows those that there are");
}

}  // namespace

Result<std::string> Service::digest_of(const std::string& name) {
  auto found = templates_.digest(name);
  if (!found && (found.error().code == Code::not_found || found.error().code == Code::invalid))
    return no_template(name);
  return found;
}

Result<std::vector<Service::Template>> Service::templates() {
  ISOLA_TRY(auto found, image::TemplateCache(parts_.cache_dir).list());
  std::vector<Template> all;
  // Images that builds brought have no names that anybody would ask for.
  for (const auto& one : found)
    if (!image::is_pulled_name(one.name) && !image::is_imported_name(one.name)) all.push_back({one.name, one.digest});
  return all;
}

// A project's own template goes before one of this machine that has the same name. A tag stands behind a colon.
Result<Source> Service::source_of(const std::string& project, const std::string& name, bool of_machine) {
  auto colon = name.find(':');
  std::string plain = name.substr(0, colon), tag = colon == name.npos ? kUsualTag : name.substr(colon + 1);
  auto machines = [&]() -> Result<Source> {
    // What a build fetched is for that build: others name the image, and are asked whether they may have it.
    if (!of_machine && image::is_pulled_name(plain)) return no_template(plain);
    if (tag != kUsualTag) return fail(Code::not_found, "there is no template '" + name + "'");
    auto found = templates_.find(plain);
    if (!found && (found.error().code == Code::not_found || found.error().code == Code::invalid))
      return no_template(plain);
    if (!found) return std::unexpected(found.error());
    Source source{.name = plain, .base = plain, .digest = found->digest, .user = found->user, .cwd = found->cwd};
    for (const auto& pair : found->env) {
      size_t equals = std::min(pair.find('='), pair.size() - 1);
      source.env[pair.substr(0, equals)] = pair.substr(equals + 1);
    }
    return source;
  };
  if (of_machine) return machines();
  auto built = parts_.store.find_template(project, plain);
  if (!built && built.error().code != Code::not_found) return std::unexpected(built.error());
  if (!built) {
    // What others have published comes last, and says whose it is.
    auto here = machines();
    if (here || here.error().code != Code::not_found) return here;
    built = parts_.store.find_published(plain);
    if (!built) return built.error().code == Code::not_found ? here : std::unexpected(built.error());
  }
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
                .memory_limit = build->memory_limit,
                .disk = build->disk};
}

}  // namespace isola::sandbox
