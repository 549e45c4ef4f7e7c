#include "builder/build_log.h"

#include "base/log.h"
#include "sandbox/box.h"

namespace isola::builder {

void BuildLog::say(const std::string& level, const std::string& step, std::string_view text) {
  std::vector<store::BuildLine> lines;
  add(lines, level, step, text);
  write(lines);
}

void BuildLog::output(const std::string& step, std::string_view bytes) {
  std::vector<store::BuildLine> lines;
  pending_ += bytes;
  size_t from = 0;
  for (size_t end; (end = pending_.find('\n', from)) != std::string::npos; from = end + 1)
    add(lines, "info", step, std::string_view(pending_).substr(from, end - from));
  pending_.erase(0, from);
  if (pending_.size() > kLongest) {
    add(lines, "info", step, pending_);
    pending_.clear();
  }
  write(lines);
}

void BuildLog::end_output(const std::string& step) {
  if (!pending_.empty()) say("info", step, std::exchange(pending_, {}));
}

void BuildLog::add(std::vector<store::BuildLine>& lines, const std::string& level, const std::string& step,
                   std::string_view text) {
  // The last word is always the build's own: how it ended.
  if (next_ == kMostLines && level == "info") text = "(more output is left out)";
  if (next_ > kMostLines && level == "info") return;
  if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  lines.push_back({next_++, sandbox::now_millis(), level, step, std::string(text.substr(0, kLongest))});
}

void BuildLog::write(const std::vector<store::BuildLine>& lines) {
  if (lines.empty()) return;
  if (auto written = store_.add_build_lines(build_, lines); !written)
    log::warn("builder", "the log of build {} has a gap: {}", build_, written.error().message);
}

}  // namespace isola::builder
