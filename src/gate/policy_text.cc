// The text form of a policy, both ways.
#include <algorithm>
#include <charconv>

#include "base/units.h"
#include "gate/name.h"
#include "gate/policy.h"
#include "gate/request_path.h"

namespace isola::gate {

namespace {

std::vector<std::string_view> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> out;
  for (size_t at = 0; (at = line.find_first_not_of(" \t\r", at)) != std::string_view::npos;) {
    size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    out.push_back(line.substr(at, end - at));
    at = end;
  }
  return out;
}

// As it stands in an error: nothing that could disturb a terminal or a log.
std::string shown(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 80)) out += c >= ' ' && c < 0x7f ? c : '?';
  return "'" + out + "'";
}

Result<uint16_t> parse_port(std::string_view text) {
  uint16_t port = 0;
  auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (bad != std::errc() || end != text.data() + text.size() || port == 0)
    return fail(Code::invalid, shown(text) + " is not a port (1 to 65535)");
  return port;
}

Result<Ports> parse_ports(std::string_view text) {
  Ports out;
  if (text.empty()) return out;
  for (;;) {
    size_t comma = text.find(',');
    auto item = text.substr(0, comma);
    size_t dash = item.find('-');
    ISOLA_TRY(uint16_t first, parse_port(item.substr(0, dash)));
    uint16_t last = first;
    if (dash != std::string_view::npos) {
      ISOLA_TRY(last, parse_port(item.substr(dash + 1)));
    }
    if (last < first) return fail(Code::invalid, "a range of ports runs backwards: " + shown(item));
    out.ranges.emplace_back(first, last);
    if (out.ranges.size() > 64) return fail(Code::invalid, "a rule has more than 64 port ranges");
    if (comma == std::string_view::npos) return out;
    text.remove_prefix(comma + 1);
  }
}

std::string to_text(const Ports& ports) {
  std::string out;
  for (const auto& [first, last] : ports.ranges) {
    out += (out.empty() ? "" : ",") + std::to_string(first);
    if (last != first) out += "-" + std::to_string(last);
  }
  return out;
}

// "name:ports", "[network6]:ports", "network" → what, and the ports' text.
Result<std::pair<std::string_view, std::string_view>> split_ports(std::string_view word) {
  if (word.starts_with('[')) {
    size_t close = word.find(']');
    if (close == std::string_view::npos) return fail(Code::invalid, "a bracket is not closed: " + shown(word));
    auto rest = word.substr(close + 1);
    if (!rest.empty() && (!rest.starts_with(':') || rest.size() == 1))
      return fail(Code::invalid, "after a bracket comes ':' and ports: " + shown(word));
    return std::pair(word.substr(1, close - 1), rest.empty() ? rest : rest.substr(1));
  }
  size_t colon = word.find(':');
  if (colon == std::string_view::npos || word.find(':', colon + 1) != std::string_view::npos)
    return std::pair(word, std::string_view());  // no ports, or a bare IPv6 network
  if (colon + 1 == word.size()) return fail(Code::invalid, "a port is missing after ':' in " + shown(word));
  return std::pair(word.substr(0, colon), word.substr(colon + 1));
}

Result<void> parse_limit(const std::vector<std::string_view>& words, Limits& limits) {
  if (words.size() != 3) return fail(Code::invalid, "write: limit NAME VALUE");
  if (words[1] == "bytes-per-second") {
    ISOLA_TRY(limits.bytes_per_second, parse_size(words[2]));
    if (limits.bytes_per_second == 0) return fail(Code::invalid, "a limit of 0: write a rule that denies");
    return {};
  }
  uint32_t value = 0;
  auto [end, bad] = std::from_chars(words[2].data(), words[2].data() + words[2].size(), value);
  if (bad != std::errc() || end != words[2].data() + words[2].size() || value == 0)
    return fail(Code::invalid, shown(words[2]) + " is not a number above 0");
  if (words[1] == "connections")
    limits.connections = value;
  else if (words[1] == "connections-per-second")
    limits.connections_per_second = value;
  else
    return fail(Code::invalid, "there is no limit called " + shown(words[1]));
  return {};
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> out;
  for (;;) {
    size_t comma = text.find(',');
    out.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return out;
    text.remove_prefix(comma + 1);
  }
}

std::string joined(const std::vector<std::string>& list) {
  std::string out;
  for (const auto& one : list) out += (out.empty() ? "" : ",") + one;
  return out;
}

Result<void> parse_line(const std::vector<std::string_view>& words, Policy& policy) {
  if (words[0] == "default") {
    if (words.size() != 2 || (words[1] != "allow" && words[1] != "deny"))
      return fail(Code::invalid, "write: default allow, or: default deny");
    policy.otherwise = words[1] == "allow" ? Action::allow : Action::deny;
    return {};
  }
  if (words[0] == "learn" && words.size() == 1) {
    policy.learn = true;
    return {};
  }
  if (words[0] == "limit") return parse_limit(words, policy.limits);
  if (words.size() == 1)
    return fail(Code::invalid, shown(words[0]) +
                                   " is neither a preset (none, all, package-registries) nor a rule, which is "
                                   "written: allow|deny NAME|*.NAME|NETWORK|* [:PORTS] [local]");
  if (words[1].find("://") != std::string_view::npos)
    return fail(Code::invalid, shown(words[1]) + " is a URL: a rule has the host's name alone, with :PORTS if need be");
  bool local = false;
  std::vector<std::string> methods, paths;
  for (size_t i = 2; i < words.size(); ++i) {
    auto* list = words[i] == "methods" ? &methods : words[i] == "paths" ? &paths : nullptr;
    if (words[i] == "local" && !local) {
      local = true;
    } else if (list && list->empty() && i + 1 < words.size()) {
      *list = split_list(words[++i]);
    } else {
      return fail(Code::invalid,
                  "write: allow|deny NAME|*.NAME|NETWORK|* [:PORTS] [local] [methods GET,…] [paths /a/,/b]");
    }
  }
  ISOLA_TRY(auto parts, split_ports(words[1]));
  ISOLA_TRY(Rule rule, make_rule(words[0], parts.first, parts.second, local));
  ISOLA_CHECK(set_requests(rule, std::move(methods), std::move(paths)));
  if (policy.rules.size() == kMaxRules) return fail(Code::invalid, "a policy has at most 4096 rules");
  policy.rules.push_back(std::move(rule));
  return {};
}

}  // namespace

