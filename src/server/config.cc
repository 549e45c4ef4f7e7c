#include "server/config.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/file.h"
#include "base/units.h"
#include "http/url.h"
#include "server/syslog.h"

namespace isola::server {

namespace {

Result<void> put(std::string& out, const std::string& text) {
  out = text;
  return {};
}

Result<void> put(bool& out, const std::string& text) {
  if (text != "true" && text != "false") return fail(Code::invalid, "must be true or false");
  out = text == "true";
  return {};
}

Result<void> put(double& out, const std::string& text) {
  char* end = nullptr;
  out = std::strtod(text.c_str(), &end);
  if (text.empty() || *end || !(out >= 0)) return fail(Code::invalid, "must be a number, zero or more");
  return {};
}

template <typename T>
  requires std::is_unsigned_v<T> && (!std::is_same_v<T, bool>)
Result<void> put(T& out, const std::string& text) {
  char* end = nullptr;
  errno = 0;
  unsigned long long number = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || *end || errno || text[0] == '-' || number > std::numeric_limits<T>::max())
    return fail(Code::invalid, "must be a whole number, zero or more");
  out = static_cast<T>(number);
  return {};
}

Result<void> put(std::chrono::milliseconds& out, const std::string& text) {
  ISOLA_TRY(out, parse_duration(text));
  return {};
}

Result<void> put_size(uint64_t& out, const std::string& text) {
  ISOLA_TRY(out, parse_size(text));
  return {};
}

// Lists are written with commas.
Result<void> put(std::vector<std::string>& out, const std::string& text) {
  out.clear();
  for (size_t at = 0; at < text.size();) {
    size_t comma = std::min(text.find(',', at), text.size());
    std::string word = text.substr(at, comma - at);
    while (word.starts_with(' ')) word.erase(0, 1);
    while (word.ends_with(' ')) word.pop_back();
    if (!word.empty()) out.push_back(word);
    at = comma + 1;
  }
  return {};
}

std::string show(const std::string& value) { return value; }
std::string show(bool value) { return value ? "true" : "false"; }
std::string show(double value) { return fmt::format("{}", value); }
std::string show(uint64_t value) { return std::to_string(value); }
std::string show(uint32_t value) { return std::to_string(value); }
std::string show(std::chrono::milliseconds value) {
  return value.count() % 1000 ? fmt::format("{}ms", value.count()) : fmt::format("{}s", value.count() / 1000);
}
std::string show(const std::vector<std::string>& value) { return fmt::format("{}", fmt::join(value, ",")); }

std::string show_size(uint64_t value) {
  if (value && value % (1 << 30) == 0) return fmt::format("{}G", value >> 30);
  if (value && value % (1 << 20) == 0) return fmt::format("{}M", value >> 20);
  return std::to_string(value);
}

#define SETTING(name, kind, help, member)                                                                    \
  {name, kind, help, [](Config& c, const std::string& text) -> Result<void> { return put(c.member, text); }, \
   [](const Config& c) { return show(c.member); }}
#define SIZE_SETTING(name, help, member)                                                                            \
  {name, "size", help, [](Config& c, const std::string& text) -> Result<void> { return put_size(c.member, text); }, \
   [](const Config& c) { return show_size(c.member); }}

constexpr Setting kSettings[] = {
    SETTING("listen", "addresses", "where to listen, ADDRESS:PORT, several with commas", listen),
    SETTING("data", "path", "state and the first key live here", data),
    SETTING("cache", "path", "templates live here, machine-wide", cache),
    SETTING("user", "name", "whom to become after the start; made where it is missing", user),
    SETTING("tls_certificate", "path", "PEM file with the certificate and its chain", tls_certificate),
    SETTING("tls_key", "path", "PEM file with the private key", tls_key),
    SETTING("allow_plain", "true or false", "listen on other addresses than loopback without TLS", allow_plain),
    SETTING("domain", "name",
            "sandbox ports appear as PORT-ID.DOMAIN; where none is set and the server listens in clear on loopback "
            "only, as PORT-ID.localhost",
            domain),
    SETTING("hosts", "names", "further host names under which the API may be called", hosts),
    SETTING("issuer", "URL", "who signs tokens of sandboxes' identities: where this server is reached from outside",
            issuer),
    SETTING("registries", "names", "registries that images for builds are fetched from, HOST[:PORT]", registries),
    SETTING("e2b.context_token", "true or false",
            "E2B's routes of contexts (port 49999) demand the sandbox's token, which its packages do not send there",
            e2b_context_token),
    SETTING("e2b.images", "names", "templates that stand for images in E2B's builds, IMAGE=TEMPLATE", e2b_images),
    SETTING("workers", "number", "threads; 0: one per core", workers),
    SETTING("grace", "time", "how long requests may finish when the server stops", grace),
    SETTING("patience", "time", "how long a sandbox may be silent before calls into it fail with 504", patience),
    SETTING("scan_patience", "time", "how long output of a sandbox with secrets waits for a gate that is away",
            scan_patience),
    SETTING("keep_ended_days", "number", "how long ended sandboxes are remembered", keep_ended_days),
    SETTING("log.level", "debug, info, warn or error", "least important lines to write", log_level),
    SETTING("log.format", "text or json", "how lines look", log_format),
    SETTING("log.access", "true or false", "a line per request, some milliseconds after it", access_log),
    SETTING("defaults.template", "name", "template of a sandbox that names none", default_template),
    SETTING("defaults.cpus", "number", "CPUs of a sandbox that names none", limits.cpus),
    SIZE_SETTING("defaults.memory", "memory of a sandbox that names none", limits.memory),
    SIZE_SETTING("defaults.disk", "disk of a sandbox that names none", limits.disk),
    SETTING("defaults.pids", "number", "processes and threads of a sandbox that names none", limits.pids),
    SETTING("defaults.timeout", "time", "lifetime of a sandbox that names none; 0: for ever", timeout),
    SETTING("pool", "number", "parked sandboxes kept ready per template in use, at least", pool),
    SETTING("pool_most", "number", "and at most: in between, demand decides", pool_most),
    SIZE_SETTING("pool_memory", "what all parked ones together may take; 0: a quarter of what is free, each template",
                 pool_memory),
    SETTING("sample", "time", "how often usage is written down", sample),
    SETTING("sweep", "time", "how often leftovers and expired snapshots are looked for", sweep),
    SETTING("scrub", "time", "one image is read through so often, to find what the disk has lost; 0: never", scrub),
    SETTING("connections", "number", "connections at a time; 0: what descriptors and memory of the machine allow",
            connections),
    SETTING("allow_unquotaed_disk", "true or false", "run even where no disk limit can be enforced",
            allow_unquotaed_disk),
    SETTING("prove.at_start", "true or false", "attack our own sandboxes when the server has started (`isola prove`)",
            prove_at_start),
    SETTING("prove.every", "time", "and again after so long; 0: never", prove_every),
    SETTING("prove.closes", "true or false", "after a failed proof no new sandboxes are made until one passes",
            prove_closes),
    SETTING("audit.syslog", "address", "where entries of the ledger are told: unix:PATH, udp:HOST:PORT, tcp:HOST:PORT",
            syslog),
    SETTING("audit.checkpoint_entries", "number", "entries of the ledger between two checkpoints; 0: any number",
            checkpoint_entries),
    SETTING("audit.checkpoint_every", "time", "time between two checkpoints while something is written; 0: any time",
            checkpoint_every),
    SETTING("builds.timeout", "time", "the longest that a template build may take, all its stages together",
            build_timeout),
    SETTING("builds.ready_timeout", "time", "of that, until the ready command says that the start command is ready",
            build_ready_timeout),
    SETTING("webhook.again", "time", "after a delivery that failed; the fourth try is the last", webhook_again),
    SETTING("prices.currency", "text", "what prices are in", prices.currency),
    SETTING("prices.cpu_hour", "number", "price of an hour of one busy CPU", prices.cpu_hour),
    SETTING("prices.memory_gib_hour", "number", "price of a GiB of memory for an hour", prices.memory_gib_hour),
    SETTING("prices.disk_gib_hour", "number", "price of a GiB of disk for an hour", prices.disk_gib_hour),
    SETTING("prices.out_gib", "number", "price of a GiB that left", prices.out_gib),
    SETTING("prices.command", "number", "price of one command", prices.command),
};

const Setting* find(std::string_view name) {
  for (const auto& setting : kSettings)
    if (setting.name == name) return &setting;
  return nullptr;
}

// Numbers, because what a name leads to may change; `localhost` is one that is known.
enum class Reach { loopback, network, unknown };

Reach reach_of(const std::string& host) {
  in6_addr six{};
  in_addr four{};
  auto reach = [](bool loopback) { return loopback ? Reach::loopback : Reach::network; };
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return reach((ntohl(four.s_addr) >> 24) == 127);
  if (::inet_pton(AF_INET6, host.c_str(), &six) == 1) return reach(IN6_IS_ADDR_LOOPBACK(&six));
  if (host.empty()) return Reach::network;  // ":8080", which is all of them
  return host == "localhost" ? Reach::loopback : Reach::unknown;
}

}  // namespace

