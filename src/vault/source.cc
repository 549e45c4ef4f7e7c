#include "vault/source.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/json_bound.h"
#include "vault/signing_keys.h"

namespace isola::vault {

namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 7> kTypes = {"file", "command", "env", "vault-kv", "aws", "jwt", "github-app"};
constexpr size_t kMaxSource = 32 << 10, kMaxWord = 4096, kMaxKey = 16 << 10;
constexpr char kValue = 'v', kSource = 's', kInsideSource = 'i';

std::unexpected<Error> bad_source(std::string message) { return fail(Code::invalid, "source: " + std::move(message)); }

bool is_clean(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
}

// Words of a request line or a header: nothing that could end one.
bool is_word(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

bool is_url(std::string_view url) {
  return (url.starts_with("http://") || url.starts_with("https://")) && is_word(url) &&
         url.find_first_of("?#") == url.npos;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 20 && text.find_first_not_of("0123456789") == text.npos;
}

// One name of GitHub's: a repository without its owner, a permission, its level.
bool is_github_name(std::string_view text) {
  return !text.empty() && text.size() <= 100 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

Result<void> check_github(const Source& source) {
  if (!source.url.empty() && !is_url(source.url))
    return bad_source("\"url\" begins with https:// or http://, and has no '?' and no '#'");
  // An app is named by its number or by its client id.
  if (!is_github_name(source.app_id) || !is_number(source.installation_id))
    return bad_source("github-app wants \"app_id\" and \"installation_id\"");
  if (source.private_key.size() > kMaxKey || source.private_key.find("-----BEGIN ") == std::string::npos)
    return bad_source("\"private_key\" is the app's, as PEM");
  if (source.repositories.size() > 100 || source.permissions.size() > 100) return bad_source("those are too many");
  for (const auto& name : source.repositories)
    if (!is_github_name(name)) return bad_source("\"repositories\" are names without their owner");
  for (const auto& [name, level] : source.permissions)
    if (!is_github_name(name) || !is_github_name(level))
      return bad_source("\"permissions\" are like {\"contents\": \"read\"}");
  return {};
}

Result<void> check(const Source& source) {
  for (const auto* text : {&source.path, &source.name, &source.url, &source.field, &source.token, &source.name_space,
                           &source.region, &source.secret_id, &source.access_key_id, &source.secret_access_key,
                           &source.session_token, &source.audience, &source.app_id, &source.installation_id})
    if (text->size() > kMaxWord || !is_clean(*text))
      return bad_source("a member is too long, or has control characters");
  if (source.ttl < kShortestTtl || source.ttl > kLongestTtl) return bad_source("\"ttl\" is 5 to 86400 seconds");
  switch (source.type) {
    case Source::Type::file:
      if (!source.path.starts_with('/')) return bad_source("\"path\" must be absolute");
      return {};
    case Source::Type::command:
      if (source.argv.empty() || source.argv.size() > 64 || !source.argv[0].starts_with('/'))
        return bad_source("\"argv\" begins with the absolute path of a program");
      for (const auto& word : source.argv)
        if (word.size() > kMaxWord || word.find('\0') != std::string::npos)
          return bad_source("\"argv\" has an odd word");
      return {};
    case Source::Type::env:
      if (source.name.empty() || source.name.find('=') != std::string::npos)
        return bad_source("\"name\" must be a variable's");
      return {};
    case Source::Type::vault_kv:
      if (!is_url(source.url)) return bad_source("\"url\" begins with https:// or http://, and has no '?' and no '#'");
      if (source.path.find('/') == std::string::npos || source.path.starts_with('/') || !is_word(source.path) ||
          source.path.find_first_of("?#%") != std::string::npos || source.path.find("..") != std::string::npos)
        return bad_source("\"path\" is the mount and the secret's path below it: secret/github");
      if (source.field.empty()) return bad_source("\"field\" says which member of the secret is meant");
      if (source.kv_version != 1 && source.kv_version != 2) return bad_source("\"kv_version\" is 1 or 2");
      if (source.token.empty() || !is_word(source.token) || !is_word(source.name_space))
        return bad_source("\"token\" is missing, or not one");
      return {};
    case Source::Type::aws:
      if (!source.url.empty() && !is_url(source.url))
        return bad_source("\"url\" begins with https:// or http://, and has no '?' and no '#'");
      for (const auto* text : {&source.region, &source.secret_id, &source.access_key_id, &source.secret_access_key})
        if (text->empty() || !is_word(*text))
          return bad_source("aws wants \"region\", \"secret_id\", \"access_key_id\" and \"secret_access_key\"");
      if (!is_word(source.session_token)) return bad_source("\"session_token\" is not one");
      if (source.region.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") != std::string::npos)
        return bad_source("\"region\" is not one");
      return {};
    case Source::Type::jwt:
      if (source.lifetime < kShortestLife || source.lifetime > kLongestLife)
        return bad_source("\"lifetime\" is 60 to 3600 seconds");
      return {};
    case Source::Type::github_app: return check_github(source);
  }
  return bad_source("\"type\" is unknown");
}

struct Member {
  const char* key;
  std::string Source::* place;
  bool secret = false;
};

const std::vector<Member>& members_of(Source::Type type) {
  static const std::vector<Member> file = {{"path", &Source::path}}, command = {}, env = {{"name", &Source::name}},
                                   kv = {{"url", &Source::url},
                                         {"path", &Source::path},
                                         {"field", &Source::field},
                                         {"namespace", &Source::name_space},
                                         {"token", &Source::token, true}},
                                   aws = {{"region", &Source::region},
                                          {"secret_id", &Source::secret_id},
                                          {"field", &Source::field},
                                          {"url", &Source::url},
                                          {"access_key_id", &Source::access_key_id},
                                          {"secret_access_key", &Source::secret_access_key, true},
                                          {"session_token", &Source::session_token, true}},
                                   jwt = {{"audience", &Source::audience}},
                                   github = {{"app_id", &Source::app_id},
                                             {"installation_id", &Source::installation_id},
                                             {"url", &Source::url},
                                             {"private_key", &Source::private_key, true}};
  switch (type) {
    case Source::Type::file: return file;
    case Source::Type::command: return command;
    case Source::Type::env: return env;
    case Source::Type::vault_kv: return kv;
    case Source::Type::aws: return aws;
    case Source::Type::jwt: return jwt;
    case Source::Type::github_app: return github;
  }
  return file;
}

json written(const Source& source, bool with_secrets) {
  json out = {{"type", to_string(source.type)}};
  if (!is_minted(source)) out["ttl"] = source.ttl;
  if (source.type == Source::Type::jwt) out["lifetime"] = source.lifetime;
  if (!source.repositories.empty()) out["repositories"] = source.repositories;
  if (!source.permissions.empty()) out["permissions"] = source.permissions;
  for (const auto& member : members_of(source.type))
    if (!(source.*member.place).empty() && (with_secrets || !member.secret)) out[member.key] = source.*member.place;
  if (source.type == Source::Type::command) out["argv"] = source.argv;
  if (source.type == Source::Type::vault_kv) out["kv_version"] = source.kv_version;
  return out;
}

// A member of a JSON object that somebody else made, as text.
Result<Secret> member_of(const json& object, const std::string& field) {
  auto it = object.is_object() ? object.find(field) : object.end();
  if (!object.is_object() || it == object.end())
    return fail(Code::not_found, "the source's answer has no member \"" + field + "\"");
  return Secret(it->is_string() ? it->get_ref<const std::string&>() : it->dump());
}

}  // namespace

std::string_view to_string(Source::Type type) { return kTypes[static_cast<size_t>(type)]; }

bool is_of_machine(const Source& source) {
  return source.type == Source::Type::file || source.type == Source::Type::command || source.type == Source::Type::env;
}

bool is_minted(Source::Type type) { return type == Source::Type::jwt || type == Source::Type::github_app; }
bool is_minted(const Source& source) { return is_minted(source.type); }

Result<Source> parse_source(std::string_view text) {
  if (text.size() > kMaxSource) return bad_source("it is too large");
  ISOLA_CHECK(check_json_bound(text));
  json in = json::parse(text, nullptr, false);
  if (!in.is_object()) return bad_source("it must be a JSON object");
  Source source;
  auto type = in.find("type");
  auto word = type != in.end() && type->is_string() ? type->get<std::string>() : std::string();
  auto known = std::find(kTypes.begin(), kTypes.end(), word);
  if (known == kTypes.end()) return bad_source("\"type\" is file, command, env, vault-kv, aws, jwt or github-app");
  source.type = static_cast<Source::Type>(known - kTypes.begin());
  const auto& members = members_of(source.type);
  for (const auto& [key, value] : in.items()) {
    if (key == "type") continue;
    auto number = [&](auto& into) -> Result<void> {
      if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kLongestTtl)
        return bad_source("\"" + key + "\" must be a number");
      into = value.get<std::remove_reference_t<decltype(into)>>();
      return {};
    };
    auto member = std::find_if(members.begin(), members.end(), [&](const Member& one) { return one.key == key; });
    const bool github = source.type == Source::Type::github_app;
    if (key == "ttl" && !is_minted(source)) {
      ISOLA_CHECK(number(source.ttl));
    } else if (key == "lifetime" && source.type == Source::Type::jwt) {
      ISOLA_CHECK(number(source.lifetime));
    } else if (key == "repositories" && github) {
      if (!value.is_array()) return bad_source("\"repositories\" must be a list of strings");
      for (const auto& one : value) {
        if (!one.is_string()) return bad_source("\"repositories\" must be a list of strings");
        source.repositories.push_back(one.get<std::string>());
      }
    } else if (key == "permissions" && github) {
      if (!value.is_object()) return bad_source("\"permissions\" are like {\"contents\": \"read\"}");
      for (const auto& [name, level] : value.items()) {
        if (!level.is_string()) return bad_source("\"permissions\" are like {\"contents\": \"read\"}");
        source.permissions[name] = level.get<std::string>();
      }
    } else if (key == "kv_version" && source.type == Source::Type::vault_kv) {
      ISOLA_CHECK(number(source.kv_version));
    } else if (key == "argv" && source.type == Source::Type::command) {
      if (!value.is_array()) return bad_source("\"argv\" must be a list of strings");
      for (const auto& one : value) {
        if (!one.is_string()) return bad_source("\"argv\" must be a list of strings");
        source.argv.push_back(one.get<std::string>());
      }
    } else if (member != members.end()) {
      if (!value.is_string()) return bad_source("\"" + key + "\" must be a string");
      source.*member->place = value.get<std::string>();
    } else {
      return bad_source("a " + word + " has no member \"" + key.substr(0, 40) + "\"");
    }
  }
  ISOLA_CHECK(check(source));
  return source;
}

std::string to_json(const Source& source) {
  return written(source, true).dump(-1, ' ', false, json::error_handler_t::replace);
}
std::string to_kept(const Source& source) { return (source.inside ? kInsideSource : kSource) + to_json(source); }

Result<Source> parse_kept(std::string_view text) {
  if (text.empty() || (text[0] != kSource && text[0] != kInsideSource))
    return fail(Code::corrupt, "a sealed secret is neither a value nor a source");
  ISOLA_TRY(Source source, parse_source(text.substr(1)));
  source.inside = text[0] == kInsideSource;
  return source;
}

std::string shown_source(const Source& source) {
  return written(source, false).dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<std::string> seal_value(const PublicKey& key, std::string_view value) {
  if (value.empty() || value.size() > kMaxValue) return fail(Code::invalid, "a secret's value has 1 byte to 16 KiB");
  Secret kept = Secret::of_size(value.size() + 1);
  kept.data()[0] = kValue;
  std::copy(value.begin(), value.end(), kept.data() + 1);
  return seal(key, kept.view());
}

Result<std::string> seal_source(const PublicKey& key, const Source& source) {
  std::string text = to_kept(source);
  auto sealed = seal(key, text);
  wipe(text);
  return sealed;
}

Result<Kept> open_kept(const KeyPair& key, std::string_view sealed) {
  ISOLA_TRY(Secret opened, open_sealed(key, sealed));
  if (opened.empty()) return fail(Code::corrupt, "a sealed secret is empty");
  if (opened.view()[0] == kValue) return Kept{std::nullopt, Secret(opened.view().substr(1))};
  ISOLA_TRY(Source source, parse_kept(opened.view()));
  return Kept{std::move(source), Secret()};
}

Result<Secret> value_in(const Source& source, std::string_view answer) {
  auto fits = [](Secret value) -> Result<Secret> {
    if (value.empty() || value.size() > kMaxValue)
      return fail(Code::invalid, "the source's value is empty, or larger than 16 KiB");
    return value;
  };
  if (is_of_machine(source)) {
    if (answer.ends_with('\n')) answer.remove_suffix(1);
    if (answer.ends_with('\r')) answer.remove_suffix(1);
    return fits(Secret(answer));
  }
  if (is_minted(source)) return fail(Code::internal, "that is made, not fetched");
  ISOLA_CHECK(check_json_bound(answer));
  json in = json::parse(answer, nullptr, false);
  if (!in.is_object()) return fail(Code::corrupt, "the source answered with something that is not JSON");
  if (source.type == Source::Type::vault_kv) {
    auto data = in.find("data");
    if (data == in.end()) return fail(Code::not_found, "the source's answer has no \"data\"");
    if (source.kv_version == 1) {
      ISOLA_TRY(Secret value, member_of(*data, source.field));
      return fits(std::move(value));
    }
    auto inner = data->is_object() ? data->find("data") : data->end();
    if (!data->is_object() || inner == data->end())
      return fail(Code::not_found, "the source's answer has no \"data\" of a second version");
    ISOLA_TRY(Secret value, member_of(*inner, source.field));
    return fits(std::move(value));
  }
  std::string text;
  if (auto whole = in.find("SecretString"); whole != in.end() && whole->is_string()) {
    text = whole->get<std::string>();
  } else if (auto bytes = in.find("SecretBinary"); bytes != in.end() && bytes->is_string()) {
    ISOLA_TRY(text, from_base64(bytes->get_ref<const std::string&>()));
  } else {
    return fail(Code::not_found, "the source's answer has no \"SecretString\"");
  }
  auto take = [&]() -> Result<Secret> {
    if (source.field.empty()) return fits(Secret(text));
    ISOLA_CHECK(check_json_bound(text));
    ISOLA_TRY(Secret value, member_of(json::parse(text, nullptr, false), source.field));
    return fits(std::move(value));
  };
  auto value = take();
  wipe(text);
  return value;
}

}  // namespace isola::vault