Result<Rule> make_rule(std::string_view action, std::string_view to, std::string_view ports, bool local) {
  Rule rule;
  if (action != "allow" && action != "deny") return fail(Code::invalid, shown(action) + " is neither allow nor deny");
  rule.action = action == "allow" ? Action::allow : Action::deny;
  rule.local = local;
  ISOLA_TRY(rule.ports, parse_ports(ports));
  if (to == "*") {
    rule.kind = Rule::Kind::any;
  } else if (to.starts_with("*.")) {
    rule.kind = Rule::Kind::below;
    ISOLA_TRY(rule.name, normal_name(to.substr(2)));
  } else if (to.find('/') != std::string_view::npos || to.find(':') != std::string_view::npos || Address::parse(to)) {
    rule.kind = Rule::Kind::network;
    ISOLA_TRY(rule.network, Network::parse(to));
  } else {
    rule.kind = Rule::Kind::name;
    auto name = normal_name(to);
    if (!name) return fail(Code::invalid, name.error().message + ": " + shown(to));
    rule.name = std::move(*name);
  }
  if (local && (rule.action == Action::deny || rule.kind == Rule::Kind::any || rule.kind == Rule::Kind::network))
    return fail(Code::invalid, "only a rule that allows a name can be marked local");
  return rule;
}

Result<Ports> make_ports(std::string_view text) { return parse_ports(text); }

Result<void> set_requests(Rule& rule, std::vector<std::string> methods, std::vector<std::string> paths) {
  constexpr size_t kMost = 64;
  if (methods.empty() && paths.empty()) return {};
  if (rule.kind == Rule::Kind::network) return fail(Code::invalid, "only a rule about names can have methods or paths");
  if (methods.size() > kMost || paths.size() > kMost)
    return fail(Code::invalid, "a rule has at most 64 methods and 64 paths");
  for (const auto& method : methods)
    if (!is_method(method)) return fail(Code::invalid, shown(method) + " is not a method (GET, POST …)");
  for (auto& path : paths) {
    auto normal = normal_path(path);
    if (!normal) return fail(Code::invalid, shown(path) + " is not a path: " + normal.error().message);
    // These end a word or begin a comment in the text form.
    if (normal->find_first_of(",#") != std::string::npos)
      return fail(Code::invalid, shown(path) + " is not a path: write a comma as %2C");
    path = std::move(*normal);
  }
  rule.methods = std::move(methods), rule.paths = std::move(paths);
  return {};
}

Result<Policy> parse_policy(std::string_view text) {
  if (text.size() > kMaxPolicyText) return fail(Code::invalid, "a policy has at most 48 KiB of text");
  Policy policy;
  for (size_t number = 1; !text.empty(); ++number) {
    size_t end = std::min(text.find('\n'), text.size());
    auto words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty()) continue;
    if (auto read = parse_line(words, policy); !read)
      return std::unexpected(read.error().in("line " + std::to_string(number) + " of the policy"));
  }
  return policy;
}

std::string to_text(const Rule& rule) {
  std::string out = rule.action == Action::allow ? "allow " : "deny ";
  switch (rule.kind) {
    case Rule::Kind::any: out += "*"; break;
    case Rule::Kind::name: out += rule.name; break;
    case Rule::Kind::below: out += "*." + rule.name; break;
    case Rule::Kind::network: {
      auto network = rule.network->text();
      out += network.find(':') == std::string::npos ? network : "[" + network + "]";
    }
  }
  if (!rule.ports.all()) out += ":" + to_text(rule.ports);
  if (rule.local) out += " local";
  if (!rule.methods.empty()) out += " methods " + joined(rule.methods);
  if (!rule.paths.empty()) out += " paths " + joined(rule.paths);
  return out;
}

std::string to_text(const Policy& policy) {
  std::string out;
  for (const auto& rule : policy.rules) out += to_text(rule) + "\n";
  out += policy.otherwise == Action::allow ? "default allow\n" : "default deny\n";
  if (policy.limits.connections) out += "limit connections " + std::to_string(policy.limits.connections) + "\n";
  if (policy.limits.connections_per_second)
    out += "limit connections-per-second " + std::to_string(policy.limits.connections_per_second) + "\n";
  if (policy.limits.bytes_per_second)
    out += "limit bytes-per-second " + std::to_string(policy.limits.bytes_per_second) + "\n";
  if (policy.learn) out += "learn\n";
  return out;
}

}  // namespace isola::gate