std::span<const Setting> settings() { return kSettings; }

std::string flag_of(const Setting& setting) {
  std::string flag = "--" + std::string(setting.name);
  for (char& c : flag) c = c == '.' || c == '_' ? '-' : c;
  return flag;
}

std::string variable_of(const Setting& setting) {
  std::string name = "ISOLA_" + std::string(setting.name);
  for (char& c : name) c = c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::vector<Given> read_environment_settings(const std::function<const char*(const char*)>& get) {
  std::vector<Given> all;
  for (const auto& setting : kSettings) {
    std::string variable = variable_of(setting);
    if (const char* text = get(variable.c_str()))
      all.push_back({std::string(setting.name), text, "the variable " + variable});
  }
  return all;
}

Result<Config> load_config(const std::string& file, const std::vector<Given>& flags) {
  std::vector<Given> all;
  if (!file.empty()) {
    ISOLA_TRY(all, read_file_settings(file));
  }
  auto environment = read_environment_settings([](const char* name) -> const char* { return std::getenv(name); });
  all.insert(all.end(), environment.begin(), environment.end());
  all.insert(all.end(), flags.begin(), flags.end());
  Config config;
  for (const auto& given : all) {
    const Setting* setting = find(given.name);
    if (!setting) return fail(Code::invalid, given.where + ": there is no setting '" + given.name + "'");
    if (auto set = setting->set(config, given.text); !set)
      return fail(Code::invalid, given.where + ": " + given.name + ": " + set.error().message);
  }
  // It is compared with Host, which has no case.
  for (char& c : config.domain) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  ISOLA_CHECK(check(config));
  return config;
}

std::string domain_of_ports(const Config& config) {
  if (!config.domain.empty() || !config.tls_certificate.empty()) return config.domain;
  for (const auto& address : config.listen) {
    auto at = http::parse_host_port(address);
    if (!at || reach_of(at->first) != Reach::loopback) return {};
  }
  return "localhost";
}

Result<void> check(const Config& config) {
  if (config.listen.empty()) return fail(Code::invalid, "listen: no address is left to listen on");
  if (config.data.empty() || config.data[0] != '/') return fail(Code::invalid, "data: must be an absolute path");
  if (config.tls_certificate.empty() != config.tls_key.empty())
    return fail(Code::invalid, "TLS wants both, tls_certificate and tls_key");
  // Put in front of what is published below it, and compared by whoever checks tokens.
  if (!config.issuer.empty() &&
      (!(config.issuer.starts_with("https://") || config.issuer.starts_with("http://")) ||
       config.issuer.ends_with('/') || config.issuer.find_first_of("?# ") != std::string::npos))
    return fail(Code::invalid, "issuer: must be a URL without '?', '#' and a '/' at its end");
  for (const auto& pair : config.e2b_images)
    if (auto equals = pair.find('='); equals == pair.npos || equals == 0 || equals + 1 == pair.size())
      return fail(Code::invalid, "e2b.images: must be IMAGE=TEMPLATE, not '" + pair + "'");
  static constexpr std::string_view kLevels[] = {"debug", "info", "warn", "error"};
  if (std::find(std::begin(kLevels), std::end(kLevels), config.log_level) == std::end(kLevels))
    return fail(Code::invalid, "log.level: must be debug, info, warn or error");
  if (config.log_format != "text" && config.log_format != "json")
    return fail(Code::invalid, "log.format: must be text or json");
  if (config.sample.count() < 100) return fail(Code::invalid, "sample: must be at least 100ms");
  if (config.sweep.count() < 100) return fail(Code::invalid, "sweep: must be at least 100ms");
  if (config.patience.count() < 100) return fail(Code::invalid, "patience: must be at least 100ms");
  if (config.scan_patience.count() < 100) return fail(Code::invalid, "scan_patience: must be at least 100ms");
  if (config.build_timeout.count() < 1000) return fail(Code::invalid, "builds.timeout: must be at least 1s");
  if (config.build_ready_timeout.count() < 1000)
    return fail(Code::invalid, "builds.ready_timeout: must be at least 1s");
  if (!config.syslog.empty())
    if (auto target = parse_syslog(config.syslog); !target)
      return fail(Code::invalid, "audit.syslog: " + target.error().message);
  for (const auto& address : config.listen) {
    auto at = http::parse_host_port(address);
    if (!at)
      return fail(Code::invalid, "listen: '" + address + "' is not ADDRESS:PORT, such as 127.0.0.1:8080 or [::1]:8080");
    Reach reach = reach_of(at->first);
    if (reach == Reach::unknown)
      return fail(Code::invalid, "listen: an address is a number such as 127.0.0.1 or [::1], not '" + at->first + "'");
    if (reach == Reach::network && config.tls_certificate.empty() && !config.allow_plain)
      return fail(Code::denied, "listen: " + address +
                                    " is not a loopback address, and keys would cross the network in the clear: give "
                                    "tls_certificate and tls_key, or set allow_plain if something else protects it");
  }
  return {};
}

}  // namespace isola::server
