#include "dialect/e2b/names.h"

#include "image/recipes.h"

namespace isola::e2b {

std::string without_tag(std::string name) {
  if (name.ends_with(":default")) name.resize(name.rfind(':'));
  return name;
}

std::string plain_name(std::string name) {
  name.resize(std::min(name.size(), name.find(':')));
  return name;
}

std::string template_named(sandbox::Service& service, const std::string& project, std::string name) {
  name = without_tag(std::move(name));
  std::string plain = plain_name(name), tag = name.substr(plain.size());
  if (auto built = service.store().find_template(project, plain)) return built->name + tag;
  if (plain.find('/') != std::string::npos || service.store().find_published(plain)) return name;
  if (!tag.empty() && tag != ":latest") return name;
  // A snapshot may have a tag of that name, too.
  if (!tag.empty() && service.find_snapshot(project, name)) return name;
  return image::canonical_template(plain);
}

std::string template_id(sandbox::Service& service, const std::string& project, const std::string& name) {
  auto built = service.store().find_template(project, plain_name(name));
  if (!built) built = service.store().find_published(plain_name(name));
  return built ? built->id : name;
}

}  // namespace isola::e2b
