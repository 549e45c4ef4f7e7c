#include "dialect/native/fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_bound.h"
#include "base/log.h"
#include "base/units.h"
#include "dialect/shared/base64.h"

namespace isola::native {

using nlohmann::json;

Fields::Fields() = default;
Fields::Fields(Fields&&) noexcept = default;
Fields& Fields::operator=(Fields&&) noexcept = default;
Fields::~Fields() = default;

namespace {

// "line 2, column 7" for a byte offset that a parser complained about.
std::string place(std::string_view text, size_t at) {
  size_t line = 1, column = 1;
  for (size_t i = 0; i + 1 < at && i < text.size(); ++i) {
    if (text[i] == '\n')
      ++line, column = 1;
    else
      ++column;
  }
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

}  // namespace

Result<Fields> Fields::parse(std::string_view body) {
  Fields fields;
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) body = "{}";
  ISOLA_CHECK(check_json_bound(body));
  fields.value_ = std::make_unique<json>();
  try {
    *fields.value_ = json::parse(body);
  } catch (const json::parse_error& error) {
    return fail(Code::invalid, "the body is not valid JSON at " + place(body, error.byte));
  } catch (const json::exception&) {
    return fail(Code::invalid, "the body is not valid JSON");
  }
  if (!fields.value_->is_object()) return fail(Code::invalid, "the body must be a JSON object");
  return fields;
}

void Fields::wrong(const char* name, const std::string& why) {
  if (!error_) error_ = Error{Code::invalid, prefix_ + name + ": " + why};
}

bool Fields::has(const char* name) const {
  auto at = value_->find(name);
  return at != value_->end() && !at->is_null();
}

const json* Fields::get(const char* name) {
  used_.emplace_back(name);
  auto at = value_->find(name);
  return at == value_->end() || at->is_null() ? nullptr : &*at;
}

std::optional<std::string> Fields::maybe_text(const char* name) {
  const json* value = get(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) return wrong(name, "must be a string"), std::nullopt;
  return value->get<std::string>();
}

std::string Fields::text(const char* name, std::string otherwise) {
  return maybe_text(name).value_or(std::move(otherwise));
}

std::string Fields::json_text(const char* name) {
  const json* value = get(name);
  if (!value) return {};
  if (!value->is_object()) return wrong(name, "must be an object"), std::string();
  return value->dump(-1, ' ', false, json::error_handler_t::replace);
}

vault::Secret Fields::secret(const char* name, const char* as_base64) {
  const json* text = get(name);
  const json* bytes = get(as_base64);
  if (text && bytes) return wrong(as_base64, "there is a value already"), vault::Secret();
  if (text && !text->is_string()) return wrong(name, "must be a string"), vault::Secret();
  if (bytes && !bytes->is_string()) return wrong(as_base64, "must be a string"), vault::Secret();
  if (text) return vault::Secret(text->get_ref<const std::string&>());
  if (!bytes) return {};
  auto decoded = vault::from_base64(bytes->get_ref<const std::string&>());
  if (!decoded) return wrong(as_base64, "is not base64"), vault::Secret();
  vault::Secret value(*decoded);
  vault::wipe(*decoded);
  return value;
}

namespace {

void wipe_texts(json& value) {
  if (value.is_string()) vault::wipe(value.get_ref<std::string&>());
  if (value.is_structured())
    for (auto& inner : value) wipe_texts(inner);
}

}  // namespace

void Fields::wipe() { wipe_texts(*value_); }

std::optional<double> Fields::number(const char* name, double least, double most) {
  const json* value = get(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) return wrong(name, "must be a number"), std::nullopt;
  double number = value->get<double>();
  if (!(number >= least && number <= most)) return wrong(name, "is out of range"), std::nullopt;
  return number;
}

std::optional<uint64_t> Fields::count(const char* name, uint64_t most) {
  const json* value = get(name);
  if (!value) return std::nullopt;
  if (!value->is_number_unsigned()) return wrong(name, "must be a whole number, zero or more"), std::nullopt;
  auto number = value->get<uint64_t>();
  if (number > most) return wrong(name, "must be at most " + std::to_string(most)), std::nullopt;
  return number;
}

bool Fields::flag(const char* name, bool otherwise) {
  const json* value = get(name);
  if (!value) return otherwise;
  if (!value->is_boolean()) return wrong(name, "must be true or false"), otherwise;
  return value->get<bool>();
}

std::optional<store::Millis> Fields::seconds(const char* name) {
  const json* value = get(name);
  if (!value) return std::nullopt;
  constexpr double kMost = 10.0 * 365 * 24 * 3600;
  if (value->is_number()) {
    double seconds = value->get<double>();
    if (!(seconds >= 0 && seconds <= kMost)) return wrong(name, "must be between 0 and ten years"), std::nullopt;
    return static_cast<store::Millis>(seconds * 1000);
  }
  if (value->is_string()) {
    auto parsed = parse_duration(value->get<std::string>());
    if (parsed && parsed->count() <= kMost * 1000) return parsed->count();
  }
  return wrong(name, "must be a number of seconds, or a text such as \"10m\""), std::nullopt;
}

std::optional<uint64_t> Fields::size(const char* name) {
  const json* value = get(name);
  if (!value) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_string()) {
    auto parsed = parse_size(value->get<std::string>());
    if (parsed) return *parsed;
  }
  return wrong(name, "must be a number of bytes, or a text such as \"512M\""), std::nullopt;
}

