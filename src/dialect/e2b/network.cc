#include "dialect/e2b/network.h"

#include <arpa/inet.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "base/log.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

constexpr size_t kMostRules = 1000;

Result<std::vector<std::string>> texts(const json& object, const char* name) {
  std::vector<std::string> out;
  auto at = object.find(name);
  if (at == object.end() || at->is_null()) return out;
  if (!at->is_array()) return fail(Code::invalid, std::string(name) + ": must be a list of strings");
  for (const auto& item : *at) {
    if (!item.is_string()) return fail(Code::invalid, std::string(name) + ": must be a list of strings");
    out.push_back(item.get<std::string>());
  }
  if (out.size() > kMostRules) return fail(Code::invalid, std::string(name) + ": has too many entries");
  return out;
}

bool is_network(const std::string& text) {
  auto slash = text.find('/');
  std::string address = text.substr(0, slash);
  unsigned char bytes[16];
  bool four = ::inet_pton(AF_INET, address.c_str(), bytes) == 1;
  if (!four && ::inet_pton(AF_INET6, address.c_str(), bytes) != 1) return false;
  if (slash == std::string::npos) return true;
  std::string bits = text.substr(slash + 1);
  if (bits.empty() || bits.size() > 3 || bits.find_first_not_of("0123456789") != std::string::npos) return false;
  return std::stoi(bits) <= (four ? 32 : 128);
}

bool is_everything(const std::string& text) { return text == "0.0.0.0/0" || text == "::/0" || text == "*"; }

