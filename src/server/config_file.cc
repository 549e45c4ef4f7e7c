// The TOML side of config.h (a header-only parser: heavy, so in one file alone).
#define TOML_EXCEPTIONS 0
#include <fmt/format.h>
// Of the library's own assertions one fails on "[\n\n@", where the parser goes on to a proper error.
#define TOML_ASSERT(expression) static_cast<void>(0)
#include <toml++/toml.h>

#include "base/file.h"
#include "server/config.h"

namespace isola::server {

namespace {

// The library does not look well at characters beyond ASCII: they are welcome in comments, which it does not get to
// see, and are written \u20ac elsewhere.
Result<std::string> only_ascii(std::string_view text, const std::string& where) {
  std::string out(text);
  int line = 1;
  char within = 0;  // the quote that is open, or # for a comment
  for (size_t i = 0; i < out.size(); ++i) {
    char& c = out[i];
    const bool odd = static_cast<unsigned char>(c) >= 0x80;
    if (odd && within != '#')
      return fail(Code::invalid,
                  fmt::format("{}: line {}: only ASCII outside of comments (in strings: \\u20ac)", where, line));
    if (odd)
      c = '?';
    else if (c == '\n')
      ++line, within = 0;
    else if (within == 0 && (c == '"' || c == '\'' || c == '#'))
      within = c;
    else if (within == '"' && c == '\\' && i + 1 < out.size() && out[i + 1] == '"')
      ++i;
    else if (within == c && c != '#')
      within = 0;
  }
  return out;
}

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
  ISOLA_TRY(std::string plain, only_ascii(text, where));
  auto parsed = toml::parse(plain);
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
