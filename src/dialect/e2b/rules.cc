#include "dialect/e2b/rules.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "dialect/e2b/body.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

constexpr size_t kMostNames = 10, kMostHeaders = 20, kLongestValue = 2048, kMostValues = 16 << 10;
constexpr std::string_view kOpens = "${e2b.", kSecret = "${e2b.secrets.", kToken = "${e2b.identity.tokens.";
constexpr const char* kHidden = "***";

// With a line's end in it one header would become two.
bool is_field_value(const std::string& text) {
  return !text.empty() && text.front() != ' ' && text.back() != ' ' && std::ranges::all_of(text, [](char one) {
    auto c = static_cast<unsigned char>(one);
    return c == '\t' || (c >= ' ' && c != 0x7f);
  });
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

// "Bearer ${e2b.secrets.key}": which secret, and what stands around it.
Result<void> read_value(const std::string& name, const std::string& value, sandbox::NetworkGrant& grant) {
  size_t begin = value.find(kOpens);
  if (begin == value.npos) {
    grant.value = std::make_shared<vault::Secret>(value);
    return {};
  }
  if (value.substr(begin).starts_with(kToken))
    return fail(Code::unsupported, "network.rules: workload identity (iam) is not available on this server");
  size_t end = value.find('}', begin);
  if (!value.substr(begin).starts_with(kSecret) || end == value.npos)
    return bad(name, "a placeholder is written ${e2b.secrets.NAME}");
  if (value.find(kOpens, end) != value.npos)
    return fail(Code::unsupported,
                "network.rules: " + log::quoted(name) + ": one header names one secret at most here");
  grant.binding.secret = value.substr(begin + kSecret.size(), end - begin - kSecret.size());
  if (begin > 0 || end + 1 < value.size()) grant.binding.format = value.substr(0, begin) + "{}" + value.substr(end + 1);
  return {};
}

Result<void> read_headers(const json& headers, RuleSet& set, json& shown) {
  if (!headers.is_object()) return bad(set.name, "headers must be an object of strings");
  if (headers.size() > kMostHeaders) return bad(set.name, "has more than 20 headers");
  for (const auto& [field, value] : headers.items()) {
    if (!value.is_string()) return bad(set.name, "the value of " + log::quoted(field) + " must be a string");
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() > kLongestValue || !is_field_value(text))
      return bad(set.name, "the value of " + log::quoted(field) + " cannot stand in a header");
    if (!set.headers.insert(lower(field)).second) return bad(set.name, log::quoted(field) + " is there twice");
    sandbox::NetworkGrant grant;
    grant.binding.names = {set.name};
    grant.binding.place = vault::Place::header;
    grant.binding.field = field;
    ISOLA_CHECK(read_value(set.name, text, grant));
    shown[field] = grant.value ? kHidden : text;
    // The name of a secret is looked up by whoever knows the project.
    vault::Binding checked = grant.binding;
    checked.secret = "x";
    if (auto good = vault::check_binding(checked); !good) return bad(set.name, good.error().message);
    set.grants.push_back(std::move(grant));
  }
  return {};
}

Result<void> read_set(const json& list, RuleSet& set, json& shown) {
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
        ISOLA_CHECK(read_headers(*headers, set, into));
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

Result<Rules> read_rules(const json& rules) {
  Rules out;
  if (!rules.is_object()) return fail(Code::invalid, "network.rules: must be an object");
  if (rules.size() > kMostNames) return fail(Code::invalid, "network.rules: has more than 10 names");
  std::vector<RuleSet> sets;
  for (const auto& [name, list] : rules.items()) {
    RuleSet set{.name = lower(name), .grants = {}, .headers = {}};
    if (std::ranges::any_of(sets, [&](const auto& other) { return other.name == set.name; }))
      return bad(name, "is there twice");
    ISOLA_CHECK(read_set(list, set, out.shown[set.name]));
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
