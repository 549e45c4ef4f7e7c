#include "http/multipart.h"

#include <algorithm>

#include "http/text.h"

namespace isola::http {

namespace {

constexpr size_t kMaxPreamble = 4 << 10;

// The parameters of "form-data; name=\"a\"; filename=\"b\"": calls f with each name and unquoted value.
template <typename F>
Result<void> each_parameter(std::string_view text, F f) {
  size_t semicolon = text.find(';');
  while (semicolon != text.npos) {
    text = trim(text.substr(semicolon + 1));
    if (text.empty()) break;
    size_t equals = text.find('=');
    if (equals == text.npos) return fail(Code::invalid, "a parameter has no value");
    std::string_view name = trim(text.substr(0, equals));
    text = trim(text.substr(equals + 1));
    std::string value;
    if (text.starts_with('"')) {
      size_t i = 1;
      for (; i < text.size() && text[i] != '"'; i++) {
        // Browsers escape only the quote; a backslash before anything else is part of an old client's path.
        if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\')) i++;
        value += text[i];
      }
      if (i >= text.size()) return fail(Code::invalid, "a quoted value does not end");
      text = text.substr(i + 1);
      semicolon = text.find(';');
      if (!trim(text.substr(0, semicolon)).empty()) return fail(Code::invalid, "something follows a quoted value");
    } else {
      semicolon = text.find(';');
      value = trim(text.substr(0, semicolon));
    }
    f(name, std::move(value));
  }
  return {};
}

}  // namespace

Result<std::string> multipart_boundary(std::string_view content_type) {
  if (!equal_nocase(trim(content_type.substr(0, content_type.find(';'))), "multipart/form-data")) {
    return fail(Code::invalid, "the body is not multipart/form-data");
  }
  std::string boundary;
  int count = 0;
  ISOLA_CHECK(each_parameter(content_type, [&](std::string_view name, std::string value) {
    if (equal_nocase(name, "boundary")) boundary = std::move(value), count++;
  }));
  bool fine = count == 1 && !boundary.empty() && boundary.size() <= 70;
  for (char c : boundary) fine = fine && c >= ' ' && c < 127;
  if (!fine) return fail(Code::invalid, "multipart/form-data needs one boundary of at most 70 characters");
  return boundary;
}

MultipartParser::MultipartParser(std::string_view boundary, MultipartCallbacks callbacks, size_t max_parts)
    : delimiter_("\r\n--" + std::string(boundary)), on_(std::move(callbacks)), max_parts_(max_parts) {
  buffer_ = "\r\n";  // so that a boundary at the very beginning looks like all others
}

Result<void> MultipartParser::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    // In portions, so that memory does not follow the caller's piece.
    size_t n = std::min<size_t>(bytes.size(), 16 << 10);
    buffer_ += bytes.substr(0, n);
    bytes.remove_prefix(n);
    for (bool more = true; more;) {
      ISOLA_TRY(more, step());
    }
  }
  return {};
}

Result<bool> MultipartParser::step() {
  switch (state_) {
    case State::preamble: {
      size_t at = buffer_.find(delimiter_);
      if (at == buffer_.npos) {
        if (buffer_.size() > kMaxPreamble + delimiter_.size())
          return fail(Code::invalid, "the first boundary does not come");
        return false;
      }
      buffer_.erase(0, at + delimiter_.size());
      state_ = State::after;
      return true;
    }
    case State::after: {
      // Behind a boundary: -- for the last one, else the end of its line.
      if (buffer_.size() < 2) return false;
      if (buffer_.starts_with("--")) {
        state_ = State::done;
        buffer_.clear();
        return true;
      }
      size_t text = buffer_.find_first_not_of(" \t");
      if (text == buffer_.npos || buffer_.size() < text + 2) {
        if (buffer_.size() > 256) return fail(Code::invalid, "a boundary's line is malformed");
        return false;
      }
      if (buffer_.compare(text, 2, "\r\n") != 0) return fail(Code::invalid, "a boundary's line is malformed");
      if (++parts_ > max_parts_) return fail(Code::invalid, "the form has too many parts");
      buffer_.erase(0, text);  // its CR LF stays: a head may be empty
      state_ = State::head;
      return true;
    }
    case State::head: {
      size_t end = buffer_.find("\r\n\r\n");
      if (end == buffer_.npos || end > kMaxHead) {
        if (buffer_.size() > kMaxHead) return fail(Code::invalid, "the head of a part is too large");
        return false;
      }
      ISOLA_CHECK(read_head(std::string_view(buffer_).substr(2, end < 2 ? 0 : end - 2)));
      buffer_.erase(0, end + 4);
      state_ = State::data;
      return true;
    }
    case State::data: {
      size_t at = buffer_.find(delimiter_);
      // What could be the beginning of a delimiter waits for more.
      size_t sure = at != buffer_.npos                   ? at
                    : buffer_.size() < delimiter_.size() ? 0
                                                         : buffer_.size() - delimiter_.size() + 1;
      if (sure > 0) {
        if (on_.data) ISOLA_CHECK(on_.data(std::string_view(buffer_).substr(0, sure)));
        buffer_.erase(0, sure);
      }
      if (at == std::string::npos) return false;
      buffer_.erase(0, delimiter_.size());
      if (on_.end) ISOLA_CHECK(on_.end());
      state_ = State::after;
      return true;
    }
    case State::done:
      buffer_.clear();  // an epilogue is read over
      return false;
  }
  return false;
}

Result<void> MultipartParser::read_head(std::string_view head) {
  Part part;
  bool named = false;
  while (!head.empty()) {
    size_t end = head.find("\r\n");
    std::string_view line = head.substr(0, end);
    head = end == head.npos ? std::string_view() : head.substr(end + 2);
    size_t colon = line.find(':');
    if (colon == line.npos || !is_token(line.substr(0, colon)))
      return fail(Code::invalid, "the head of a part is malformed");
    for (char c : line) {
      if ((static_cast<unsigned char>(c) < ' ' && c != '\t') || c == 127)
        return fail(Code::invalid, "the head of a part is malformed");
    }
    std::string_view name = line.substr(0, colon), value = trim(line.substr(colon + 1));
    if (equal_nocase(name, "Content-Type")) part.type = value;
    if (!equal_nocase(name, "Content-Disposition")) continue;
    if (named || !equal_nocase(trim(value.substr(0, value.find(';'))), "form-data")) {
      return fail(Code::invalid, "a part of a form has one Content-Disposition: form-data");
    }
    named = true;
    bool twice = false, any_name = false;
    ISOLA_CHECK(each_parameter(value, [&](std::string_view key, std::string text) {
      if (equal_nocase(key, "name")) {
        twice = twice || any_name;
        any_name = true;
        part.name = std::move(text);
      } else if (equal_nocase(key, "filename")) {
        twice = twice || part.has_filename;
        part.filename = std::move(text);
        part.has_filename = true;
      }
    }));
    if (twice || !any_name) return fail(Code::invalid, "a part of a form has one name");
  }
  if (!named) return fail(Code::invalid, "a part of a form has a Content-Disposition");
  if (on_.part) return on_.part(part);
  return {};
}

Result<void> MultipartParser::finish() {
  if (state_ != State::done) return fail(Code::invalid, "the form ends before its last boundary");
  return {};
}

}  // namespace isola::http
