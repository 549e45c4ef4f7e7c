// Looks for secrets in texts: values that are known, and tokens that can be told by their looks. Never the token
// itself, only where it is and what it looks like.
//
//   Finder finder(automaton);
//   ISOLA_CHECK(scan_path(finder, "src"));
//   for (const Finding& one : finder.findings()) …
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "scan/shapes.h"
#include "scan/stream.h"

namespace isola::cli {

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

// A file, or a folder with all that is in it, but no links, and no folders that are left out: by their path below it.
// As a rule what git keeps of its own, which is looked through with git (scan_git.h).
using LeavesOut = std::function<bool(const std::string& below)>;
bool is_gits_own(const std::string& below);
Result<void> scan_path(Finder& finder, const std::string& path, const LeavesOut& leaves_out = is_gits_own);

}  // namespace isola::cli
