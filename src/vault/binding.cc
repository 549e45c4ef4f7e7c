#include "vault/binding.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json_bound.h"

namespace isola::vault {

namespace {

using nlohmann::json;

constexpr size_t kMaxText = 64 << 10, kMaxNames = 64, kMaxMethods = 16, kMaxField = 256, kMaxPath = 1024;
constexpr std::array<std::string_view, 5> kPlaces = {"bearer", "basic", "header", "query", "sigv4"};

// What carries the message itself, or says whom it is for, is not a place for a credential.
constexpr std::array<std::string_view, 14> kNotHeaders = {
    "host",    "content-length", "transfer-encoding",   "connection",       "keep-alive",   "te",    "trailer",
    "upgrade", "expect",         "proxy-authorization", "proxy-connection", "content-type", "range", "via"};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_visible(char c) { return c > 0x20 && c < 0x7f; }
bool is_token_char(char c) {
  return is_letter(c) || is_digit(c) || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}
bool is_plain(char c) { return is_letter(c) || is_digit(c) || c == '-' || c == '_' || c == '.'; }

template <typename Test>
bool all(std::string_view text, Test test) {
  return std::all_of(text.begin(), text.end(), test);
}

std::unexpected<Error> bad(std::string message) { return fail(Code::invalid, "a binding's " + std::move(message)); }

Result<void> check_name(std::string_view name) {
  std::string_view bare = name.starts_with("*.") ? name.substr(2) : name;
  const bool fits = !bare.empty() && bare.size() <= 253 && bare.find('.') != std::string_view::npos &&
                    all(bare, [](char c) { return is_plain(c) && !(c >= 'A' && c <= 'Z'); }) && bare.front() != '.' &&
                    bare.back() != '.' && bare.find("..") == std::string_view::npos;
  if (!fits)
    return bad("\"names\" are host names in lower case (api.example.org, *.example.net), not \"" +
               std::string(name.substr(0, 80)) + "\"");
  return {};
}

Result<void> check_ports(std::string_view ports) {
  auto number = [](std::string_view text) {
    unsigned value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= 65535 ? value : 0;
  };
  size_t at = 0;
  while (at <= ports.size() && !ports.empty()) {
    size_t comma = std::min(ports.find(',', at), ports.size());
    auto part = ports.substr(at, comma - at);
    size_t dash = part.find('-');
    unsigned from = number(part.substr(0, dash));
    unsigned to = dash == std::string_view::npos ? from : number(part.substr(dash + 1));
    if (from == 0 || to < from) return bad("\"ports\" are like 443 or 443,8000-8100");
    at = comma + 1;
  }
  return {};
}

Result<void> check_place(const Binding& binding) {
  const auto& field = binding.field;
  if (field.size() > kMaxField || binding.format.size() > kMaxField) return bad("\"field\" or \"format\" is too long");
  if (!binding.format.empty()) {
    if (binding.place != Place::header) return bad("\"format\" goes with the place \"header\" alone");
    if (!all(binding.format, [](char c) { return c == ' ' || is_visible(c); }) || binding.format.front() == ' ' ||
        binding.format.back() == ' ')
      return bad("\"format\" has a character that a header cannot have");
    auto hole = binding.format.find("{}");
    if (hole == std::string::npos || binding.format.find("{}", hole + 2) != std::string::npos)
      return bad("\"format\" names the value once, as {}");
  }
  switch (binding.place) {
    case Place::bearer:
      if (!field.empty()) return bad("place \"bearer\" takes no \"field\"");
      return {};
    case Place::basic:
      if (field.empty() || !all(field, [](char c) { return c != ':' && is_visible(c); }))
        return bad("place \"basic\" wants the user as \"field\"");
      return {};
    case Place::header: {
      if (field.empty() || !all(field, is_token_char))
        return bad("place \"header\" wants the header's name as \"field\"");
      std::string lower = field;
      std::transform(lower.begin(), lower.end(), lower.begin(),
                     [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
      if (std::find(kNotHeaders.begin(), kNotHeaders.end(), lower) != kNotHeaders.end())
        return bad("\"field\" cannot be the header " + field);
      return {};
    }
    case Place::query:
      if (field.empty() || !all(field, [](char c) { return is_plain(c) || c == '~'; }))
        return bad("place \"query\" wants the parameter's name as \"field\"");
      return {};
    case Place::sigv4: {
      auto slash = field.find('/');
      if (slash == std::string::npos || slash == 0 || slash + 1 == field.size() ||
          !all(field.substr(0, slash), is_plain) || !all(field.substr(slash + 1), is_plain))
        return bad("place \"sigv4\" wants \"region/service\" as \"field\"");
      return {};
    }
  }
  return bad("\"place\" is unknown");
}

Result<void> check_path(std::string_view path) {
  if (path.empty()) return {};
  bool fits = path.size() <= kMaxPath && path[0] == '/' &&
              all(path, [](char c) { return is_visible(c) && c != '?' && c != '#' && c != '\\' && c != '%'; });
  // A prefix that another spelling of the path could pass by is no limit.
  for (std::string_view odd : {"//", "/./", "/../"}) fits = fits && path.find(odd) == std::string_view::npos;
  if (!fits || path.ends_with("/.") || path.ends_with("/.."))
    return bad("\"path_prefix\" begins with / and has no escapes, dots or double slashes as its parts");
  return {};
}

Result<void> check(const Binding& binding) {
  if (!is_secret_name(binding.secret)) return bad("\"secret\" must be the name of one");
  if (binding.names.empty() || binding.names.size() > kMaxNames) return bad("\"names\" are 1 to 64 host names");
  for (const auto& name : binding.names) ISOLA_CHECK(check_name(name));
  ISOLA_CHECK(check_ports(binding.ports));
  if (binding.methods.size() > kMaxMethods) return bad("\"methods\" are too many");
  for (const auto& method : binding.methods)
    if (method.empty() || method.size() > 32 || method == "CONNECT" ||
        !all(method, [](char c) { return (c >= 'A' && c <= 'Z') || c == '-'; }))
      return bad("\"methods\" are like GET or POST");
  ISOLA_CHECK(check_path(binding.path_prefix));
  ISOLA_CHECK(check_place(binding));
  if (!binding.placeholder.empty() &&
      (binding.placeholder.size() < 12 || binding.placeholder.size() > 256 || !all(binding.placeholder, is_plain)))
    return bad("\"placeholder\" has 12 to 256 letters, digits, '-', '_' and '.'");
  if (binding.audience.size() > 512 || !all(binding.audience, is_visible)) return bad("\"audience\" is none");
  if (binding.expires < 0) return bad("\"expires\" cannot be negative");
  if (binding.id.size() > 64 || !all(binding.id, is_plain)) return bad("\"id\" is none");
  if (binding.actor.size() > 256) return bad("\"actor\" is too long");
  return {};
}

Result<void> take(const json& value, std::string_view key, std::string& into) {
  if (!value.is_string()) return bad("\"" + std::string(key) + "\" must be a string");
  into = value.get<std::string>();
  return {};
}

Result<void> take(const json& value, std::string_view key, std::vector<std::string>& into) {
  if (!value.is_array()) return bad("\"" + std::string(key) + "\" must be a list of strings");
  for (const auto& one : value) ISOLA_CHECK(take(one, key, into.emplace_back()));
  return {};
}

Result<void> take(const json& value, std::string_view key, int64_t& into) {
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX))
    return bad("\"" + std::string(key) + "\" must be a number of milliseconds since 1970");
  into = value.get<int64_t>();
  return {};
}

Result<Binding> read(const json& in) {
  if (!in.is_object()) return fail(Code::invalid, "a binding must be a JSON object");
  Binding out;
  std::optional<bool> everywhere;
  for (const auto& [key, value] : in.items()) {
    if (key == "id") {
      ISOLA_CHECK(take(value, key, out.id));
    } else if (key == "secret") {
      ISOLA_CHECK(take(value, key, out.secret));
    } else if (key == "names") {
      ISOLA_CHECK(take(value, key, out.names));
    } else if (key == "ports") {
      ISOLA_CHECK(take(value, key, out.ports));
    } else if (key == "methods") {
      ISOLA_CHECK(take(value, key, out.methods));
    } else if (key == "path_prefix") {
      ISOLA_CHECK(take(value, key, out.path_prefix));
    } else if (key == "place") {
      std::string word;
      ISOLA_CHECK(take(value, key, word));
      ISOLA_TRY(out.place, parse_place(word));
    } else if (key == "field") {
      ISOLA_CHECK(take(value, key, out.field));
    } else if (key == "format") {
      ISOLA_CHECK(take(value, key, out.format));
    } else if (key == "placeholder") {
      ISOLA_CHECK(take(value, key, out.placeholder));
    } else if (key == "placeholder_everywhere") {
      if (!value.is_boolean()) return bad("\"placeholder_everywhere\" is true or false");
      everywhere = value.get<bool>();
    } else if (key == "scan") {
      std::string word;
      ISOLA_CHECK(take(value, key, word));
      if (word != "redact" && word != "block") return bad("\"scan\" is redact or block");
      out.blocks = word == "block";
    } else if (key == "expires") {
      ISOLA_CHECK(take(value, key, out.expires));
    } else if (key == "actor") {
      ISOLA_CHECK(take(value, key, out.actor));
    } else if (key == "audience") {
      ISOLA_CHECK(take(value, key, out.audience));
    } else if (key == "unsearched") {
      if (!value.is_boolean()) return bad("\"unsearched\" is true or false");
      out.unsearched = value.get<bool>();
    } else {
      return fail(Code::invalid, "a binding has an unknown member \"" + key.substr(0, 40) + "\"");
    }
  }
  if (everywhere.value_or(false) && out.placeholder.empty())
    return bad("\"placeholder_everywhere\" needs a placeholder");
  out.unguarded = !out.placeholder.empty() && !everywhere.value_or(true);
  ISOLA_CHECK(check(out));
  return out;
}

}  // namespace

std::string_view to_string(Place place) { return kPlaces[static_cast<size_t>(place)]; }

Result<Place> parse_place(std::string_view word) {
  auto it = std::find(kPlaces.begin(), kPlaces.end(), word);
  if (it == kPlaces.end()) return bad("\"place\" is bearer, basic, header, query or sigv4");
  return static_cast<Place>(it - kPlaces.begin());
}

bool stands_in_header(Place place) { return place == Place::bearer || place == Place::header || place == Place::sigv4; }

bool is_secret_name(std::string_view name) {
  return !name.empty() && name.size() <= 63 && (is_letter(name[0]) || is_digit(name[0])) && all(name, is_plain);
}

Binding without_value(Binding binding) {
  binding.sealed.clear();
  binding.identity.clear();
  binding.until = binding.due = 0;
  binding.serial.clear();
  binding.mark.clear();
  binding.print.clear();
  return binding;
}

Result<void> check_binding(const Binding& binding) { return check(binding); }

Result<Binding> parse_binding(std::string_view text) {
  if (text.size() > kMaxText) return fail(Code::invalid, "the binding is too large");
  ISOLA_CHECK(check_json_bound(text));
  json in = json::parse(text, nullptr, false);
  if (in.is_discarded()) return fail(Code::invalid, "the binding is not JSON");
  return read(in);
}

std::string to_json(const Binding& binding) {
  json out = {{"secret", binding.secret}, {"names", binding.names}, {"place", to_string(binding.place)}};
  auto put = [&](const char* key, const std::string& value) {
    if (!value.empty()) out[key] = value;
  };
  put("id", binding.id);
  put("ports", binding.ports);
  if (!binding.methods.empty()) out["methods"] = binding.methods;
  put("path_prefix", binding.path_prefix);
  put("field", binding.field);
  put("format", binding.format);
  put("placeholder", binding.placeholder);
  if (!binding.placeholder.empty()) out["placeholder_everywhere"] = !binding.unguarded;
  if (binding.blocks) out["scan"] = "block";
  put("audience", binding.audience);
  if (binding.expires != 0) out["expires"] = binding.expires;
  if (binding.unsearched) out["unsearched"] = true;
  put("actor", binding.actor);
  // Texts of strangers (an actor) may not be UTF-8: then they are shown as well as they can be.
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace isola::vault
