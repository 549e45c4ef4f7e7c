#include "interpreter/events.h"

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text_feed.h"
#include "interpreter/bounds.h"

namespace isola::interpreter {

using nlohmann::json;

namespace {

constexpr size_t kMostWords = 2000;  // of a failure or an end, in bytes

enum class Kind { text, words, flag, number, object, lines, status };
struct Field {
  const char* name;
  Kind kind;
};

const std::vector<Field>* fields_of(const std::string& type) {
  static const std::vector<Field> kText = {{"text", Kind::text}};
  static const std::vector<Field> kResult = {{"main", Kind::flag},
                                             {"data", Kind::object},
                                             {"metadata", Kind::object},
                                             {"display_id", Kind::words},
                                             {"omitted_bytes", Kind::object}};
  static const std::map<std::string, std::vector<Field>> kFields = {
      {"start", {{"context", Kind::words}, {"language", Kind::words}}},
      {"stdout", kText},
      {"stderr", kText},
      {"result", kResult},
      {"display_update", kResult},
      {"clear", {{"wait", Kind::flag}}},
      {"error", {{"name", Kind::text}, {"value", Kind::text}, {"traceback", Kind::lines}}},
      {"truncated", {{"limit_bytes", Kind::number}}},
      {"lost", {{"message", Kind::words}}},
      {"end",
       {{"status", Kind::status},
        {"message", Kind::words},
        {"execution_count", Kind::number},
        {"duration_ms", Kind::number},
        {"dropped_bytes", Kind::number}}}};
  auto found = kFields.find(type);
  return found == kFields.end() ? nullptr : &found->second;
}

bool is_status(const json& value) {
  if (!value.is_string()) return false;
  for (const char* known : {"ok", "error", "timeout", "interrupted", "kernel_died"})
    if (value.get_ref<const std::string&>() == known) return true;
  return false;
}

bool is_of(const json& value, Kind kind) {
  switch (kind) {
    case Kind::text:
    case Kind::words: return value.is_string();
    case Kind::flag: return value.is_boolean();
    case Kind::number: return value.is_number_unsigned();
    case Kind::object: return value.is_object();
    case Kind::lines: return value.is_array();
    case Kind::status: return is_status(value);
  }
  return false;
}

}  // namespace

Result<json> parse_line(std::string_view text) {
  if (auto bound = check_json_bound(text, kLineBound); !bound)
    return fail(Code::corrupt,
                "the interpreter inside sent something that is nested too deeply or has too many values");
  json line = json::parse(text, nullptr, false);
  if (!line.is_object()) return fail(Code::corrupt, "the interpreter inside sent something malformed");
  return line;
}

std::optional<json> event_of(json line) {
  auto type = line.find("type");
  if (type == line.end() || !type->is_string()) return std::nullopt;
  const auto* fields = fields_of(type->get_ref<const std::string&>());
  if (!fields) return std::nullopt;
  json out = {{"type", *type}};
  for (const auto& [name, kind] : *fields) {
    auto found = line.find(name);
    if (found == line.end() || !is_of(*found, kind)) continue;
    if (kind == Kind::words && found->get_ref<const std::string&>().size() > kMostWords)
      out[name] = found->get_ref<const std::string&>().substr(0, kMostWords);
    else
      out[name] = std::move(*found);
    if (kind == Kind::lines)
      std::erase_if(out[name].get_ref<json::array_t&>(), [](const json& one) { return !one.is_string(); });
  }
  if (out["type"] == "end" && !out.contains("status")) out["status"] = "error";
  return out;
}

Error failure_of(const json& line) {
  auto text = [&line](const char* name) {
    auto found = line.find(name);
    return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  Error error{Code::internal, "the interpreter inside failed"};
  if (std::string said = text("message"); !said.empty()) {
    TextFeed feed(Clean::yes);
    said = feed.feed(said.substr(0, kMostWords));
    error.message = "the interpreter inside says: " + said + feed.finish();
  }
  for (Code code : {Code::invalid, Code::not_found, Code::unsupported, Code::exhausted})
    if (to_string(code) == text("code")) error.code = code;
  return error;
}

}  // namespace isola::interpreter
