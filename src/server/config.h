// Everything that can be set, from a file, the environment and flags: a flag wins over the environment, the environment
// over the file, the file over the default. One table (settings() in config.cc) is parser, help and docs at once.
//
//   # isola.toml
//   listen = ["127.0.0.1:8080"]
//   [defaults]
//   memory = "512M"
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "boundary/boundary.h"
#include "ledger/usage.h"

namespace isola::server {

struct Config {
  std::vector<std::string> listen = {"127.0.0.1:8080"};
  std::string data = "/var/lib/isola";
  std::string cache = "/var/cache/isola";
  std::string user = "isola";
  std::string tls_certificate, tls_key;
  bool allow_plain = false;  // listen on other addresses than loopback without TLS
  std::string domain;
  std::vector<std::string> hosts;
  std::string issuer;  // URL
  std::vector<std::string> registries;
  bool e2b_context_token = false;       // E2B's routes of contexts take a sandbox's token alone
  std::vector<std::string> e2b_images;  // IMAGE=TEMPLATE
  std::string log_level = "info", log_format = "text";
  bool access_log = true;
  uint32_t workers = 0;  // 0: as many as cores
  std::string default_template = "base";
  boundary::Limits limits;
  std::chrono::milliseconds timeout{std::chrono::hours(1)};
  uint32_t pool = 2, pool_most = 128;
  uint64_t pool_memory = 0;
  std::chrono::milliseconds sample{30000};
  std::chrono::milliseconds grace{10000};
  std::chrono::milliseconds patience{30000};
  std::chrono::milliseconds scan_patience{10000};
  std::chrono::milliseconds sweep{20000};
  std::chrono::milliseconds scrub{600000};
  uint64_t keep_ended_days = 30;
  bool allow_unquotaed_disk = false;
  bool prove_at_start = false;
  std::chrono::milliseconds prove_every{0};  // 0: never
  bool prove_closes = false;                 // a failed proof closes the door to new sandboxes
  std::string syslog;                        // where the ledger is told; empty: nowhere
  uint64_t connections = 0;
  uint64_t checkpoint_entries = 10000;
  std::chrono::milliseconds checkpoint_every{std::chrono::minutes(10)};
  std::chrono::milliseconds build_timeout{std::chrono::hours(1)};
  std::chrono::milliseconds build_ready_timeout{std::chrono::minutes(10)};
  std::chrono::milliseconds webhook_again{10000};  // after a delivery that failed
  ledger::PriceSheet prices;
};

// One thing that can be set.
struct Setting {
  std::string_view name;  // as in the file: "defaults.memory"; the flag is --defaults-memory, the variable
                          // ISOLA_DEFAULTS_MEMORY
  std::string_view kind;  // what its text looks like: "size", "time", "true or false" …
  std::string_view help;
  Result<void> (*set)(Config&, const std::string& text);
  std::string (*get)(const Config&);
};
std::span<const Setting> settings();
std::string flag_of(const Setting& setting);
std::string variable_of(const Setting& setting);

// Values as texts, by name.
struct Given {
  std::string name, text, where;
};
Result<std::vector<Given>> read_file_settings(const std::string& path);
Result<std::vector<Given>> parse_settings(std::string_view toml, const std::string& where);
std::vector<Given> read_environment_settings(const std::function<const char*(const char*)>& get);

// `flags` were given on the command line; `file` is empty or a path.
Result<Config> load_config(const std::string& file, const std::vector<Given>& flags);
Result<void> check(const Config& config);
// Below which the ports of sandboxes have names, <port>-<id>.<this>; empty: none. Where no domain is set and everybody
// who asks is on this machine it is `localhost`: browsers take each name below that for the machine itself.
std::string domain_of_ports(const Config& config);

}  // namespace isola::server
