#include "gate/registry_files.h"

#include <algorithm>
#include <optional>
#include <set>

namespace isola::gate {

namespace {

// In the text of a key a dot ends a part; in a quoted part it does not. This one stands for a dot within a part.
constexpr char kInnerDot = '\x1f';

std::string_view trimmed_line(std::string_view text) {
  size_t first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  return first == std::string_view::npos ? "" : text.substr(first, last - first + 1);
}

// "a" or 'a' at the beginning of `in`, taken from it.
std::optional<std::string> take_string(std::string_view& in) {
  if (in.empty() || (in[0] != '"' && in[0] != '\'')) return std::nullopt;
  std::string out;
  for (size_t i = 1; i < in.size(); ++i) {
    if (in[i] == in[0]) {
      in.remove_prefix(i + 1);
      return out;
    }
    if (in[0] == '"' && in[i] == '\\' && ++i == in.size()) return std::nullopt;
    out += in[i];
  }
  return std::nullopt;
}

// A key with its dots, up to `end`, which is taken, too.
std::optional<std::string> take_key(std::string_view& in, char end) {
  std::string out;
  while (!in.empty() && in[0] != end) {
    if (in[0] == '"' || in[0] == '\'') {
      auto part = take_string(in);
      if (!part) return std::nullopt;
      std::replace(part->begin(), part->end(), '.', kInnerDot);
      out += *part;
      continue;
    }
    if (in[0] != ' ' && in[0] != '\t') out += in[0];
    in.remove_prefix(1);
  }
  if (in.empty()) return std::nullopt;
  in.remove_prefix(1);
  return out;
}

void take_value(std::string_view in, const std::string& key, std::map<std::string, std::string>& out) {
  in = trimmed_line(in);
  if (auto text = take_string(in)) {
    out[key] = *text;
    return;
  }
  if (in.empty() || in[0] != '{') return;
  in.remove_prefix(1);
  while (!(in = trimmed_line(in)).empty() && in[0] != '}') {
    auto inner = take_key(in, '=');
    if (!inner) return;
    in = trimmed_line(in);
    if (auto text = take_string(in)) out[key + "." + *inner] = *text;
    size_t comma = in.find_first_of(",}");
    if (comma == std::string_view::npos || in[comma] == '}') return;
    in.remove_prefix(comma + 1);
  }
}

std::string quoted_value(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) continue;
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

// "source.NAME.registry" → NAME, if it begins and ends like that.
std::optional<std::string> middle(std::string_view key, std::string_view first, std::string_view last) {
  if (!key.starts_with(first) || !key.ends_with(last) || key.size() <= first.size() + last.size()) return std::nullopt;
  std::string name(key.substr(first.size(), key.size() - first.size() - last.size()));
  if (name.find('.') != std::string::npos) return std::nullopt;
  std::replace(name.begin(), name.end(), kInnerDot, '.');
  return name;
}

// The only child of that name, as text without elements of its own.
std::string child(std::string_view element, std::string_view tag) {
  auto found = xml_elements(element, tag);
  if (found.empty() || found[0].find('<') != std::string::npos) return "";
  return std::string(trimmed_line(found[0]));
}

std::string element(std::string_view tag, std::string_view text) {
  if (text.empty()) return "";
  return "<" + std::string(tag) + ">" + std::string(text) + "</" + std::string(tag) + ">";
}

}  // namespace

std::map<std::string, std::string> toml_strings(std::string_view text) {
  std::map<std::string, std::string> out;
  std::string table;
  while (!text.empty()) {
    auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line = trimmed_line(line);
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '[') {
      line.remove_prefix(1);
      // What stands in a list of tables is nothing that is asked for here, and not the table's before it.
      table = line.starts_with('[') ? "?" : take_key(line, ']').value_or("?");
      continue;
    }
    auto key = take_key(line, '=');
    if (key) take_value(line, table.empty() ? *key : table + "." + *key, out);
  }
  return out;
}

std::string cargo_config(std::string_view toml) {
  const auto all = toml_strings(toml);
  std::string out;
  std::set<std::string> sources;  // that can be had from inside
  for (const auto& [key, value] : all) {
    auto address = without_password(value);
    auto source = middle(key, "source.", ".registry"), registry = middle(key, "registries.", ".index");
    if ((source || registry) && address.find("://") == std::string::npos) continue;
    if (source)
      sources.insert(*source), out += "source." + quoted_value(*source) + ".registry = " + quoted_value(address) + "\n";
    if (registry) out += "registries." + quoted_value(*registry) + ".index = " + quoted_value(address) + "\n";
    if (key == "registry.default") out += "registry.default = " + quoted_value(value) + "\n";
    if (key == "http.proxy" && value.find('@') == std::string::npos)
      out += "http.proxy = " + quoted_value(value) + "\n";
  }
  // A folder of the host instead of a registry is nothing that a sandbox could use.
  for (const auto& [key, value] : all)
    if (auto source = middle(key, "source.", ".replace-with"); source && sources.contains(value))
      out += "source." + quoted_value(*source) + ".replace-with = " + quoted_value(value) + "\n";
  return out;
}

