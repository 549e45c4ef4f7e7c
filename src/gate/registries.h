// The package registries that this machine itself uses: apt, pip, npm, go, cargo and maven are asked, or their
// configuration is read, for names. None is written down in this project.
//
//   Registries found = read_registries({});
//   Policy policy = registries_policy(found);      // the preset `package-registries`
//   …and inside: found.environment and found.files, so that the clients there go the same way
//
// Passwords in addresses stay on the host.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gate/policy.h"

namespace isola::gate {

struct Endpoint {
  std::string name;
  uint16_t port = 443;
  std::string tool;  // who uses it: "apt", "pip", …
  bool operator==(const Endpoint&) const = default;
};

struct Registries {
  std::vector<Endpoint> endpoints;
  std::map<std::string, std::string> environment;  // for programs inside
  std::map<std::string, std::string> files;        // path inside → content
};

struct RegistrySources {
  std::string root;       // before every path; empty: this machine
  std::string home;       // of whom; empty: as HOME says
  bool ask_tools = true;  // run npm, go and python for their defaults; else only files and variables are read
  std::map<std::string, std::string> environment;  // PIP_INDEX_URL and the like; see own_environment()
};
std::map<std::string, std::string> own_environment();

// What cannot be read is left out: a machine has the tools it has.
Registries read_registries(const RegistrySources& sources);
// Each endpoint by exact name and port; the operator named them, so they may be private addresses.
Policy registries_policy(const Registries& registries);

// `none`, `all`, or `package-registries` (which needs `registries`); anything else is an error.
Result<Policy> preset_policy(std::string_view name, const Registries& registries);

// Every http or https address in a text, as endpoints. Tells nothing apart: for texts that hold only what is meant.
std::vector<Endpoint> endpoints_in(std::string_view text, const std::string& tool);
// KEY = value lines of ini-like files (pip.conf, .npmrc), last one wins; sections are ignored. A value that goes on in
// indented lines is joined with spaces.
std::map<std::string, std::string> settings_in(std::string_view text);

}  // namespace isola::gate
