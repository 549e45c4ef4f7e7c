#include "base/text_feed.h"

namespace isola {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// How many bytes a character that begins with this one has; 0: none begins so.
size_t length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return 2;
  if (first >= 0xe0 && first <= 0xef) return 3;
  if (first >= 0xf0 && first <= 0xf4) return 4;
  return 0;
}

// Whether `second` may follow `first`: no surrogates, no overlong forms, nothing above U+10FFFF.
bool may_follow(unsigned char first, unsigned char second) {
  if (second < 0x80 || second > 0xbf) return false;
  if (first == 0xe0) return second >= 0xa0;
  if (first == 0xed) return second <= 0x9f;
  if (first == 0xf0) return second >= 0x90;
  if (first == 0xf4) return second <= 0x8f;
  return true;
}

bool misleads(char32_t c) {
  return (c >= 0x200b && c <= 0x200f) || (c >= 0x202a && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0x061c ||
         c == 0xfeff || c == 0x00ad || c == 0x034f || c == 0x180e || (c >= 0xfff9 && c <= 0xfffb) ||
         (c >= 0xe0000 && c <= 0xe0fff) || (c >= 0xfe00 && c <= 0xfe0f) || c == 0x2028 || c == 0x2029;
}

}  // namespace

void TextFeed::put(std::string& out, char32_t c, std::string_view bytes) {
  if (clean_ == Clean::no) {
    out += bytes;
    return;
  }
  switch (escape_) {
    case Escape::begun:
      if (c == '[')
        escape_ = Escape::csi;
      else if (c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_')
        escape_ = Escape::string;
      else if (c >= 0x20 && c <= 0x2f)
        return;  // intermediate bytes: the final one follows
      else
        escape_ = c == 0x1b ? Escape::begun : Escape::none;
      return;
    case Escape::csi:
      if (c == 0x1b)
        escape_ = Escape::begun;
      else if (c >= 0x40 && c <= 0x7e)
        escape_ = Escape::none;
      return;
    case Escape::string:
      if (c == 0x07 || c == 0x9c) escape_ = Escape::none;
      // A title never has a line break: whoever forgot to close one must not swallow all that follows.
      if (c == '\n') escape_ = Escape::none, out += '\n';
      if (c == 0x1b) escape_ = Escape::string_end;
      return;
    case Escape::string_end:
      escape_ = c == '\\' ? Escape::none : Escape::string;
      if (c == '\n') escape_ = Escape::none, out += '\n';
      return;
    case Escape::none: break;
  }
  if (c == 0x1b) {
    escape_ = Escape::begun;
  } else if (c == 0x9b) {
    escape_ = Escape::csi;
  } else if (c == 0x90 || c == 0x98 || (c >= 0x9d && c <= 0x9f)) {
    escape_ = Escape::string;
  } else if (c == '\n' || c == '\t') {
    out += bytes;
  } else if (c >= 0x20 && c != 0x7f && !(c >= 0x80 && c <= 0x9f) && !misleads(c)) {
    out += bytes;
  }
}

std::string TextFeed::feed(std::string_view bytes) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined += bytes;
    held_.clear();
    bytes = joined;
  }
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    auto first = static_cast<unsigned char>(bytes[at]);
    size_t length = length_of(first), good = length == 0 ? 0 : 1;
    while (good > 0 && good < length && at + good < bytes.size()) {
      auto next = static_cast<unsigned char>(bytes[at + good]);
      if (good == 1 ? !may_follow(first, next) : (next < 0x80 || next > 0xbf)) break;
      ++good;
    }
    if (good == length && good > 0) {
      char32_t c = length == 1 ? first : first & (0x7fu >> length);
      for (size_t i = 1; i < length; ++i) c = (c << 6) | (static_cast<unsigned char>(bytes[at + i]) & 0x3f);
      put(out, c, bytes.substr(at, length));
      at += length;
    } else if (good > 0 && at + good == bytes.size()) {
      held_ = bytes.substr(at);  // the rest may come
      break;
    } else {
      put(out, 0xfffd, kReplacement);
      at += good ? good : 1;
    }
  }
  return out;
}

std::string TextFeed::finish() {
  std::string out;
  if (!held_.empty()) put(out, 0xfffd, kReplacement);
  held_.clear();
  escape_ = Escape::none;
  return out;
}

}  // namespace isola
