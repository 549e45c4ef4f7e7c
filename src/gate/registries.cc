#include "gate/registries.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "gate/name.h"
#include "gate/registry_files.h"
#include "image/apt_sources.h"
#include "image/spawn.h"

namespace isola::gate {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kBundleInside[] = "/etc/ssl/isola-registries.pem";
constexpr char kMavenInside[] = "/etc/isola/maven-settings.xml", kNpmInside[] = "/etc/isola/npmrc";

std::string trimmed_copy(std::string_view text) {
  size_t first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  return first == std::string_view::npos ? "" : std::string(text.substr(first, last - first + 1));
}

class Reading {
 public:
  explicit Reading(const RegistrySources& from) : from_(from) {
    home_ = from.home;
    if (const char* home = std::getenv("HOME"); home_.empty() && home) home_ = home;
    // A service may have no HOME; npm would make a folder that is called "~" where it stands.
    if (const passwd* self = home_.empty() ? ::getpwuid(::getuid()) : nullptr) home_ = self->pw_dir;
  }

  Registries run() {
    apt(), pip(), npm(), go(), cargo(), maven();
    return std::move(out_);
  }

 private:
  std::string text_of(const std::string& path) const {
    auto text = read_file(from_.root + path, 4 << 20);
    return text ? *text : "";
  }
  std::string variable(const char* name) const {
    auto it = from_.environment.find(name);
    return it == from_.environment.end() ? "" : it->second;
  }
  std::string ask(std::vector<std::string> argv) const {
    if (!from_.ask_tools || !image::find_program(argv[0])) return "";
    auto said =
        image::run_output({.argv = std::move(argv),
                           .env = {"HOME=" + home_, "NPM_CONFIG_LOGS_MAX=0", "NPM_CONFIG_UPDATE_NOTIFIER=false"},
                           .what = "asking for a registry"});
    return said ? *said : "";
  }
  void add(std::string_view text, const std::string& tool) {
    for (auto& endpoint : endpoints_in(text, tool))
      if (std::find(out_.endpoints.begin(), out_.endpoints.end(), endpoint) == out_.endpoints.end())
        out_.endpoints.push_back(std::move(endpoint));
  }
  // "proxy.example:3128", with or without http:// in front.
  void add_proxy(const std::string& text, const std::string& tool) {
    add(text.find("://") == std::string::npos ? "http://" + text : text, tool);
  }
  void set(const char* name, const std::string& value) {
    if (!value.empty()) out_.environment[name] = value;
  }
  bool put(const std::string& path, std::string content) {
    if (content.empty()) return false;
    out_.files[path] = std::move(content);
    return true;
  }
  // A bundle of certificates that a tool was told to trust goes along, for all of them.
  void trust(const std::string& path) {
    if (path.empty() || out_.files.contains(kBundleInside)) return;
    auto bundle = text_of(path);
    if (bundle.find("BEGIN CERTIFICATE") == std::string::npos) return;
    out_.files[kBundleInside] = std::move(bundle);
    for (const char* name : {"PIP_CERT", "NPM_CONFIG_CAFILE", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE",
                             "CARGO_HTTP_CAINFO", "REQUESTS_CA_BUNDLE"})
      set(name, kBundleInside);
  }

  void apt() {
    auto host = image::read_host_sources(from_.root.empty() ? "/" : from_.root);
    if (!host) return;
    for (const auto& source : host->sources)
      for (const auto& uri : source.uris) add(uri, "apt");
    for (const auto& option : host->apt_options) add(option, "apt");
    // The same file that a template is made with: what the host uses now instead of what it used then.
    if (!host->sources.empty())
      put("/etc/apt/sources.list.d/" + host->distribution.id + ".sources", image::to_deb822(host->sources, true));
    put("/etc/apt/apt.conf.d/90isola-registries", apt_options(host->apt_options));
  }

  void pip() {
    std::map<std::string, std::string> settings;
    for (const auto& path : {std::string("/etc/pip.conf"), home_ + "/.pip/pip.conf", home_ + "/.config/pip/pip.conf"})
      for (auto& [key, value] : settings_in(text_of(path))) settings[key] = value;
    for (const auto& [key, name] :
         {std::pair("index-url", "PIP_INDEX_URL"), std::pair("extra-index-url", "PIP_EXTRA_INDEX_URL"),
          std::pair("proxy", "PIP_PROXY"), std::pair("cert", "PIP_CERT"),
          std::pair("trusted-host", "PIP_TRUSTED_HOST")})
      if (auto value = variable(name); !value.empty()) settings[key] = value;
    for (const char* key : {"index-url", "extra-index-url", "proxy", "find-links"}) add(settings[key], "pip");
    set("PIP_INDEX_URL", without_password(settings["index-url"]));
    set("PIP_EXTRA_INDEX_URL", without_password(settings["extra-index-url"]));
    set("PIP_PROXY", without_password(settings["proxy"]));
    set("PIP_TRUSTED_HOST", settings["trusted-host"]);
    trust(settings["cert"]);
    if (settings["index-url"].empty())  // its own default, as it knows it
      add(ask({"python3", "-c",
               "from pip._internal.models.index import PyPI\n"
               "print(PyPI.simple_url, 'https://' + PyPI.file_storage_domain)"}),
          "pip");
  }

