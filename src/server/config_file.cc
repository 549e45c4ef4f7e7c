// The TOML side of config.h (a header-only parser: heavy, so in one file alone).
#define TOML_EXCEPTIONS 0
#include <fmt/format.h>
#include <toml++/toml.h>

#include "base/file.h"
#include "server/config.h"

namespace isola::server {

namespace {

Result<std::string> text_of(const toml::node& node, const std::string& name, const std::string& where) {
  if (auto value = node.as_string()) return value->get();
  if (auto value = node.as_boolean()) return std::string(value->get() ? "true" : "false");
  if (auto value = node.as_integer()) return std::to_string(value->get());
  if (auto value = node.as_floating_point()) return fmt::format("{}", value->get());
  if (auto list = node.as_array()) {
    std::string all;
    for (const auto& item : *list) {
      auto word = item.as_string();
      if (!word) return fail(Code::invalid, where + ": " + name + ": must be a list of texts");
      all += (all.empty() ? "" : ",") + word->get();
    }
    return all;
  }
  return fail(Code::invalid, where + ": " + name + ": has a value of a kind that no setting takes");
}

Result<void> walk(const toml::table& table, const std::string& prefix, const std::string& where,
                  std::vector<Given>& out) {
  for (const auto& [key, node] : table) {
    std::string name = prefix + std::string(key.str());
    if (const auto* inner = node.as_table()) {
      ISOLA_CHECK(walk(*inner, name + ".", where, out));
      continue;
    }
    ISOLA_TRY(std::string text, text_of(node, name, where));
    out.push_back({name, text, where});
  }
  return {};
}

}  // namespace

Result<std::vector<Given>> parse_settings(std::string_view text, const std::string& where) {
  auto parsed = toml::parse(text);
  if (!parsed)
    return fail(Code::invalid, fmt::format("{}: line {}: {}", where, parsed.error().source().begin.line,
                                           parsed.error().description()));
  std::vector<Given> all;
  ISOLA_CHECK(walk(parsed.table(), "", where, all));
  return all;
}

Result<std::vector<Given>> read_file_settings(const std::string& path) {
  ISOLA_TRY(std::string text, read_file(path));
  return parse_settings(text, path);
}

}  // namespace isola::server
