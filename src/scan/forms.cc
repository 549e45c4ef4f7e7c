#include "scan/forms.h"

#include <algorithm>
#include <array>
#include <optional>

namespace isola::scan {

namespace {

constexpr std::string_view kLower = "0123456789abcdef";
constexpr std::string_view kStandard = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::string_view kUrlSafe = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

uint8_t byte_of(char c) { return static_cast<uint8_t>(c); }
bool is_word(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool one_of(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

// A spelling that grows: text that is what it is, and digits whose case does not matter.
class Text {
 public:
  explicit Text(Form form) { out_.form = form; }
  void exact(std::string_view text) {
    out_.bytes.append(text);
    out_.loose.append(text.size(), '\0');
  }
  void exact(char c) { exact(std::string_view(&c, 1)); }
  void digits(uint32_t number, int count) {
    for (int shift = (count - 1) * 4; shift >= 0; shift -= 4) {
      out_.bytes.push_back(kLower[(number >> shift) & 15]);
      out_.loose.push_back(1);
    }
  }
  Spelling take() { return std::move(out_); }

 private:
  Spelling out_;
};

// The part of the base64 text of …value… that follows from the value alone, when it begins `before` bytes into a group.
Spelling base64_middle(std::string_view value, size_t before, Form form, std::string_view alphabet) {
  std::string padded(before, '\0');
  padded.append(value);
  size_t first = (before * 8 + 5) / 6, end = padded.size() * 8 / 6;
  padded.append(2, '\0');  // a character may look at the byte behind its own
  Text text(form);
  for (size_t i = first; i < end; ++i) {
    size_t bit = i * 6, at = bit / 8;
    uint32_t pair = (uint32_t{byte_of(padded[at])} << 8) | byte_of(padded[at + 1]);
    text.exact(alphabet[(pair >> (10 - bit % 8)) & 63]);
  }
  std::fill(padded.begin(), padded.end(), '\0');
  return text.take();
}

Spelling hex_of(std::string_view value) {
  Text text(Form::hex);
  for (char c : value) text.digits(byte_of(c), 2);
  return text.take();
}

// `kept`: what stays beside letters and digits.
Spelling url_of(std::string_view value, std::string_view kept, bool plus) {
  Text text(Form::url);
  for (char c : value) {
    if (plus && c == ' ') {
      text.exact('+');
    } else if (is_word(c) || one_of(c, kept)) {
      text.exact(c);
    } else {
      text.exact('%');
      text.digits(byte_of(c), 2);
    }
  }
  return text.take();
}

Spelling url_whole(std::string_view value) {
  Text text(Form::url);
  for (char c : value) {
    text.exact('%');
    text.digits(byte_of(c), 2);
  }
  return text.take();
}

size_t size_of(char32_t point) { return point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4; }

// The code points of UTF-8; nothing where it is none.
std::optional<std::vector<char32_t>> points_of(std::string_view text) {
  std::vector<char32_t> points;
  for (size_t i = 0; i < text.size();) {
    uint8_t lead = byte_of(text[i]);
    int more = lead < 0x80 ? 0 : lead < 0xc2 ? -1 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : lead < 0xf5 ? 3 : -1;
    if (more < 0 || i + static_cast<size_t>(more) >= text.size()) return std::nullopt;
    char32_t point = more == 0 ? lead : lead & (0x3f >> more);
    for (int k = 1; k <= more; ++k) {
      uint8_t next = byte_of(text[i + static_cast<size_t>(k)]);
      if ((next & 0xc0) != 0x80) return std::nullopt;
      point = (point << 6) | (next & 0x3f);
    }
    if (size_of(point) != static_cast<size_t>(more) + 1 || point > 0x10ffff) return std::nullopt;
    points.push_back(point);
    i += static_cast<size_t>(more) + 1;
  }
  return points;
}

void unicode_escape(Text& text, char32_t point) {
  auto unit = [&](uint32_t number) {
    text.exact("\\u");
    text.digits(number, 4);
  };
  if (point < 0x10000) return unit(point);
  unit(0xd800 + ((point - 0x10000) >> 10));
  unit(0xdc00 + ((point - 0x10000) & 0x3ff));
}

// What a JSON writer does with a text. `also`: ASCII that it escapes as \u00XX beyond what it must.
struct JsonWriter {
  std::string_view also;
  bool slash = false;  // \/
  bool ascii = false;  // everything beyond ASCII as \uXXXX
  bool whole = false;  // everything as \uXXXX
};

Spelling json_of(std::string_view value, const std::vector<char32_t>& points, const JsonWriter& writer) {
  Text text(Form::json);
  size_t at = 0;
  for (char32_t point : points) {
    if (writer.whole) {  // also of bytes that are no text
      unicode_escape(text, point);
      continue;
    }
    size_t size = size_of(point);
    std::string_view here = value.substr(at, size);
    at += size;
    static constexpr std::string_view kShort = "\b\f\n\r\t", kLetters = "bfnrt";
    if ((point >= 0x80 && writer.ascii) || (point < 0x80 && one_of(static_cast<char>(point), writer.also))) {
      unicode_escape(text, point);
    } else if (point == '"' || point == '\\' || (point == '/' && writer.slash)) {
      text.exact('\\');
      text.exact(here);
    } else if (size_t letter = point < 0x20 ? kShort.find(static_cast<char>(point)) : std::string_view::npos;
               letter != std::string_view::npos) {
      text.exact('\\');
      text.exact(kLetters[letter]);
    } else if (point < 0x20) {
      unicode_escape(text, point);
    } else {
      text.exact(here);
    }
  }
  return text.take();
}

// JSON inside a string of JSON.
Spelling quoted_again(const Spelling& once) {
  Text text(Form::json);
  for (size_t i = 0; i < once.bytes.size(); ++i) {
    char c = once.bytes[i];
    if (once.loose[i]) {
      text.digits(static_cast<uint32_t>(kLower.find(c)), 1);
      continue;
    }
    if (c == '"' || c == '\\') text.exact('\\');
    text.exact(c);
  }
  return text.take();
}

struct HtmlWriter {
  std::string_view quote, apostrophe;  // empty: stay as they are
  std::string_view amp = "&amp;", less = "&lt;", more = "&gt;";
};

Spelling html_of(std::string_view value, const HtmlWriter& writer) {
  Text text(Form::html);
  for (char c : value) {
    std::string_view word = c == '&'    ? writer.amp
                            : c == '<'  ? writer.less
                            : c == '>'  ? writer.more
                            : c == '"'  ? writer.quote
                            : c == '\'' ? writer.apostrophe
                                        : std::string_view();
    if (word.empty())
      text.exact(c);
    else
      text.exact(word);
  }
  return text.take();
}

Spelling html_whole(const std::vector<char32_t>& points, bool hex) {
  Text text(Form::html);
  for (char32_t point : points) {
    if (hex) {
      text.exact("&#x");
      text.digits(point, point < 0x10 ? 1 : point < 0x100 ? 2 : point < 0x1000 ? 3 : point < 0x10000 ? 4 : 5);
    } else {
      text.exact("&#");
      text.exact(std::to_string(static_cast<uint32_t>(point)));
    }
    text.exact(';');
  }
  return text.take();
}

}  // namespace

std::string_view to_string(Form form) {
  static constexpr std::array<std::string_view, 7> kWords = {"raw", "base64", "base64url", "hex",
                                                             "url", "json",   "html"};
  return kWords.at(static_cast<size_t>(form));
}

std::vector<Spelling> spellings(std::string_view value) {
  std::vector<Spelling> all;
  auto add = [&](Spelling one) {
    auto same = [&](const Spelling& other) { return other.bytes == one.bytes && other.loose == one.loose; };
    if (std::none_of(all.begin(), all.end(), same)) all.push_back(std::move(one));
  };
  add({.form = Form::raw, .bytes = std::string(value), .loose = std::string(value.size(), '\0')});
  for (size_t before : {0, 1, 2}) add(base64_middle(value, before, Form::base64, kStandard));
  for (size_t before : {0, 1, 2}) add(base64_middle(value, before, Form::base64url, kUrlSafe));
  add(hex_of(value));
  // RFC 3986; encodeURIComponent; Python's quote; encodeURI; forms; everything.
  for (std::string_view kept : {"-._~", "-._~!*'()", "-._~/", "-._~!*'();/?:@&=+$,#"}) add(url_of(value, kept, false));
  add(url_of(value, "*-._", true));
  add(url_of(value, "*-._", false));
  add(url_whole(value));
  // Bytes that are no text are written as if each were a character.
  auto points = points_of(value);
  std::vector<char32_t> bytes;
  for (char c : value) bytes.push_back(byte_of(c));
  if (points) {
    for (const JsonWriter& writer :
         {JsonWriter{}, JsonWriter{.slash = true}, JsonWriter{.ascii = true}, JsonWriter{.slash = true, .ascii = true},
          JsonWriter{.also = "<>&"}, JsonWriter{.also = "<>&'"}, JsonWriter{.also = "<>&'+"},
          JsonWriter{.also = "\"<>&'+/", .ascii = true}}) {
      Spelling once = json_of(value, *points, writer);
      add(quoted_again(once));
      add(std::move(once));
    }
  }
  add(json_of(value, points ? *points : bytes, {.whole = true}));
  for (const HtmlWriter& writer :
       {HtmlWriter{}, HtmlWriter{.quote = "&quot;"}, HtmlWriter{.quote = "&quot;", .apostrophe = "&#39;"},
        HtmlWriter{.quote = "&quot;", .apostrophe = "&#039;"}, HtmlWriter{.quote = "&quot;", .apostrophe = "&#x27;"},
        HtmlWriter{.quote = "&quot;", .apostrophe = "&apos;"}, HtmlWriter{.quote = "&#34;", .apostrophe = "&#39;"}})
    add(html_of(value, writer));
  add(html_whole(points ? *points : bytes, false));
  add(html_whole(points ? *points : bytes, true));
  return all;
}

}  // namespace isola::scan
