// What the package tools inside a sandbox read so that they go where the host's go: the host's own settings, cut down
// to addresses. No passwords, no tokens, no folders of the host.
//
//   cargo_config(toml)            → "source.\"crates-io\".replace-with = \"mirror\"\n…"    for /.cargo/config.toml
//   npm_config(settings)          → "@scope:registry=https://…\n"                           for a global npmrc
//   maven_settings({xml, xml})    → "<settings>…</settings>"                                for mvn -gs
//   apt_options(lines)            → "Acquire::http::Proxy \"http://…\";\n"                  for apt.conf.d
//
// Each is empty where the host has nothing of the kind to say.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace isola::gate {

std::string cargo_config(std::string_view toml);
std::string npm_config(const std::map<std::string, std::string>& settings);
std::string maven_settings(const std::vector<std::string>& files);
std::string apt_options(const std::vector<std::string>& lines);

// The same address without user name and password.
std::string without_password(std::string_view url);
// Flat keys of the part of TOML that such files are written in: "source.crates-io.replace-with" → "mirror". Strings
// only; what is not understood is left out.
std::map<std::string, std::string> toml_strings(std::string_view text);
// XML without its comments, and what stands in each <tag>…</tag> of it.
std::string without_comments(std::string text);
std::vector<std::string> xml_elements(std::string_view text, std::string_view tag);
// Without the mirrors that are there to be refused.
std::string without_blocked(const std::string& settings);

}  // namespace isola::gate
