#include "dialect/e2b/rules.h"

#include <algorithm>
#include <set>

#include "base/field_value.h"
#include "base/log.h"
#include "dialect/e2b/body.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

constexpr size_t kMostTokens = 20, kLongestToken = 128;
constexpr size_t kMostNames = 10, kMostHeaders = 20, kLongestValue = 2048, kMostValues = 16 << 10;
constexpr std::string_view kOpens = "${e2b.", kSecret = "${e2b.secrets.", kToken = "${e2b.identity.tokens.";
constexpr const char* kHidden = "***";

// As it is written here: blanks around it would be lost on the way.
bool stands_as_written(const std::string& text) {
  return !text.empty() && text.front() != ' ' && text.back() != ' ' && is_field_value(text);
}

std::unexpected<Error> bad(const std::string& name, const std::string& what) {
  return fail(Code::invalid, "network.rules: " + log::quoted(name) + ": " + what);
}

// One name and its headers.
struct RuleSet {
  std::string name;
  std::vector<sandbox::NetworkGrant> grants;
  std::set<std::string> headers;  // in lower case

  bool is_wide() const { return name.starts_with("*."); }
  // Every name that the other one is for, too.
  bool covers(const RuleSet& other) const {
    return is_wide() && other.name != name && other.name.ends_with(std::string_view(name).substr(1));
  }
};

// "Bearer ${e2b.secrets.key}": which secret or token, and what stands around it.
Result<void> read_value(const std::string& name, const std::string& value, const Identities& identities,
                        sandbox::NetworkGrant& grant) {
  size_t begin = value.find(kOpens);
  if (begin == value.npos) {
    grant.value = std::make_shared<vault::Secret>(value);
    return {};
  }
  const bool token = value.substr(begin).starts_with(kToken);
  const auto opens = token ? kToken : kSecret;
  size_t end = value.find('}', begin);
  if (!value.substr(begin).starts_with(opens) || end == value.npos)
    return bad(name, "a placeholder is written ${e2b.secrets.NAME} or ${e2b.identity.tokens.NAME}");
  if (value.find(kOpens, end) != value.npos)
    return fail(Code::unsupported,
                "network.rules: " + log::quoted(name) + ": one header names one secret at most here");
  const std::string word = value.substr(begin + opens.size(), end - begin - opens.size());
  if (token) {
    auto identity = identities.find(word);
    if (identity == identities.end()) return bad(name, "iam.tokens has no " + log::quoted(word));
    grant.identity = true;
    grant.binding.audience = identity->second;
  } else {
    grant.binding.secret = word;
  }
  if (begin > 0 || end + 1 < value.size()) grant.binding.format = value.substr(0, begin) + "{}" + value.substr(end + 1);
  return {};
}

Result<void> read_headers(const json& headers, const Identities& identities, RuleSet& set, json& shown) {
  if (!headers.is_object()) return bad(set.name, "headers must be an object of strings");
  if (headers.size() > kMostHeaders) return bad(set.name, "has more than 20 headers");
  for (const auto& [field, value] : headers.items()) {
    if (!value.is_string()) return bad(set.name, "the value of " + log::quoted(field) + " must be a string");
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() > kLongestValue || !stands_as_written(text))
      return bad(set.name, "the value of " + log::quoted(field) + " cannot stand in a header");
    if (!set.headers.insert(lower(field)).second) return bad(set.name, log::quoted(field) + " is there twice");
    sandbox::NetworkGrant grant;
    grant.binding.names = {set.name};
    grant.binding.place = vault::Place::header;
    grant.binding.field = field;
    ISOLA_CHECK(read_value(set.name, text, identities, grant));
    shown[field] = grant.value ? kHidden : text;
    // The name of a secret is looked up by whoever knows the project.
    vault::Binding checked = grant.binding;
    checked.secret = "x";
    if (auto good = vault::check_binding(checked); !good) return bad(set.name, good.error().message);
    set.grants.push_back(std::move(grant));
  }
  return {};
}

