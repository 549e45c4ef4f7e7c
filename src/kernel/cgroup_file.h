// Small helpers for cgroup's files, shared by the parts of Cgroup.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "kernel/fault.h"

namespace isola::kernel::cgroup_file {

inline Result<void> write(const std::string& path, std::string_view text) {
  if (int e = fault::at("cgroup_write")) return sys_error("cannot write " + path, e);
  return write_file(path, text);
}

// The number at the start of a text; 0 for "max" and anything else that is no number.
inline uint64_t number(std::string_view text) {
  uint64_t out = 0;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

inline Result<uint64_t> read_number(const std::string& path) {
  ISOLA_TRY(std::string text, read_file(path));
  return number(text);
}

// The number behind a key in "key value" lines or "key=value" words; 0 if the key is not there.
inline uint64_t keyed(std::string_view text, std::string_view key) {
  for (size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    bool starts = at == 0 || text[at - 1] == '\n' || text[at - 1] == ' ';
    size_t end = at + key.size();
    if (starts && end < text.size() && (text[end] == ' ' || text[end] == '=')) return number(text.substr(end + 1));
  }
  return 0;
}

}  // namespace isola::kernel::cgroup_file
