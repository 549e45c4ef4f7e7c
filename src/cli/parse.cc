#include "cli/parse.h"

#include "base/units.h"

namespace isola::cli {

Result<void> check_environment(const std::vector<std::string>& entries) {
  for (const auto& entry : entries)
    if (entry.find('=') == std::string::npos || entry[0] == '=')
      return fail(Code::invalid, "--env " + entry + ": write it as NAME=value");
  return {};
}

Result<Mount> parse_mount(const std::string& text) {
  auto colon = text.find(':');
  Mount mount{text.substr(0, colon), colon == std::string::npos ? text : text.substr(colon + 1)};
  if (mount.host.empty()) return fail(Code::invalid, "--mount-ro " + text + ": show what? Write it as HOST[:INSIDE]");
  while (mount.inside.size() > 1 && mount.inside.ends_with('/')) mount.inside.pop_back();  // as shells complete it
  if (mount.inside.empty() || mount.inside[0] != '/')
    return fail(Code::invalid, "--mount-ro " + text + ": the place inside must be an absolute path");
  return mount;
}

Result<boundary::Limits> limits_of(const RunOptions& options) {
  boundary::Limits limits;
  if (options.cpus) limits.cpus = *options.cpus;
  if (options.pids) limits.pids = *options.pids;
  if (options.open_files) limits.open_files = *options.open_files;
  auto size = [](const std::string& text, uint64_t& out) -> Result<void> {
    if (text.empty()) return {};
    ISOLA_TRY(out, parse_size(text));
    return {};
  };
  ISOLA_CHECK(size(options.memory, limits.memory));
  ISOLA_CHECK(size(options.disk, limits.disk));
  ISOLA_CHECK(size(options.io, limits.io_bytes_per_second));
  if (!options.timeout.empty()) {
    ISOLA_TRY(limits.wall_time, parse_duration(options.timeout));
    if (limits.wall_time.count() == 0) return fail(Code::invalid, "--timeout 0 would end before it began");
  }
  return limits;
}

}  // namespace isola::cli
