#include "builder/dockerfile_words.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/json_bound.h"
#include "base/text_feed.h"

namespace isola::builder {

namespace {

constexpr size_t kMaxNesting = 16;  // of ${a:-${b:-…}}: each level copies what is in it

bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
char to_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

// Where the name that begins at `at` ends; `at` itself: there is none.
size_t name_end(std::string_view text, size_t at) {
  if (at >= text.size() || !begins_name(text[at])) return at;
  while (at < text.size() && (begins_name(text[at]) || is_digit(text[at]))) ++at;
  return at;
}

struct Word {
  std::string_view text;
  bool open = false;  // a quote in it is not closed
};

// The word at the front of `text`, which begins with something other than a blank.
Word first_word(std::string_view text, char escape) {
  char quote = 0;
  size_t at = 0;
  for (; at < text.size(); ++at) {
    char c = text[at];
    if (c == escape && quote != '\'')
      ++at;
    else if (quote)
      quote = c == quote ? 0 : quote;
    else if (c == '\'' || c == '"')
      quote = c;
    else if (is_blank(c))
      break;
  }
  return {text.substr(0, at), quote != 0};
}

// One text on its way through fill_in(). The words inside ${x:-…} are frames on a stack of its own, not on ours.
class Filling {
 public:
  Filling(std::string_view text, char escape, const Lookup& look, Budget& budget, bool a_word = true)
      : text_(text), escape_(escape), look_(look), budget_(budget), a_word_(a_word) {}
  Result<std::string> all();

 private:
  struct Frame {
    std::string out = {};
    bool quoted = false;
    std::string_view name = {};  // of the variable whose alternative this is
    char sign = 0;
    bool or_empty = false;  // with a colon: an empty value counts as none
  };

  void escaped();
  Result<void> single_quotes();
  Result<void> dollar();
  Result<void> open_brace(size_t begin, size_t end);
  Result<void> close_brace();
  Result<void> put(std::string_view value);

