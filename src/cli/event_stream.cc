#include "cli/event_stream.h"

namespace isola::cli {

void EventStream::feed(std::string_view piece) {
  for (char c : piece) {
    if (c != '\n') {
      line_ += c;
      continue;
    }
    if (line_.ends_with('\r')) line_.pop_back();
    line(line_);
    line_.clear();
  }
}

void EventStream::line(std::string_view text) {
  if (text.empty()) {
    if (!data_.empty()) take_(event_.empty() ? "message" : event_, data_);
    event_.clear();
    data_.clear();
    return;
  }
  auto colon = text.find(':');
  if (colon == 0) return;  // a comment: the server is there
  auto name = text.substr(0, colon);
  auto value = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (name == "event") event_ = value;
  if (name == "data") {
    if (!data_.empty()) data_ += '\n';
    data_ += value;
  }
}

}  // namespace isola::cli
