#include <nlohmann/json.hpp>

#include "cli/register.h"

namespace isola::cli {

Result<nlohmann::json> parse_labels(const std::vector<std::string>& words, const std::string& option) {
  auto labels = nlohmann::json::object();
  for (const auto& word : words) {
    auto equals = word.find('=');
    if (equals == std::string::npos || equals == 0)
      return fail(Code::invalid, option + " " + word + ": write it as NAME=value");
    labels[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return labels;
}

std::string quoted(const std::string& word) {
  constexpr char kPlain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (char c : word) {
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  }
  return out + "'";
}

}  // namespace isola::cli