  std::string_view text_;
  char escape_;
  const Lookup& look_;
  Budget& budget_;
  bool a_word_;
  size_t at_ = 0;
  std::vector<Frame> frames_ = std::vector<Frame>(1);
};

Result<std::string> Filling::all() {
  while (at_ < text_.size()) {
    char c = text_[at_++];
    bool quoted = frames_.back().quoted;
    if (c == escape_) {
      escaped();
    } else if (c == '$') {
      ISOLA_CHECK(dollar());
    } else if (c == '"' && a_word_) {
      frames_.back().quoted = !quoted;
    } else if (c == '\'' && !quoted && a_word_) {
      ISOLA_CHECK(single_quotes());
    } else if (c == '}' && !quoted && frames_.size() > 1) {
      ISOLA_CHECK(close_brace());
    } else {
      frames_.back().out += c;
    }
  }
  if (frames_.size() > 1) return fail(Code::invalid, "a ${ is not closed in " + shown(text_));
  if (frames_.back().quoted) return fail(Code::invalid, "a quote is not closed in " + shown(text_));
  return std::move(frames_.back().out);
}

// Between double quotes the escape is one only before what would mean something there.
void Filling::escaped() {
  Frame& top = frames_.back();
  if (at_ == text_.size()) {
    if (!a_word_) top.out += escape_;
    return;
  }
  char next = text_[at_++];
  if (!a_word_ || (top.quoted && next != '"' && next != '$' && next != escape_)) top.out += escape_;
  top.out += next;
}

Result<void> Filling::single_quotes() {
  size_t end = text_.find('\'', at_);
  if (end == std::string_view::npos) return fail(Code::invalid, "a quote is not closed in " + shown(text_));
  frames_.back().out.append(text_.substr(at_, end - at_));
  at_ = end + 1;
  return {};
}

Result<void> Filling::dollar() {
  bool brace = at_ < text_.size() && text_[at_] == '{';
  size_t begin = at_ + (brace ? 1 : 0), end = name_end(text_, begin);
  if (brace) return open_brace(begin, end);
  if (end == begin) {
    frames_.back().out += '$';
    return {};
  }
  at_ = end;
  return put(look_(text_.substr(begin, end - begin)).value_or(""));
}

Result<void> Filling::open_brace(size_t begin, size_t end) {
  auto name = text_.substr(begin, end - begin);
  if (name.empty()) return fail(Code::invalid, "a name is missing after ${ in " + shown(text_));
  if (end == text_.size()) return fail(Code::invalid, "a ${ is not closed in " + shown(text_));
  at_ = end;
  if (text_[at_] == '}') {
    ++at_;
    return put(look_(name).value_or(""));
  }
  bool colon = text_[at_] == ':';
  if (colon) ++at_;
  if (at_ == text_.size() || std::string_view("-+?").find(text_[at_]) == std::string_view::npos)
    return fail(Code::unsupported, "of ${" + std::string(name.substr(0, 80)) +
                                       "…} only the forms with :-, :+, :?, -, + and ? are supported");
  if (frames_.size() > kMaxNesting) return fail(Code::invalid, "a ${ is nested too deeply");
  frames_.push_back({.name = name, .sign = text_[at_++], .or_empty = colon});
  return {};
}

Result<void> Filling::close_brace() {
  Frame done = std::move(frames_.back());
  frames_.pop_back();
  auto value = look_(done.name);
  if (value && value->empty() && done.or_empty) value.reset();
  if (done.sign == '+') return put(value ? done.out : "");
  if (done.sign == '?' && !value) return fail(Code::invalid, shown(done.name) + " has no value: " + shown(done.out));
  return put(value ? *value : done.out);
}

Result<void> Filling::put(std::string_view value) {
  ISOLA_CHECK(budget_.spend(value.size()));
  frames_.back().out += value;
  return {};
}

// Words that begin a construct of bash where a command may stand.
constexpr auto kKeywords =
    std::to_array<std::string_view>({"case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function",
                                     "if", "in", "select", "then", "time", "until", "while"});

bool is_plain(std::string_view word) {
  auto plain = [](char c) {
    return begins_name(c) || is_digit(c) || std::string_view("-./:@+,").find(c) != std::string_view::npos;
  };
  return !word.empty() && std::all_of(word.begin(), word.end(), plain) &&
         std::find(kKeywords.begin(), kKeywords.end(), word) == kKeywords.end();
}

// How many characters have to be put in, taken out, changed or swapped with the next. Both are short.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> from(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        from[i][j] = i + j;
        continue;
      }
      size_t change = from[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      from[i][j] = std::min({from[i - 1][j] + 1, from[i][j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        from[i][j] = std::min(from[i][j], from[i - 2][j - 2] + 1);
    }
  }
  return from.back().back();
}

// The log needs only the beginning. Indentation is one blank there.
void add_shown(std::string& shown_line, std::string_view piece) {
  if (shown_line.size() > kMaxShown) return;
  size_t end = shown_line.find_last_not_of(kBlanks) + 1;
  size_t begin = std::min(piece.find_first_not_of(kBlanks), piece.size());
  bool apart = end < shown_line.size() || begin > 0;
  shown_line.resize(end);
  if (apart && end > 0) shown_line += ' ';
  shown_line += piece.substr(begin, kMaxShown + 1);
}

}  // namespace

Result<void> Budget::spend(size_t bytes) {
  if (bytes > left_) return fail(Code::exhausted, "with its variables filled in, the Dockerfile is larger than 16 MiB");
  left_ -= bytes;
  return {};
}

std::string_view trimmed(std::string_view text) {
  size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), to_lower);
  return out;
}

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), to_upper);
  return out;
}

std::string clipped(std::string_view text, size_t most) {
  constexpr std::string_view kMore = "…";
  bool cut = text.size() > most;
  if (cut) {
    size_t end = most - std::min(most, kMore.size());
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text = text.substr(0, end);
  }
  TextFeed feed(Clean::yes);
  std::string out = feed.feed(text);
  out += feed.finish();
  for (char& c : out)
    if (c == '\n' || c == '\t') c = ' ';
  if (cut) out += kMore;
  return out;
}

std::string shown(std::string_view text) { return "'" + clipped(text, 80) + "'"; }

bool is_variable_name(std::string_view text) { return !text.empty() && name_end(text, 0) == text.size(); }

Result<std::vector<std::string_view>> split_words(std::string_view text, char escape) {
  std::vector<std::string_view> out;
  for (size_t at = 0; (at = text.find_first_not_of(kBlanks, at)) != std::string_view::npos;) {
    Word word = first_word(text.substr(at), escape);
    if (word.open) return fail(Code::invalid, "a quote is not closed in " + shown(word.text));
    out.push_back(word.text);
    at += word.text.size();
  }
  return out;
}