  void npm() {
    std::map<std::string, std::string> settings;
    for (const auto& path : {std::string("/etc/npmrc"), std::string("/usr/etc/npmrc"), home_ + "/.npmrc"})
      for (auto& [key, value] : settings_in(text_of(path))) settings[key] = value;
    if (auto all = json::parse(ask({"npm", "--prefix", "/", "config", "ls", "-l", "--json"}), nullptr, false);
        all.is_object())
      for (const auto& [key, value] : all.items())
        if (value.is_string()) settings[key] = value.get<std::string>();
    if (auto value = variable("NPM_CONFIG_REGISTRY"); !value.empty()) settings["registry"] = value;
    for (const auto& [key, value] : settings)
      if (key == "registry" || key.ends_with(":registry") || key == "proxy" || key == "https-proxy") add(value, "npm");
    set("NPM_CONFIG_REGISTRY", without_password(settings["registry"]));
    // Registries of scopes have no variable that a shell would pass on.
    if (put(kNpmInside, npm_config(settings))) set("NPM_CONFIG_GLOBALCONFIG", kNpmInside);
    trust(settings["cafile"]);
  }

  void go() {
    auto settings = settings_in(text_of(home_ + "/.config/go/env"));
    // The second is where its own archive puts it, which is on no system's path.
    for (const char* program : {"go", "/usr/local/go/bin/go"}) {
      auto all = json::parse(ask({program, "env", "-json"}), nullptr, false);
      if (!all.is_object()) continue;
      for (const auto& [key, value] : all.items())
        if (value.is_string()) settings[key] = value.get<std::string>();
      break;
    }
    for (const char* name : {"GOPROXY", "GOSUMDB", "GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GOINSECURE"}) {
      if (auto value = variable(name); !value.empty()) settings[name] = value;
      // Patterns of names; the two others are addresses.
      if (name != std::string_view("GOPROXY") && name != std::string_view("GOSUMDB")) set(name, settings[name]);
    }
    const std::string proxy = settings["GOPROXY"], sums = settings["GOSUMDB"];
    add(proxy, "go");
    auto words = sums.substr(0, sums.find('+'));  // "name+key url": the name is a host
    if (!words.empty() && words != "off") add("https://" + words.substr(0, words.find(' ')), "go");
    add(sums, "go");
    set("GOPROXY", without_password(proxy));
    set("GOSUMDB", without_password(sums));
  }

  void cargo() {
    std::string folder = variable("CARGO_HOME");
    if (folder.empty()) folder = home_ + "/.cargo";
    auto config = text_of(folder + "/config.toml");
    if (config.empty()) config = text_of(folder + "/config");
    for (const auto& [key, value] : toml_strings(config))
      if (key.ends_with(".index") || key.ends_with(".registry")) add(value, "cargo");
    const auto settings = toml_strings(config);
    if (auto proxy = settings.find("http.proxy"); proxy != settings.end()) add_proxy(proxy->second, "cargo");
    if (auto bundle = settings.find("http.cainfo"); bundle != settings.end()) trust(bundle->second);
    // A file that every folder is below of: it holds for whoever runs cargo wherever.
    put("/.cargo/config.toml", cargo_config(config));
    for (const auto& [name, value] : from_.environment)
      if (name.starts_with("CARGO_REGISTRIES_") && name.ends_with("_INDEX"))
        add(value, "cargo"), set(name.c_str(), without_password(value));
    // The indices that it has used say where their packages lie.
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(from_.root + folder + "/registry/index", none)) {
      auto name = entry.path().filename().string();
      if (auto dash = name.rfind('-'); dash != std::string::npos) add("https://" + name.substr(0, dash), "cargo");
      for (const char* file : {"/config.json", "/.cache/config.json"})
        if (auto text = read_file(entry.path().string() + file)) add(*text, "cargo");
    }
  }

