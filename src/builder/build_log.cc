#include "builder/build_log.h"

#include "base/log.h"
#include "sandbox/box.h"

namespace isola::builder {

void BuildLog::say(const std::string& level, const std::string& step, std::string_view text) {
  std::vector<store::BuildLine> lines;
  add(lines, level, step, text);
  write(lines);
}

void BuildLog::output(const std::string& step, std::string_view bytes, const std::string& whose) {
  std::vector<store::BuildLine> lines;
  std::string& pending = pending_[whose];
  pending += bytes;
  size_t from = 0;
  for (size_t end; (end = pending.find('\n', from)) != std::string::npos; from = end + 1)
    add(lines, "info", step, std::string_view(pending).substr(from, end - from));
  pending.erase(0, from);
  if (pending.size() > kLongest) {
    add(lines, "info", step, pending);
    pending.clear();
  }
  write(lines);
}

void BuildLog::end_output(const std::string& step, const std::string& whose) {
  if (auto rest = pending_.extract(whose); rest && !rest.mapped().empty()) say("info", step, rest.mapped());
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