Result<std::vector<Flag>> take_flags(std::string_view& text, char escape) {
  std::vector<Flag> out;
  for (text = trimmed(text); text.starts_with("--");) {
    Word word = first_word(text, escape);
    if (word.open) return fail(Code::invalid, "a quote is not closed in " + shown(word.text));
    text = trimmed(text.substr(word.text.size()));
    auto flag = word.text.substr(2);
    if (flag.empty()) break;  // "--" ends them
    size_t equals = std::min(flag.find('='), flag.size());
    out.push_back({flag.substr(0, equals), flag.substr(std::min(equals + 1, flag.size()))});
  }
  return out;
}

Result<std::string> fill_in(std::string_view text, char escape, const Lookup& look, Budget& budget) {
  return Filling(text, escape, look, budget).all();
}

Result<std::string> fill_in_text(std::string_view text, char escape, const Lookup& look, Budget& budget) {
  return Filling(text, escape, look, budget, false).all();
}

std::optional<std::vector<std::string>> json_words(std::string_view text) {
  constexpr JsonBound kFlat = {.depth = 1, .values = 1 << 20};
  if (!text.starts_with('[') || !check_json_bound(text, kFlat)) return std::nullopt;
  auto value = nlohmann::json::parse(text, nullptr, false);
  if (!value.is_array()) return std::nullopt;
  std::vector<std::string> out;
  for (auto& item : value) {
    if (!item.is_string()) return std::nullopt;
    out.push_back(std::move(item.get_ref<std::string&>()));
    if (out.back().find('\0') != std::string::npos) return std::nullopt;  // no program can be given one
  }
  return out;
}

std::optional<Heredoc> heredoc_of(std::string_view word) {
  size_t at = 0;
  while (at < word.size() && is_digit(word[at])) ++at;
  if (!word.substr(at).starts_with("<<")) return std::nullopt;
  at += 2;
  Heredoc out;
  if (at < word.size() && word[at] == '-') {
    out.strip_tabs = true;
    ++at;
  }
  char quote = 0;
  for (; at < word.size(); ++at) {
    char c = word[at];
    const bool opens = !quote && (c == '\'' || c == '"');
    const bool escapes = !quote && c == '\\' && at + 1 < word.size();
    if (opens || escapes) out.quoted = true;
    if (quote && c == quote)
      quote = 0;
    else if (opens)
      quote = c;
    else if (escapes)
      out.delimiter += word[++at];
    else if (!quote && (is_blank(c) || std::string_view(";&|<>()").find(c) != std::string_view::npos))
      break;
    else
      out.delimiter += c;
  }
  if (out.delimiter.empty()) return std::nullopt;
  out.whole = at == word.size();
  return out;
}

std::vector<Heredoc> heredocs_in(std::string_view text, char escape) {
  std::vector<Heredoc> out;
  if (text.find("<<") == std::string_view::npos) return out;
  for (size_t at = 0; (at = text.find_first_not_of(kBlanks, at)) != std::string_view::npos;) {
    Word word = first_word(text.substr(at), escape);
    if (auto heredoc = heredoc_of(word.text); heredoc && !word.open) out.push_back(std::move(*heredoc));
    at += word.text.size();
  }
  return out;
}

std::string single_quoted(std::string_view text) {
  std::string out = "'";
  for (char c : text) {
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  }
  return out + "'";
}

std::string bash_line(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) {
    if (!out.empty()) out += ' ';
    out += is_plain(word) ? word : single_quoted(word);
  }
  return out;
}

std::string in_shell(const std::vector<std::string>& shell, const std::string& command) {
  if (shell.size() == 2 && shell[1] == "-c") return command;
  return bash_line(shell) + " " + single_quoted(command);
}

std::string as_file(const std::string& script) {
  return "isola_script=$(mktemp) && printf %s " + single_quoted(script) +
         " >\"$isola_script\" && chmod 700 \"$isola_script\" && \"$isola_script\"; isola_code=$?; "
         "rm -f \"$isola_script\"; exit $isola_code";
}