std::vector<std::string> Fields::texts(const char* name) {
  const json* value = get(name);
  std::vector<std::string> all;
  if (!value) return all;
  if (!value->is_array()) return wrong(name, "must be a list of strings"), all;
  for (const auto& item : *value) {
    if (!item.is_string()) return wrong(name, "must be a list of strings"), all;
    all.push_back(item.get<std::string>());
  }
  return all;
}

store::Labels Fields::labels(const char* name) {
  const json* value = get(name);
  store::Labels all;
  if (!value) return all;
  if (!value->is_object()) return wrong(name, "must be an object of strings"), all;
  for (const auto& [key, item] : value->items()) {
    if (!item.is_string()) return wrong(name, "the value of " + log::quoted(key) + " must be a string"), all;
    all[key] = item.get<std::string>();
  }
  return all;
}

store::Labels Fields::contents(const char* name) {
  const json* value = get(name);
  store::Labels all;
  if (!value) return all;
  if (!value->is_object()) return wrong(name, "must be an object of contents"), all;
  for (const auto& [key, item] : value->items()) {
    std::optional<std::string> bytes;
    if (item.is_string()) bytes = item.get<std::string>();
    if (item.is_object() && item.size() == 1 && item.contains("base64") && item["base64"].is_string())
      bytes = dialect::from_base64(item["base64"].get_ref<const std::string&>());
    if (!bytes) return wrong(name, log::quoted(key) + " must be a text, or {\"base64\": …}"), all;
    all[key] = std::move(*bytes);
  }
  return all;
}

std::optional<Fields> Fields::object(const char* name) {
  const json* value = get(name);
  if (!value) return std::nullopt;
  if (!value->is_object()) return wrong(name, "must be an object"), std::nullopt;
  Fields inner;
  inner.value_ = std::make_unique<json>(*value);
  inner.prefix_ = prefix_ + name + ".";
  return inner;
}

std::vector<Fields> Fields::objects(const char* name) {
  std::vector<Fields> all;
  const json* value = get(name);
  if (!value) return all;
  if (!value->is_array()) return wrong(name, "must be a list of objects"), std::move(all);
  for (const auto& item : *value) {
    if (!item.is_object()) return wrong(name, "must be a list of objects"), std::move(all);
    Fields inner;
    inner.value_ = std::make_unique<json>(item);
    inner.prefix_ = prefix_ + name + "[" + std::to_string(all.size()) + "].";
    all.push_back(std::move(inner));
  }
  return all;
}

void Fields::adopt(Fields& inner, const char*) {
  auto result = inner.done();
  if (!result && !error_) error_ = result.error();
}

Result<void> Fields::done() {
  if (error_) return std::unexpected(*error_);
  for (const auto& [name, value] : value_->items())
    if (std::ranges::find(used_, name) == used_.end())
      return fail(Code::invalid, "there is no field " + log::quoted(prefix_ + name) + " here");
  return {};
}

}  // namespace isola::native
