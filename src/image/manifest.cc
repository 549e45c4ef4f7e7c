#include "image/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ids.h"

namespace isola::image {

namespace {

using Json = nlohmann::ordered_json;

// Reads one field and leaves `good` false when it is missing or of another kind.
template <typename T>
void get(const Json& json, const char* key, T& out, bool& good) {
  auto field = json.find(key);
  bool fits = field != json.end();
  if constexpr (std::is_same_v<T, std::string>)
    fits = fits && field->is_string();
  else if constexpr (std::is_same_v<T, uint64_t>)
    fits = fits && field->is_number_unsigned();
  else if constexpr (std::is_same_v<T, int64_t>)
    fits = fits && field->is_number_integer();
  else
    fits =
        fits && field->is_array() && std::all_of(field->begin(), field->end(), [](auto& e) { return e.is_string(); });
  good = good && fits;
  if (fits) out = field->template get<T>();
}

}  // namespace

std::string to_json(const Template& t) {
  Json json = {{"format", kManifestVersion},
               {"name", t.name},
               {"digest", t.digest},
               {"size", t.size},
               {"created", t.created},
               {"key", t.key},
               {"distribution", t.distribution},
               {"parents", t.parents},
               {"packages", t.packages}};
  if (!t.origin.empty()) {
    json["origin"] = t.origin;
    json["env"] = t.env;
    json["user"] = t.user;
    json["cwd"] = t.cwd;
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Template> parse_manifest(std::string_view text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return fail(Code::corrupt, "not a manifest");
  int64_t format = 0;
  bool good = true;
  get(json, "format", format, good);
  if (good && format > kManifestVersion)
    return fail(Code::unsupported, "the manifest has format " + std::to_string(format) + ", made by a newer Isola");
  Template t;
  get(json, "name", t.name, good);
  get(json, "digest", t.digest, good);
  get(json, "size", t.size, good);
  get(json, "created", t.created, good);
  get(json, "key", t.key, good);
  get(json, "distribution", t.distribution, good);
  get(json, "parents", t.parents, good);
  get(json, "packages", t.packages, good);
  if (json.contains("origin")) {
    get(json, "origin", t.origin, good);
    get(json, "env", t.env, good);
    get(json, "user", t.user, good);
    get(json, "cwd", t.cwd, good);
  }
  if (!good || format != kManifestVersion || !is_digest(t.digest) || !check_template_name(t.name))
    return fail(Code::corrupt, "not a manifest");
  return t;
}

Result<void> check_template_name(const std::string& name) {
  auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  bool good =
      !name.empty() && name.size() <= 64 && plain(name[0]) &&
      std::all_of(name.begin(), name.end(), [&](char c) { return plain(c) || c == '-' || c == '_' || c == '.'; });
  if (!good) return fail(Code::invalid, "not a template name (1 to 64 of a-z, 0-9, '.', '_', '-')");
  return {};
}

}  // namespace isola::image