// A destination as our policies write it. Nothing in it may be able to end a line.
Result<std::string> destination(const std::string& text) {
  if (is_everything(text)) return std::string("*");
  if (is_network(text)) return text.find(':') == std::string::npos ? text : "[" + text + "]";
  if (text.empty() || text.size() > 255) return fail(Code::invalid, "a destination is empty or too long");
  for (char c : text)
    if (!(std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_' || c == '*'))
      return fail(Code::invalid, "invalid destination " + log::quoted(text));
  return text;
}

bool has(const json& object, const char* name) {
  auto at = object.find(name);
  return at != object.end() && !at->is_null() && !(at->is_structured() && at->empty());
}

Result<std::optional<bool>> flag(const json& object, const char* name) {
  auto at = object.find(name);
  if (at == object.end() || at->is_null()) return std::optional<bool>();
  if (!at->is_boolean()) return fail(Code::invalid, std::string(name) + ": must be true or false");
  return std::optional<bool>(at->get<bool>());
}

// Of those that services inside answer with TLS.
Result<std::vector<uint16_t>> https_ports(const json& network) {
  constexpr size_t kMostPorts = 100;
  std::vector<uint16_t> out;
  if (!has(network, "httpsPorts")) return out;
  const json& ports = network["httpsPorts"];
  if (!ports.is_array() || ports.size() > kMostPorts)
    return fail(Code::invalid, "network.httpsPorts: must be a list of at most 100 ports");
  for (const auto& port : ports) {
    if (!port.is_number_unsigned() || port.get<uint64_t>() < 1 || port.get<uint64_t>() > 65535)
      return fail(Code::invalid, "network.httpsPorts: a port is a number between 1 and 65535");
    out.push_back(port.get<uint16_t>());
  }
  return out;
}

Result<std::string> compile(const json& network, bool internet) {
  if (has(network, "egressProxy"))
    return fail(Code::unsupported, "network.egressProxy: this server does not pass traffic on to another proxy");
  if (has(network, "dnsServers"))
    return fail(Code::unsupported, "network.dnsServers: names are looked up by this server's gate");
  ISOLA_TRY(auto allow, texts(network, "allowOut"));
  ISOLA_TRY(auto deny, texts(network, "denyOut"));
  bool all_denied = !internet, names = false;
  for (const auto& one : deny) {
    if (!is_network(one) && !is_everything(one)) return fail(Code::invalid, "invalid denied CIDR " + log::quoted(one));
    all_denied |= is_everything(one);
  }
  std::string text;
  for (const auto& one : allow) {
    names |= !is_network(one) && !is_everything(one);
    ISOLA_TRY(std::string to, destination(one));
    text += "allow " + to + "\n";
  }
  if (names && !all_denied)
    return fail(Code::invalid,
                "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out "
                "to block all other traffic.");
  for (const auto& one : deny) {
    ISOLA_TRY(std::string to, destination(one));
    text += "deny " + to + "\n";
  }
  return text + (internet ? "default allow\n" : "default deny\n");
}

}  // namespace

std::string Notes::to_text() const {
  json out = json::object();
  if (internet) out["internet"] = *internet;
  if (!network.empty()) out["network"] = network;
  if (!mask_host.empty()) out["mask_host"] = mask_host;
  if (!iam.empty()) out["iam"] = iam;
  if (!https_ports.empty()) out["https_ports"] = https_ports;
  if (!asked.empty()) out["asked"] = asked;
  return dialect::dump(out);
}

std::optional<Notes> Notes::of(const store::Labels& metadata) {
  auto at = metadata.find(kNotesLabel);
  if (at == metadata.end()) return std::nullopt;
  Notes notes;
  json value = json::parse(at->second, nullptr, false);
  if (!value.is_object()) return notes;
  if (value["internet"].is_boolean()) notes.internet = value["internet"].get<bool>();
  if (value["network"].is_string()) notes.network = value["network"].get<std::string>();
  if (value["mask_host"].is_string()) notes.mask_host = value["mask_host"].get<std::string>();
  if (value["iam"].is_string()) notes.iam = value["iam"].get<std::string>();
  for (const auto& port : value["https_ports"])
    if (port.is_number_unsigned()) notes.https_ports.push_back(port.get<uint16_t>());
  if (value["asked"].is_string()) notes.asked = value["asked"].get<std::string>();
  return notes;
}

bool Notes::have_rules() const {
  json value = json::parse(network, nullptr, false);
  return value.is_object() && has(value, "rules");
}

store::Labels without_notes(store::Labels metadata) {
  metadata.erase(kNotesLabel);
  return metadata;
}

Result<Network> read_network(const json& body) {
  Network out;
  ISOLA_TRY(out.notes.internet, flag(body, "allow_internet_access"));
  json network = json::object();
  if (has(body, "network")) network = body["network"];
  if (!network.is_object()) return fail(Code::invalid, "network: must be an object");
  ISOLA_TRY(auto open, flag(network, "allowPublicTraffic"));
  out.public_ports = open.value_or(true);
  if (auto mask = network.find("maskRequestHost"); mask != network.end() && mask->is_string()) {
    out.notes.mask_host = mask->get<std::string>();
    if (out.notes.mask_host.size() > 255 || out.notes.mask_host.find_first_of("\r\n \t/") != std::string::npos)
      return fail(Code::invalid, "network.maskRequestHost: is no host name");
  }
  ISOLA_TRY(out.notes.https_ports, https_ports(network));
  ISOLA_TRY(out.policy, compile(network, out.notes.internet.value_or(true)));
  Identities identities;
  if (has(body, "iam")) {
    ISOLA_TRY(identities, read_identities(body["iam"]));
    out.has_identity = !identities.empty();
    if (out.has_identity) out.notes.iam = dialect::dump(body["iam"]);
  }
  if (has(network, "rules")) {
    ISOLA_TRY(out.rules, read_rules(network["rules"], identities));
    network["rules"] = out.rules.shown;
  }
  if (!network.empty()) out.notes.network = dialect::dump(network);
  return out;
}

Result<Network> read_network_update(const json& body, const Notes& before) {
  Network out;
  out.notes = before;
  // What is not said is open again: what is shown has to be the policy that holds.
  ISOLA_TRY(out.notes.internet, flag(body, "allow_internet_access"));
  ISOLA_TRY(out.policy, compile(body, out.notes.internet.value_or(true)));
  // What stands there is replaced whole, but for what an update cannot say.
  json network = json::parse(before.network.empty() ? "{}" : before.network, nullptr, false);
  if (!network.is_object()) network = json::object();
  for (const char* name : {"allowOut", "denyOut"}) {
    network.erase(name);
    if (has(body, name)) network[name] = body[name];
  }
  network.erase("rules");
  if (has(body, "rules")) {
    Identities identities;
    if (!before.iam.empty()) {
      ISOLA_TRY(identities, read_identities(json::parse(before.iam, nullptr, false)));
    }
    ISOLA_TRY(out.rules, read_rules(body["rules"], identities));
    network["rules"] = out.rules.shown;
  }
  out.notes.network = network.empty() ? "" : dialect::dump(network);
  return out;
}

}  // namespace isola::e2b
