// The machine's own package sources, for building templates from them: whatever the operator configured (mirror, proxy,
// keys) is what a template is made from, and no mirror is named in this project.
//
// Both forms that apt reads are understood: one-line `deb [options] uri suite component…` (.list) and deb822 stanzas
// (.sources). Only entries whose suite belongs to the machine's distribution count (`bookworm`, `bookworm-updates`,
// `bookworm-security` …): a third party's repository must not get into a template by accident.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace isola::image {

struct AptSource {
  std::vector<std::string> uris, suites, components;
  std::string signed_by;  // a path, several, or a whole key (with line breaks); empty: apt's trusted keys
  std::string trusted;    // "yes" switches signature checks off, as the operator has it
  std::vector<std::string> architectures;

  bool operator==(const AptSource&) const = default;
};

struct Distribution {
  std::string id;        // "debian", "ubuntu"
  std::string codename;  // "bookworm"
};

struct HostSources {
  Distribution distribution;
  std::vector<AptSource> sources;
  std::vector<std::string> apt_options;  // Acquire::http::Proxy "…" and the like, as `apt-config dump` prints them
};

Result<Distribution> parse_os_release(std::string_view text);
// Entries that cannot be read are left out, as apt does with unknown types; disabled and deb-src entries too.
std::vector<AptSource> parse_one_line(std::string_view text);
std::vector<AptSource> parse_deb822(std::string_view text);
// Only the suites of that distribution; sources without any are dropped, and so are cdrom: ones.
std::vector<AptSource> of_distribution(std::vector<AptSource> sources, const Distribution& distribution);
// As deb822 text. `for_guest` leaves out what must not leave the machine: user names and passwords in URIs.
std::string to_deb822(const std::vector<AptSource>& sources, bool for_guest);
// The lines of `apt-config dump` that say how to reach sources (proxies, certificates, retries, validity).
std::vector<std::string> pick_apt_options(std::string_view dump);
// Files on this machine that the sources name: keyrings and mirror lists.
std::vector<std::string> named_files(const std::vector<AptSource>& sources);

// Reads /etc/os-release and /etc/apt below `root`, and asks apt-config when root is "/".
Result<HostSources> read_host_sources(const std::string& root = "/");

}  // namespace isola::image
