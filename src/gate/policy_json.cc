// The JSON form of a policy, both ways.
#include <nlohmann/json.hpp>

#include "gate/policy.h"

namespace isola::gate {

namespace {

using nlohmann::json;

Result<void> only(const json& object, std::initializer_list<std::string_view> keys, std::string_view what) {
  if (!object.is_object()) return fail(Code::invalid, std::string(what) + " must be a JSON object");
  for (const auto& [key, value] : object.items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      return fail(Code::invalid, std::string(what) + " has an unknown member \"" + key.substr(0, 40) + "\"");
  return {};
}

Result<std::string> text_of(const json& object, const char* key, const char* otherwise) {
  auto it = object.find(key);
  if (it == object.end() && otherwise) return otherwise;
  if (it == object.end() || !it->is_string())
    return fail(Code::invalid, std::string("\"") + key + "\" must be a string");
  return it->get<std::string>();
}

Result<bool> flag_of(const json& object, const char* key) {
  auto it = object.find(key);
  if (it == object.end()) return false;
  if (!it->is_boolean()) return fail(Code::invalid, std::string("\"") + key + "\" must be true or false");
  return it->get<bool>();
}

Result<std::vector<std::string>> list_of(const json& object, const char* key) {
  std::vector<std::string> out;
  auto it = object.find(key);
  if (it == object.end()) return out;
  if (!it->is_array()) return fail(Code::invalid, std::string("\"") + key + "\" must be a list of strings");
  for (const auto& one : *it) {
    if (!one.is_string()) return fail(Code::invalid, std::string("\"") + key + "\" must be a list of strings");
    out.push_back(one.get<std::string>());
  }
  return out;
}

template <typename T>
Result<void> read_limit(const json& object, const char* key, T& value) {
  auto it = object.find(key);
  if (it == object.end()) return {};
  if (!it->is_number_unsigned() || it->get<uint64_t>() > std::numeric_limits<T>::max())
    return fail(Code::invalid, std::string("\"") + key + "\" must be a number, not negative");
  value = it->get<T>();
  return {};
}

Result<Policy> read(const json& in) {
  Policy policy;
  ISOLA_CHECK(only(in, {"default", "rules", "limits", "learn"}, "a policy"));
  ISOLA_TRY(std::string otherwise, text_of(in, "default", "deny"));
  if (otherwise != "allow" && otherwise != "deny")
    return fail(Code::invalid, "\"default\" must be \"allow\" or \"deny\"");
  policy.otherwise = otherwise == "allow" ? Action::allow : Action::deny;
  ISOLA_TRY(policy.learn, flag_of(in, "learn"));
  if (auto rules = in.find("rules"); rules != in.end()) {
    if (!rules->is_array()) return fail(Code::invalid, "\"rules\" must be a list");
    if (rules->size() > kMaxRules) return fail(Code::invalid, "a policy has at most 4096 rules");
    for (const auto& one : *rules) {
      ISOLA_CHECK(only(one, {"action", "to", "ports", "local", "methods", "paths"}, "a rule"));
      ISOLA_TRY(std::string action, text_of(one, "action", nullptr));
      ISOLA_TRY(std::string to, text_of(one, "to", nullptr));
      ISOLA_TRY(std::string ports, text_of(one, "ports", ""));
      ISOLA_TRY(bool local, flag_of(one, "local"));
      ISOLA_TRY(Rule rule, make_rule(action, to, ports, local));
      ISOLA_TRY(auto methods, list_of(one, "methods"));
      ISOLA_TRY(auto paths, list_of(one, "paths"));
      ISOLA_CHECK(set_requests(rule, std::move(methods), std::move(paths)));
      policy.rules.push_back(std::move(rule));
    }
  }
  if (auto limits = in.find("limits"); limits != in.end()) {
    ISOLA_CHECK(only(*limits, {"connections", "connections_per_second", "bytes_per_second"}, "\"limits\""));
    ISOLA_CHECK(read_limit(*limits, "connections", policy.limits.connections));
    ISOLA_CHECK(read_limit(*limits, "connections_per_second", policy.limits.connections_per_second));
    ISOLA_CHECK(read_limit(*limits, "bytes_per_second", policy.limits.bytes_per_second));
  }
  return policy;
}

}  // namespace

Result<Policy> parse_policy_json(std::string_view text) {
  if (text.size() > 4 * kMaxPolicyText) return fail(Code::invalid, "the policy is too large");
  json in = json::parse(text, nullptr, false);
  if (in.is_discarded()) return fail(Code::invalid, "the policy is not JSON");
  return read(in);
}

std::string to_json(const Policy& policy) {
  json rules = json::array();
  for (const auto& rule : policy.rules) {
    // The text form has the parts: action, target with ports, mark.
    Rule bare = rule;
    bare.ports = {};
    bare.local = false;
    bare.methods.clear(), bare.paths.clear();
    std::string words = to_text(bare), with_ports = to_text(Rule{.action = rule.action, .ports = rule.ports});
    std::string to = words.substr(words.find(' ') + 1);
    if (to.starts_with('[')) to = to.substr(1, to.size() - 2);
    json one = {{"action", rule.action == Action::allow ? "allow" : "deny"}, {"to", to}};
    if (!rule.ports.all()) one["ports"] = with_ports.substr(with_ports.find(':') + 1);
    if (rule.local) one["local"] = true;
    if (!rule.methods.empty()) one["methods"] = rule.methods;
    if (!rule.paths.empty()) one["paths"] = rule.paths;
    rules.push_back(std::move(one));
  }
  return json{{"default", policy.otherwise == Action::allow ? "allow" : "deny"},
              {"rules", std::move(rules)},
              {"limits",
               {{"connections", policy.limits.connections},
                {"connections_per_second", policy.limits.connections_per_second},
                {"bytes_per_second", policy.limits.bytes_per_second}}},
              {"learn", policy.learn}}
      .dump();
}

}  // namespace isola::gate
