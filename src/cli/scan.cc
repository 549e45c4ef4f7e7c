// isola scan: looks for secrets in files, folders and what git is about to take, with the engine that scans the streams
// of sandboxes. What is found is never printed, only where it is and what it looks like.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/finder.h"
#include "cli/register.h"
#include "cli/scan_git.h"
#include "cli/table.h"

namespace isola::cli {

namespace {

using nlohmann::json;

constexpr int kFound = 1, kCouldNotLook = 2;

struct ScanOptions {
  std::vector<std::string> paths;
  std::string secrets_file, remote;
  bool staged = false, push = false;
};

Result<std::string> read_scan_input() {
  std::string all;
  char buffer[4096];
  for (;;) {
    ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot read standard input");
    if (n == 0) return all;
    all.append(buffer, static_cast<size_t>(n));
    if (all.size() > 16 << 20) return fail(Code::exhausted, "standard input is longer than 16 MiB");
  }
}

// A value a line. They are known by the number of their line.
Result<std::shared_ptr<const scan::Automaton>> automaton_of(const std::string& file) {
  std::string text;
  std::vector<scan::Value> values;
  if (!file.empty()) {
    auto read = file == "-" ? read_scan_input() : read_file(file);
    if (!read) return std::unexpected(read.error());
    text = std::move(*read);
    size_t number = 0;
    for (size_t at = 0; at < text.size();) {
      size_t end = std::min(text.find('\n', at), text.size());
      ++number;
      std::string_view value = std::string_view(text).substr(at, end - at);
      if (value.ends_with('\r')) value.remove_suffix(1);
      if (!value.empty()) values.push_back({fmt::format("value {} of the secrets file", number), value});
      at = end + 1;
    }
  }
  auto made = scan::Automaton::make(values);
  std::fill(text.begin(), text.end(), '\0');
  if (!made) return made;
  for (const auto& id : (*made)->unsearched())
    std::fprintf(stderr, "isola: %s is too short or too even to be searched for\n", id.c_str());
  return made;
}

Result<int> scan_all(const Common& common, const ScanOptions& options) {
  if (options.paths.empty() && !options.staged && !options.push)
    return fail(Code::invalid, "what is to be looked through? Paths, --staged or --push");
  if (options.push && options.secrets_file == "-")
    return fail(Code::invalid, "--push reads standard input, so the secrets have to come from a file");
  ISOLA_TRY(auto automaton, automaton_of(options.secrets_file));
  Finder finder(automaton);
  for (const auto& path : options.paths) ISOLA_CHECK(scan_path(finder, path));
  std::vector<GitObject> objects;
  if (options.staged) {
    ISOLA_TRY(objects, staged_objects());
  }
  if (options.push) {
    ISOLA_TRY(std::string lines, read_scan_input());
    ISOLA_TRY(auto pushed, pushed_objects(lines, options.remote));
    objects.insert(objects.end(), pushed.begin(), pushed.end());
  }
  bool begun = false;
  ISOLA_CHECK(read_objects(objects, [&](const GitObject& object, std::string_view bytes) {
    if (!begun) finder.begin(object.where);
    begun = !bytes.empty();
    if (begun)
      finder.feed(bytes);
    else
      finder.end();
  }));
  if (common.json) {
    json found = json::array();
    for (const auto& one : finder.findings())
      found.push_back({{"where", one.where}, {"line", one.line}, {"what", one.what}});
    print_json({{"findings", found}, {"looked_at", finder.texts()}});
  } else {
    for (const auto& one : finder.findings()) print(fmt::format("{}:{}: {}\n", shown(one.where), one.line, one.what));
  }
  return finder.findings().empty() ? 0 : kFound;
}

}  // namespace

void add_scan(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<ScanOptions>();
  auto* command = app.add_subcommand("scan", "Look for secrets in files, folders, and what git is about to take");
  command->add_option("path", options->paths, "Files and folders");
  command->add_option("--secrets-file", options->secrets_file, "Values to look for, one a line; - is standard input");
  command->add_flag("--staged", options->staged, "What a commit would take: for a pre-commit hook");
  command->add_flag("--push", options->push, "What a push would send: for a pre-push hook, whose input it reads");
  command->add_option("--remote", options->remote, "With --push: the remote's name");
  command->callback([&common, &code, options] {
    auto done = scan_all(common, *options);
    code = done ? *done : (complain(done.error().message), kCouldNotLook);
  });
}

}  // namespace isola::cli
