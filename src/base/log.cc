#include "base/log.h"

#include <limits.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/log_lines.h"

namespace isola::log {

namespace {

// Set by a reload while others write.
std::atomic<Level> threshold = Level::info;
std::atomic<Format> form = Format::text;
constexpr std::string_view kNames[] = {"debug", "info", "warn", "error"};

constexpr std::string_view kKey = "e2b_";
constexpr size_t kLeastKey = 16;  // digits; shorter ones open nothing

std::string masked(std::string_view text) {
  std::string out;
  for (;;) {
    size_t at = text.find(kKey);
    if (at == std::string_view::npos) return out.append(text);
    size_t end = at + kKey.size();
    while (end < text.size() && std::string_view("0123456789abcdefABCDEF").find(text[end]) != std::string_view::npos)
      ++end;
    bool key = end - at - kKey.size() >= kLeastKey;
    out.append(text.substr(0, key ? at + kKey.size() : end)).append(key ? "***" : "");
    text.remove_prefix(end);
  }
}

std::string escaped(std::string_view text) {
  std::string out;
  for (unsigned char c : text) {
    if (c == '"' || c == '\\')
      out.append({'\\', static_cast<char>(c)});
    else if (c < 0x20)
      out += fmt::format("\\u{:04x}", c);
    else
      out.push_back(static_cast<char>(c));
  }
  return out;
}

// In text a value stands as it is where nobody could take it for more than one word.
std::string one_word(std::string_view value) {
  bool plain = !value.empty() &&
               std::ranges::all_of(value, [](unsigned char c) { return c > 0x20 && c < 0x7f && c != '"' && c != '='; });
  return plain ? std::string(value) : quoted(value);
}

}  // namespace

void set_format(Format format) { form = format; }

std::string line(Format format, int64_t ms, Level level, std::string_view room, std::string_view message,
                 Fields fields) {
  time_t seconds = ms / 1000;
  tm utc{};
  ::gmtime_r(&seconds, &utc);
  auto time = fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                          utc.tm_hour, utc.tm_min, utc.tm_sec, ms % 1000);
  auto name = kNames[static_cast<int>(level)];
  auto words = masked(message);
  std::string out;
  if (format == Format::text) {
    out = fmt::format("{} {} {}: {}", time, name, room, words);
    for (const Field& field : fields) out.append(fmt::format(" {}={}", field.name, one_word(masked(field.value))));
    return out += '\n';
  }
  out = fmt::format("{{\"time\":\"{}\",\"level\":\"{}\",\"room\":\"{}\",\"message\":\"{}\"", time, name, room,
                    escaped(words));
  for (const Field& field : fields) {
    std::string_view mark = field.number ? "" : "\"";
    out.append(fmt::format(",\"{}\":{}{}{}", field.name, mark, escaped(masked(field.value)), mark));
  }
  return out += "}\n";
}

void set_level(Level level) { threshold = level; }

void Lines::add(int64_t ms, Level level, std::string_view room, std::string_view message, Fields fields) {
  if (level < threshold) return;
  auto next = line(form, ms, level, room, message, fields);
  if (text_.size() + next.size() > PIPE_BUF) write();
  text_ += next;
}

// No more than a pipe takes whole: others write there, too.
void Lines::write() {
  if (text_.empty()) return;
  [[maybe_unused]] ssize_t n = ::write(STDERR_FILENO, text_.data(), text_.size());
  text_.clear();
}

void write(Level level, std::string_view room, std::string_view message, Fields fields) {
  if (level < threshold) return;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  auto text = line(form, now.tv_sec * 1000 + now.tv_nsec / 1000000, level, room, message, fields);
  // One write per line keeps lines whole; a log that cannot be written is not worth failing for.
  [[maybe_unused]] ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
}

std::string quoted(std::string_view untrusted) {
  std::string out = "\"";
  for (unsigned char c : untrusted.substr(0, 200)) {
    if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\')
      out += fmt::format("\\x{:02x}", c);
    else
      out.push_back(static_cast<char>(c));
  }
  out += untrusted.size() > 200 ? "…\"" : "\"";
  return out;
}

}  // namespace isola::log
