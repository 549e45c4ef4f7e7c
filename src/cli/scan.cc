// isola scan: looks for secrets in files, folders and what git is about to take, with the engine that scans the streams
// of sandboxes. What is found is never printed, only where it is and what it looks like.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fd.h"
#include "base/file.h"
#include "cli/register.h"
#include "cli/scan_git.h"
#include "cli/table.h"
#include "scan/shapes.h"
#include "scan/stream.h"

namespace isola::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kFound = 1, kCouldNotLook = 2;

struct ScanOptions {
  std::vector<std::string> paths;
  std::string secrets_file, remote;
  bool staged = false, push = false;
};

struct Finding {
  std::string where, what;
  uint64_t line = 0;
};

// One text after the other, each in pieces.
class Finder {
 public:
  explicit Finder(std::shared_ptr<const scan::Automaton> automaton) : automaton_(std::move(automaton)) {}

  void begin(const std::string& where) {
    where_ = where;
    stream_.emplace(automaton_);
    text_.clear();
    lines_ = 1;
    dropped_ = fresh_ = 0;
    ++texts_;
  }
  void feed(std::string_view bytes) {
    std::vector<scan::Hit> hits;
    text_.append(bytes);
    out_.clear();
    stream_->feed(bytes, out_, hits);
    // The beginning of a hit may be in what was dropped: its line is then the first that is left.
    for (const auto& hit : hits) {
      size_t at = hit.offset > dropped_ ? static_cast<size_t>(hit.offset - dropped_) : 0;
      add(at, fmt::format("{} ({})", automaton_->id_of(hit.value), to_string(hit.form)));
    }
    if (text_.size() >= kWindow) look(text_.size() - kOverlap);
  }
  void end() {
    look(text_.size());
    text_.clear();
    text_.shrink_to_fit();
  }
  const std::vector<Finding>& findings() const { return findings_; }
  size_t texts() const { return texts_; }

 private:
  static constexpr size_t kWindow = 8 << 20, kOverlap = 2 * scan::kLongestShape;

  // Tokens that begin before `until`: one that begins later is seen whole the next time.
  void look(size_t until) {
    for (const auto& hit : scan::find_shapes(text_))
      if (hit.offset >= fresh_ && hit.offset < until) add(hit.offset, std::string(scan::shapes()[hit.shape].what));
    // A little of what was looked at stays: what stands before a token counts.
    size_t drop = until > kOverlap ? until - kOverlap : 0;
    lines_ += static_cast<uint64_t>(std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(drop), '\n'));
    dropped_ += drop;
    fresh_ = until - drop;
    text_.erase(0, drop);
  }
  void add(size_t at, std::string what) {
    auto line =
        lines_ + static_cast<uint64_t>(std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at), '\n'));
    Finding finding{where_, std::move(what), line};
    auto same = [&](const Finding& other) {
      return other.where == finding.where && other.what == finding.what && other.line == finding.line;
    };
    if (std::none_of(findings_.begin(), findings_.end(), same)) findings_.push_back(std::move(finding));
  }

  std::shared_ptr<const scan::Automaton> automaton_;
  std::optional<scan::Stream> stream_;
  std::string where_, text_, out_;
  uint64_t lines_ = 1, dropped_ = 0;
  size_t fresh_ = 0, texts_ = 0;
  std::vector<Finding> findings_;
};

Result<void> scan_file(Finder& finder, const std::string& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return sys_error("cannot open " + path);
  finder.begin(path);
  std::vector<char> buffer(1 << 20);
  for (;;) {
    ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot read " + path);
    if (n == 0) break;
    finder.feed(std::string_view(buffer.data(), static_cast<size_t>(n)));
  }
  finder.end();
  return {};
}

// A folder with all that is in it, but no links and not what git keeps of its own.
Result<void> scan_path(Finder& finder, const std::string& path) {
  std::error_code error;
  auto status = fs::status(path, error);
  if (error || !fs::exists(status)) return fail(Code::not_found, path + ": there is no such file");
  if (!fs::is_directory(status)) return scan_file(finder, path);
  fs::recursive_directory_iterator at(path, error), end;
  for (; !error && at != end; at.increment(error)) {
    if (at->is_directory(error) && at->path().filename() == ".git") at.disable_recursion_pending();
    if (at->is_symlink(error) || !at->is_regular_file(error)) continue;
    ISOLA_CHECK(scan_file(finder, at->path()));
  }
  if (error) return fail(Code::denied, "cannot look through " + path + ": " + error.message());
  return {};
}

Result<std::string> read_input() {
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
    auto read = file == "-" ? read_input() : read_file(file);
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
    ISOLA_TRY(std::string lines, read_input());
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
