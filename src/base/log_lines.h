// How log lines look, and what they never hold. log.h writes them; this is for whoever sets it up, and for its test.
#pragma once

#include <string>
#include <string_view>

#include "base/log.h"

namespace isola::log {

// `time level room: message name=value…`, or an object with the same members a line.
enum class Format { text, json };
void set_format(Format format);

// One line, with its end. Whatever looks like an API key is masked, wherever it came from: a path, a request id.
std::string line(Format format, int64_t ms, Level level, std::string_view room, std::string_view message,
                 Fields fields = {});

// Lines of some moments ago, written together; what is left, at the end.
class Lines {
 public:
  Lines() = default;
  ~Lines() { write(); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  void add(int64_t ms, Level level, std::string_view room, std::string_view message, Fields fields = {});

 private:
  void write();
  std::string text_;
};

}  // namespace isola::log