std::string npm_config(const std::map<std::string, std::string>& settings) {
  std::string out;
  for (const auto& [key, value] : settings) {
    bool scope = key.starts_with('@') && key.ends_with(":registry");
    if (!scope && key != "proxy" && key != "https-proxy" && key != "noproxy") continue;
    auto address = key == "noproxy" ? value : without_password(value);
    bool plain = std::all_of(address.begin(), address.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; });
    if (!address.empty() && address != "null" && plain) out += key + "=" + address + "\n";
  }
  return out;
}

std::string without_comments(std::string text) {
  for (size_t at = 0; (at = text.find("<!--", at)) != std::string::npos;) {
    size_t end = text.find("-->", at);
    text.erase(at, end == std::string::npos ? end : end + 3 - at);
  }
  return text;
}

std::vector<std::string> xml_elements(std::string_view text, std::string_view tag) {
  std::vector<std::string> out;
  const std::string begin = "<" + std::string(tag) + ">", end = "</" + std::string(tag) + ">";
  for (size_t at = 0; (at = text.find(begin, at)) != std::string_view::npos;) {
    at += begin.size();
    size_t close = text.find(end, at);
    if (close == std::string_view::npos) break;
    out.emplace_back(text.substr(at, close - at));
    at = close + end.size();
  }
  return out;
}

std::string without_blocked(const std::string& settings) {
  std::string text = without_comments(settings);
  for (const auto& mirror : xml_elements(text, "mirror"))
    if (child(mirror, "blocked") == "true") text.erase(text.find(mirror), mirror.size());
  return text;
}

std::string maven_settings(const std::vector<std::string>& files) {
  std::string mirrors, proxies, repositories, plugins;
  for (const auto& file : files) {
    auto text = without_comments(file);
    for (const auto& one : xml_elements(text, "mirror"))
      if (auto url = without_password(child(one, "url")); !url.empty())
        mirrors += "<mirror>" + element("id", child(one, "id")) + element("mirrorOf", child(one, "mirrorOf")) +
                   element("url", url) + (child(one, "blocked") == "true" ? element("blocked", "true") : "") +
                   "</mirror>\n";
    for (const auto& one : xml_elements(text, "proxy"))
      if (auto host = child(one, "host"); !host.empty())
        proxies += "<proxy>" + element("id", child(one, "id")) + element("active", child(one, "active")) +
                   element("protocol", child(one, "protocol")) + element("host", host) +
                   element("port", child(one, "port")) + element("nonProxyHosts", child(one, "nonProxyHosts")) +
                   "</proxy>\n";
    auto active = xml_elements(text, "activeProfile");
    for (const auto& profile : xml_elements(text, "profile")) {
      bool on = std::find(active.begin(), active.end(), child(profile, "id")) != active.end() ||
                profile.find("<activeByDefault>true</activeByDefault>") != std::string::npos;
      if (!on) continue;
      for (auto [tag, list] : {std::pair("repository", &repositories), std::pair("pluginRepository", &plugins)})
        for (const auto& one : xml_elements(profile, tag))
          if (auto url = without_password(child(one, "url")); !url.empty())
            *list += element(tag, element("id", child(one, "id")) + element("url", url)) + "\n";
    }
  }
  if (mirrors.empty() && proxies.empty() && repositories.empty() && plugins.empty()) return "";
  std::string out = "<settings>\n" + element("proxies", proxies) + element("mirrors", mirrors);
  if (!repositories.empty() || !plugins.empty())
    out += "<profiles><profile><id>isola</id>" + element("repositories", repositories) +
           element("pluginRepositories", plugins) +
           "</profile></profiles><activeProfiles><activeProfile>isola</activeProfile></activeProfiles>";
  return out + "\n</settings>\n";
}

std::string apt_options(const std::vector<std::string>& lines) {
  std::string out;
  for (const auto& line : lines) {
    size_t open = line.find('"'), close = line.rfind('"');
    if (open == std::string::npos || close <= open) continue;
    auto value = line.substr(open + 1, close - open - 1);
    // Certificates and programs that ask for a proxy are files of the host.
    if (value.starts_with('/') || line.find("Proxy-Auto-Detect") != std::string::npos ||
        line.find("ProxyAutoDetect") != std::string::npos)
      continue;
    auto plain = without_password(value);
    if (plain.empty() || plain.find('"') != std::string::npos) continue;
    out += line.substr(0, open) + "\"" + plain + "\";\n";
  }
  return out;
}

std::string without_password(std::string_view url) {
  constexpr std::string_view kBetween = " \t,|";
  std::string out;
  while (!url.empty()) {
    size_t at = url.find("://");
    if (at == std::string_view::npos) return out.append(url);
    size_t scheme = url.substr(0, at).find_last_of(kBetween) + 1;  // npos + 1 is the start
    out.append(url.substr(0, scheme));
    auto one = url.substr(scheme, std::min(url.find_first_of(kBetween, at), url.size()) - scheme);
    url.remove_prefix(scheme + one.size());
    auto place = one.substr(at + 3 - scheme);
    auto authority = place.substr(0, place.find_first_of("/?#"));
    if (size_t user = authority.rfind('@'); user != std::string_view::npos) place.remove_prefix(user + 1);
    // A password that holds one of those signs unescaped ends further on: rather no address than a password.
    if (place.find('@') != std::string_view::npos) continue;
    out.append(one.substr(0, at + 3 - scheme)).append(place);
  }
  return out;
}

}  // namespace isola::gate
