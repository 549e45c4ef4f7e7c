#include "cli/place.h"

namespace isola::cli {

Result<Place> parse_place(std::string_view text) {
  if (text.empty()) return fail(Code::invalid, "a path is missing");
  auto colon = text.find(':');
  if (colon == std::string_view::npos || text.find('/') < colon) return Place{"", std::string(text)};
  Place place{std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
  if (place.sandbox.empty())
    return fail(Code::invalid,
                std::string(text) + ": which sandbox? Write ID:PATH, or ./" + std::string(text) + " for a file here");
  if (place.path.empty())
    return fail(Code::invalid, std::string(text) + ": where in the sandbox? Write " + place.sandbox + ":PATH");
  return place;
}

std::string last_part(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  if (auto slash = path.rfind('/'); slash != std::string_view::npos) path.remove_prefix(slash + 1);
  if (path == "." || path == "..") return "";
  return std::string(path);
}

std::string target_of(const std::string& target, bool is_folder, const std::string& name) {
  if (!is_folder && !target.ends_with('/')) return target;
  if (name.empty()) return target;
  return target + (target.ends_with('/') ? "" : "/") + name;
}

}  // namespace isola::cli