  void maven() {
    std::vector<std::string> files;
    for (const auto& path : {std::string("/etc/maven/settings.xml"), home_ + "/.m2/settings.xml"})
      files.push_back(text_of(path));
    for (const auto& file : files) {
      xml_urls(without_blocked(file));
      for (const auto& proxy : xml_elements(without_comments(file), "proxy")) {
        auto host = xml_elements(proxy, "host"), port = xml_elements(proxy, "port");
        if (!host.empty()) add_proxy(host[0] + (port.empty() ? "" : ":" + port[0]), "maven");
      }
    }
    // mvn reads its words anew from here, whoever runs it and whichever version it is.
    if (put(kMavenInside, maven_settings(files)))
      put("/etc/mavenrc", std::string("set -- -gs ") + kMavenInside + " \"$@\"\n");
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(from_.root + "/usr/share/maven/lib", none)) {
      auto name = entry.path().filename().string();
      if (name.starts_with("maven-model-builder") && name.ends_with(".jar"))
        xml_urls(ask({"unzip", "-p", entry.path().string(), "org/apache/maven/model/pom-4.0.0.xml"}));
    }
  }
  // <url>…</url>, outside of comments: namespaces and schema locations are addresses, too, and not meant.
  void xml_urls(const std::string& text) {
    for (const auto& url : xml_elements(without_comments(text), "url")) add(url, "maven");
  }

  const RegistrySources& from_;
  std::string home_;
  Registries out_;
};

}  // namespace

std::vector<Endpoint> endpoints_in(std::string_view text, const std::string& tool) {
  std::vector<Endpoint> out;
  for (size_t at = 0; (at = text.find("://", at)) != std::string_view::npos; at += 3) {
    uint16_t port = text.substr(0, at).ends_with("https") ? 443 : text.substr(0, at).ends_with("http") ? 80 : 0;
    if (port == 0) continue;
    auto authority = text.substr(at + 3);
    authority = authority.substr(0, authority.find_first_of("/?# \t\r\n\"'<>,;|"));
    if (size_t user = authority.rfind('@'); user != std::string_view::npos) authority.remove_prefix(user + 1);
    size_t colon = authority.rfind(':');
    auto host = authority.substr(0, colon);
    if (colon != std::string_view::npos) {
      auto digits = authority.substr(colon + 1);
      uint16_t given = 0;
      auto [end, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), given);
      if (bad != std::errc() || end != digits.data() + digits.size() || given == 0) continue;
      port = given;
    }
    Endpoint endpoint{.port = port, .tool = tool};
    if (auto name = normal_name(host))
      endpoint.name = *name;
    else if (auto address = Address::parse(host))
      endpoint.name = address->text();
    else
      continue;
    if (std::find(out.begin(), out.end(), endpoint) == out.end()) out.push_back(std::move(endpoint));
  }
  return out;
}

std::map<std::string, std::string> settings_in(std::string_view text) {
  std::map<std::string, std::string> out;
  std::string last;
  while (!text.empty()) {
    auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    bool indented = !line.empty() && (line[0] == ' ' || line[0] == '\t');
    auto plain = trimmed_copy(line);
    if (plain.empty() || plain[0] == '#' || plain[0] == ';' || plain[0] == '[') continue;
    size_t equals = plain.find('=');
    if (indented && !last.empty() && (equals == std::string::npos || plain.find("://") < equals)) {
      out[last] += (out[last].empty() ? "" : " ") + plain;
      continue;
    }
    if (equals == std::string::npos) continue;
    last = trimmed_copy(std::string_view(plain).substr(0, equals));
    auto value = trimmed_copy(std::string_view(plain).substr(equals + 1));
    if (value.size() >= 2 && (value[0] == '"' || value[0] == '\'') && value.back() == value[0])
      value = value.substr(1, value.size() - 2);
    out[last] = value;
  }
  return out;
}

std::map<std::string, std::string> own_environment() {
  std::map<std::string, std::string> out;
  for (char** entry = environ; *entry; ++entry) {
    std::string_view text(*entry);
    if (size_t equals = text.find('='); equals != std::string_view::npos)
      out[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  return out;
}

Registries read_registries(const RegistrySources& sources) { return Reading(sources).run(); }

Policy registries_policy(const Registries& registries) {
  Policy policy;
  for (const auto& endpoint : registries.endpoints) {
    bool address = Address::parse(endpoint.name).has_value();
    auto rule = make_rule("allow", endpoint.name, std::to_string(endpoint.port), !address);
    if (rule && std::find(policy.rules.begin(), policy.rules.end(), *rule) == policy.rules.end())
      policy.rules.push_back(std::move(*rule));
  }
  return policy;
}

Result<Policy> preset_policy(std::string_view name, const Registries& registries) {
  if (name == "none") return Policy::none();
  if (name == "all") return Policy::all();
  if (name == "package-registries") return registries_policy(registries);
  return fail(Code::invalid, "there is no preset '" + std::string(name.substr(0, 40)) +
                                 "' (there are none, package-registries and all)");
}

}  // namespace isola::gate
