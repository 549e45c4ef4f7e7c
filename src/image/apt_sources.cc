#include "image/apt_sources.h"

#include <algorithm>
#include <map>

#include "base/file.h"
#include "image/spawn.h"
#include "image/tree.h"

namespace isola::image {

namespace {

bool blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::string_view trim(std::string_view s) {
  while (!s.empty() && blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && blank(s.back())) s.remove_suffix(1);
  return s;
}

std::vector<std::string> words(std::string_view s, char extra = ' ') {
  std::vector<std::string> out;
  for (size_t at = 0; at < s.size();) {
    while (at < s.size() && (blank(s[at]) || s[at] == extra)) ++at;
    size_t end = at;
    while (end < s.size() && !blank(s[end]) && s[end] != extra) ++end;
    if (end > at) out.emplace_back(s.substr(at, end - at));
    at = end;
  }
  return out;
}

template <typename F>
void each_line(std::string_view text, F f) {
  while (!text.empty()) {
    auto end = text.find('\n');
    f(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
}

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

std::string join(const std::vector<std::string>& list, const char* between = " ") {
  std::string out;
  for (const auto& s : list) out += (out.empty() ? "" : between) + s;
  return out;
}

// deb822 fields of one stanza; a continuation line (leading blank) belongs to the field above and keeps its own line.
using Stanza = std::map<std::string, std::string>;

std::vector<Stanza> stanzas(std::string_view text) {
  std::vector<Stanza> out(1);
  std::string last;
  each_line(text, [&](std::string_view line) {
    if (!line.empty() && line[0] == '#') return;
    if (trim(line).empty()) {
      if (!out.back().empty()) out.emplace_back();
      last.clear();
    } else if (blank(line[0])) {
      if (!last.empty()) out.back()[last] += "\n" + std::string(trim(line));
    } else if (auto colon = line.find(':'); colon != std::string_view::npos && colon > 0) {
      last = lower(trim(line.substr(0, colon)));
      out.back()[last] = trim(line.substr(colon + 1));
    } else {
      last.clear();
    }
  });
  if (out.back().empty()) out.pop_back();
  return out;
}

std::string without_user(const std::string& uri) {
  auto slashes = uri.find("://");
  if (slashes == std::string::npos) return uri;
  auto end = uri.find('/', slashes + 3);
  auto at = uri.rfind('@', end == std::string::npos ? std::string::npos : end);
  if (at == std::string::npos || at < slashes) return uri;
  return uri.substr(0, slashes + 3) + uri.substr(at + 1);
}

}  // namespace

Result<Distribution> parse_os_release(std::string_view text) {
  Distribution d;
  each_line(text, [&](std::string_view line) {
    auto equals = line.find('=');
    if (equals == std::string_view::npos) return;
    auto value = trim(line.substr(equals + 1));
    if (value.size() >= 2 && (value[0] == '"' || value[0] == '\'') && value.back() == value[0])
      value = value.substr(1, value.size() - 2);
    if (line.substr(0, equals) == "ID") d.id = value;
    if (line.substr(0, equals) == "VERSION_CODENAME") d.codename = value;
  });
  auto plain = [](const std::string& s) {
    return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
    });
  };
  if (!plain(d.id) || !plain(d.codename))
    return fail(Code::unsupported,
                "templates are built from a Debian or Ubuntu machine's own sources, and this one does "
                "not say which release it is (ID and VERSION_CODENAME in os-release)");
  return d;
}

std::vector<AptSource> parse_one_line(std::string_view text) {
  std::vector<AptSource> out;
  each_line(text, [&](std::string_view line) {
    if (auto hash = line.find('#'); hash != std::string_view::npos) line = line.substr(0, hash);
    line = trim(line);
    if (!line.starts_with("deb") || line.size() < 4 || !blank(line[3])) return;
    line = trim(line.substr(3));
    AptSource s;
    if (line.starts_with("[")) {
      auto end = line.find(']');
      if (end == std::string_view::npos) return;
      for (const auto& option : words(line.substr(1, end - 1))) {
        auto equals = option.find('=');
        if (equals == std::string::npos) continue;
        std::string key = lower(option.substr(0, equals)), value = option.substr(equals + 1);
        if (key == "signed-by")
          s.signed_by = value;
        else if (key == "trusted")
          s.trusted = value;
        else if (key == "arch")
          s.architectures = words(value, ',');
      }
      line = trim(line.substr(end + 1));
    }
    auto parts = words(line);
    if (parts.size() < 2) return;
    s.uris = {parts[0]};
    s.suites = {parts[1]};
    s.components.assign(parts.begin() + 2, parts.end());
    out.push_back(std::move(s));
  });
  return out;
}

std::vector<AptSource> parse_deb822(std::string_view text) {
  std::vector<AptSource> out;
  for (auto& fields : stanzas(text)) {
    auto types = words(fields["types"]);
    std::string enabled = lower(fields["enabled"]);
    if (std::find(types.begin(), types.end(), "deb") == types.end() || enabled == "no" || enabled == "false" ||
        enabled == "0" || enabled == "off")
      continue;
    AptSource s{.uris = words(fields["uris"]),
                .suites = words(fields["suites"]),
                .components = words(fields["components"]),
                .signed_by = std::string(trim(fields["signed-by"])),
                .trusted = fields["trusted"],
                .architectures = words(fields["architectures"])};
    if (!s.uris.empty() && !s.suites.empty()) out.push_back(std::move(s));
  }
  return out;
}

std::vector<AptSource> of_distribution(std::vector<AptSource> sources, const Distribution& distribution) {
  const std::string& name = distribution.codename;
  for (auto& s : sources) {
    std::erase_if(s.suites, [&](const std::string& suite) {
      // "bookworm/updates" was the form of security suites before Debian 11; a trailing slash is a flat repository.
      if (suite.ends_with("/")) return true;
      return suite != name && !suite.starts_with(name + "-") && !suite.starts_with(name + "/");
    });
    std::erase_if(s.uris, [](const std::string& uri) { return uri.starts_with("cdrom:"); });
  }
  std::erase_if(sources, [](const AptSource& s) { return s.suites.empty() || s.uris.empty() || s.components.empty(); });
  return sources;
}

std::string to_deb822(const std::vector<AptSource>& sources, bool for_guest) {
  std::string out;
  for (const auto& s : sources) {
    auto uris = s.uris;
    if (for_guest) std::transform(uris.begin(), uris.end(), uris.begin(), without_user);
    if (!out.empty()) out += "\n";
    out += "Types: deb\nURIs: " + join(uris) + "\nSuites: " + join(s.suites) + "\nComponents: " + join(s.components) +
           "\n";
    if (!s.architectures.empty()) out += "Architectures: " + join(s.architectures) + "\n";
    if (!s.trusted.empty()) out += "Trusted: " + s.trusted + "\n";
    if (!s.signed_by.empty()) {
      out += "Signed-By:";
      each_line(s.signed_by, [&](std::string_view line) { out += " " + std::string(line) + "\n"; });
    }
  }
  return out;
}

std::vector<std::string> pick_apt_options(std::string_view dump) {
  static constexpr std::string_view kWanted[] = {"Acquire::http::", "Acquire::https::", "Acquire::Retries ",
                                                 "Acquire::Check-Valid-Until ", "Acquire::ForceIPv"};
  std::vector<std::string> out;
  each_line(dump, [&](std::string_view line) {
    line = trim(line);
    while (line.ends_with(";")) line.remove_suffix(1);
    bool wanted = std::any_of(std::begin(kWanted), std::end(kWanted), [&](auto w) { return line.starts_with(w); });
    if (wanted && !line.ends_with(" \"\"")) out.emplace_back(line);
  });
  return out;
}

std::vector<std::string> named_files(const std::vector<AptSource>& sources) {
  std::vector<std::string> out;
  auto add = [&](const std::string& path) {
    bool plain = path.starts_with("/") && path.find("/../") == std::string::npos;
    if (plain && std::find(out.begin(), out.end(), path) == out.end()) out.push_back(path);
  };
  for (const auto& s : sources) {
    if (s.signed_by.find('\n') == std::string::npos)
      for (const auto& word : words(s.signed_by, ',')) add(word);
    for (const auto& uri : s.uris)
      if (uri.starts_with("mirror+file:")) add(uri.substr(uri.find(':') + 1));
  }
  return out;
}

Result<HostSources> read_host_sources(const std::string& root) {
  std::string base = root.ends_with("/") ? root.substr(0, root.size() - 1) : root;
  HostSources host;
  auto release = read_file(base + "/etc/os-release");
  if (!release) return std::unexpected(release.error().in("cannot tell which distribution this is"));
  ISOLA_TRY(host.distribution, parse_os_release(*release));
  std::vector<AptSource> all;
  auto add = [&](std::vector<AptSource> more) {
    all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  std::string apt = base + "/etc/apt";
  if (auto text = read_file(apt + "/sources.list")) add(parse_one_line(*text));
  ISOLA_TRY(auto names, list_dir(apt + "/sources.list.d"));
  for (const auto& name : names) {
    bool list = name.ends_with(".list"), deb822 = name.ends_with(".sources");
    if (!list && !deb822) continue;
    ISOLA_TRY(std::string text, read_file(apt + "/sources.list.d/" + name));
    add(list ? parse_one_line(text) : parse_deb822(text));
  }
  host.sources = of_distribution(std::move(all), host.distribution);
  if (host.sources.empty())
    return fail(Code::not_found, "no package source for " + host.distribution.id + " " + host.distribution.codename +
                                     " is configured under " + apt);
  if (base.empty()) {
    ISOLA_TRY(std::string dump, run_output({.argv = {"apt-config", "dump"}, .what = "cannot read apt's settings"}));
    host.apt_options = pick_apt_options(dump);
  }
  return host;
}

}  // namespace isola::image