std::optional<std::string> clean_path(std::string_view path, Leaving leaving) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at < path.size();) {
    size_t end = std::min(path.find('/', at), path.size());
    auto part = path.substr(at, end - at);
    at = end + 1;
    if (part.empty() || part == ".") continue;
    if (part != "..")
      parts.push_back(part);
    else if (!parts.empty())
      parts.pop_back();
    else if (leaving == Leaving::refused)
      return std::nullopt;
  }
  std::string out;
  for (auto part : parts) out.append(out.empty() ? "" : "/").append(part);
  return out;
}

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& known) {
  constexpr size_t kFar = 3;
  size_t best = kFar;
  std::string_view out;
  if (word.size() > 32) return out;
  for (auto one : known) {
    size_t far = distance(word, one);
    if (far < best) {
      best = far;
      out = one;
    }
  }
  return out;
}

std::unexpected<Error> at_line(size_t number, const Error& error) {
  return std::unexpected(error.in("Dockerfile line " + std::to_string(number)));
}

LineReader::LineReader(std::string_view text) : text_(text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
}

std::string_view LineReader::next_line() {
  size_t end = std::min(text_.find('\n', at_), text_.size());
  auto line = text_.substr(at_, end - at_);
  at_ = std::min(end + 1, text_.size());
  ++number_;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// "# name=value" lines, until the first line that is something else.
Result<void> LineReader::read_directives() {
  while (more()) {
    size_t at = at_, number = number_;
    auto line = trimmed(next_line());
    size_t equals = line.find('=');
    bool possible = line.starts_with('#') && equals != std::string_view::npos;
    auto name = possible ? lower(trimmed(line.substr(1, equals - 1))) : std::string();
    if (name != "escape" && name != "syntax" && name != "check") {
      at_ = at;
      number_ = number;
      return {};
    }
    auto value = trimmed(line.substr(equals + 1));
    if (name != "escape") continue;
    if (value != "\\" && value != "`")
      return at_line(number_, {Code::invalid, "the escape character is \\ or `, not " + shown(value)});
    escape_ = value[0];
  }
  return {};
}

// An escape at the end, but for blanks; two are a character of the line.
bool LineReader::continues(std::string_view& line) const {
  size_t last = line.find_last_not_of(" \t");
  if (last == std::string_view::npos || line[last] != escape_) return false;
  if (last > 0 && line[last - 1] == escape_) return false;
  line = line.substr(0, last);
  return true;
}

std::string LineReader::joined_lines(std::string_view line, std::string& shown_line) {
  bool goes_on = continues(line);
  std::string out(line);
  add_shown(shown_line, line);
  while (goes_on && more()) {
    line = next_line();
    auto bare = trimmed(line);
    if (bare.empty() || bare.starts_with('#')) continue;
    goes_on = continues(line);
    out += line;
    add_shown(shown_line, line);
  }
  return out;
}

Result<std::optional<Instruction>> LineReader::next() {
  while (more()) {
    auto line = trimmed(next_line());
    if (line.empty() || line.starts_with('#')) continue;
    Instruction out;
    out.number = number_;
    std::string joined = joined_lines(line, out.line);
    auto all = trimmed(joined);
    if (all.empty()) continue;
    out.word = all.substr(0, all.find_first_of(kBlanks));
    out.name = upper(out.word);
    out.rest = trimmed(all.substr(out.word.size()));
    if (auto read = read_heredocs(out); !read) return at_line(out.number, read.error());
    out.line = clipped(out.line, kMaxShown);
    return out;
  }
  return std::nullopt;
}

Result<void> LineReader::read_heredocs(Instruction& out) {
  if (out.name != "RUN" && out.name != "COPY" && out.name != "ADD" && out.name != "ONBUILD") return {};
  out.heredocs = heredocs_in(out.rest, escape_);
  for (auto& heredoc : out.heredocs) ISOLA_CHECK(read_body(heredoc, out.line));
  return {};
}

Result<void> LineReader::read_body(Heredoc& heredoc, std::string& shown_line) {
  while (more()) {
    auto line = next_line();
    auto bare = line.substr(heredoc.strip_tabs ? std::min(line.find_first_not_of('\t'), line.size()) : 0);
    shown_line += ' ';
    add_shown(shown_line, line);
    if (bare == heredoc.delimiter) return {};
    heredoc.body.append(bare) += '\n';
  }
  return fail(Code::invalid, "the here-document is not closed with " + shown(heredoc.delimiter));
}

}  // namespace isola::builder