Result<void> read_set(const json& list, const Identities& identities, RuleSet& set, json& shown) {
  if (!list.is_array()) return bad(set.name, "must be a list of rules");
  if (list.size() > 1) return bad(set.name, "has more than one rule");
  shown = json::array();
  for (const auto& rule : list) {
    if (!rule.is_object()) return bad(set.name, "a rule must be an object");
    json out = json::object();
    if (auto transform = rule.find("transform"); transform != rule.end() && !transform->is_null()) {
      if (!transform->is_object()) return bad(set.name, "transform must be an object");
      out["transform"] = json::object();
      if (auto headers = transform->find("headers"); headers != transform->end() && !headers->is_null()) {
        json& into = out["transform"]["headers"] = json::object();
        ISOLA_CHECK(read_headers(*headers, identities, set, into));
      }
    }
    shown.push_back(std::move(out));
  }
  return {};
}

}  // namespace

bool Rules::name_secrets() const {
  return std::ranges::any_of(grants, [](const auto& grant) { return !grant.value; });
}

Result<Identities> read_identities(const json& iam) {
  Identities out;
  auto wrong = [](const std::string& what) { return fail(Code::invalid, "iam: " + what); };
  if (!iam.is_object()) return wrong("must be an object");
  auto tokens = iam.find("tokens");
  if (tokens == iam.end() || tokens->is_null()) return out;
  if (!tokens->is_object()) return wrong("tokens must be an object");
  if (tokens->size() > kMostTokens) return wrong("more than 20 tokens");
  for (const auto& [name, token] : tokens->items()) {
    auto is_odd = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '{' || c == '}' || c == 0x7f; };
    if (name.empty() || name.size() > kLongestToken || std::ranges::any_of(name, is_odd))
      return wrong("a token's name is empty, too long, or holds braces or control characters");
    if (!token.is_object()) return wrong("a token must be an object");
    ISOLA_TRY(std::string type, text(token, "tokenType"));
    ISOLA_TRY(out[name], text(token, "audience"));
    if (type != "JWT-SVID") return fail(Code::unsupported, "iam: tokens are of the type JWT-SVID here");
    vault::Binding checked{.secret = "x", .names = {"x.example"}};
    checked.audience = out[name];
    if (checked.audience.empty() || !vault::check_binding(checked))
      return wrong("the audience of " + log::quoted(name) + " is none");
  }
  return out;
}

Result<Rules> read_rules(const json& rules, const Identities& identities) {
  Rules out;
  if (!rules.is_object()) return fail(Code::invalid, "network.rules: must be an object");
  if (rules.size() > kMostNames) return fail(Code::invalid, "network.rules: has more than 10 names");
  std::vector<RuleSet> sets;
  for (const auto& [name, list] : rules.items()) {
    RuleSet set{.name = lower(name), .grants = {}, .headers = {}};
    if (std::ranges::any_of(sets, [&](const auto& other) { return other.name == set.name; }))
      return bad(name, "is there twice");
    ISOLA_CHECK(read_set(list, identities, set, out.shown[set.name]));
    sets.push_back(std::move(set));
  }
  std::ranges::sort(sets, [](const RuleSet& a, const RuleSet& b) {
    if (a.is_wide() != b.is_wide()) return !a.is_wide();
    return a.name.size() != b.name.size() ? a.name.size() > b.name.size() : a.name < b.name;
  });
  // There the narrower one alone counts. The gate takes, for each header, the first that fits: that is the same where
  // the narrower one has all of the wider one's headers.
  for (const auto& wide : sets)
    for (const auto& narrow : sets)
      if (wide.covers(narrow) && !std::ranges::includes(narrow.headers, wide.headers))
        return fail(Code::unsupported, "network.rules: " + log::quoted(narrow.name) + " is also meant by " +
                                           log::quoted(wide.name) + ", and has to say all of its headers here");
  // As much as the gate searches answers for.
  size_t bytes = 0;
  for (auto& set : sets)
    for (auto& grant : set.grants) {
      if (grant.value) bytes += grant.value->size();
      out.grants.push_back(std::move(grant));
    }
  if (bytes > kMostValues) return fail(Code::invalid, "network.rules: the values have more than 16 KiB together");
  return out;
}

}  // namespace isola::e2b
