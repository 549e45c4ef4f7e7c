#include "cli/table.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/text_feed.h"
#include "base/units.h"
#include "boundary/state.h"
#include "cli/commands.h"
#include "cli/terminal.h"

namespace isola::cli {

using nlohmann::json;

namespace {

// Characters, not bytes: good enough for the names that people give.
size_t width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

const std::string kLivingStates =
    "&state=creating&state=running&state=frozen&state=paused&state=stopped&state=archived&state=ending";

std::string shown(std::string_view text) {
  TextFeed feed(Clean::yes);
  std::string out = feed.feed(text);
  out += feed.finish();
  for (char& c : out)
    if (c == '\n' || c == '\t') c = ' ';
  return out;
}

std::string Table::text() const {
  auto rows = rows_;
  std::vector<size_t> widths;
  for (auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = shown(row[i]);
      widths[i] = std::max(widths[i], width(row[i]));
    }
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - width(row[i]) + 2, ' ');
    }
    while (line.ends_with(' ')) line.pop_back();
    out += line + "\n";
  }
  return out;
}

std::string text_of(const json& object, const char* name, std::string otherwise) {
  if (!object.is_object()) return otherwise;
  auto at = object.find(name);
  if (at == object.end() || at->is_null()) return otherwise;
  if (at->is_string()) return at->get<std::string>();
  if (at->is_number_float()) return fmt::format("{:g}", at->get<double>());
  return at->dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string join_labels(const json& object) {
  std::string out;
  if (!object.is_object()) return out;
  for (const auto& [key, value] : object.items())
    out += (out.empty() ? "" : ",") + key + "=" + (value.is_string() ? value.get<std::string>() : value.dump());
  return out;
}

namespace {
// Of the first that could not be printed; 0: all could.
int unprinted = 0;
}  // namespace

void print(std::string_view text) {
  auto put = put_out(1, text);
  if (!put && unprinted == 0) unprinted = put.error().sys_errno != 0 ? put.error().sys_errno : EIO;
}

// What was done is done; but a script that reads an id or a key from us must hear that it is not there.
int finish_printing() {
  if (std::fflush(stdout) != 0 && unprinted == 0) unprinted = errno;
  if (std::ferror(stdout) && unprinted == 0) unprinted = EIO;
  if (unprinted == 0) return 0;
  if (unprinted == EPIPE) return kReaderLeft;
  return complain(std::string("cannot write the output: ") + std::strerror(unprinted));
}

void print_json(const json& value) { print(value.dump(2, ' ', false, json::error_handler_t::replace) + "\n"); }

std::optional<int64_t> parse_moment(std::string_view text) {
  std::string copy(text);
  tm parts{};
  const char* rest = ::strptime(copy.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (!rest) return std::nullopt;
  int64_t millis = 0;
  if (*rest == '.') {
    int64_t unit = 100;
    for (++rest; *rest >= '0' && *rest <= '9'; ++rest, unit /= 10) millis += unit * (*rest - '0');
  }
  if (std::string_view(rest) != "Z") return std::nullopt;
  return static_cast<int64_t>(::timegm(&parts)) * 1000 + millis;
}

std::string short_span(int64_t ms) {
  auto whole = [&](int64_t unit) { return (ms + unit / 2) / unit; };  // rounded
  constexpr int64_t kSecond = 1000, kMinute = 60 * kSecond, kHour = 60 * kMinute, kDay = 24 * kHour;
  if (whole(kSecond) < 60) return fmt::format("{}s", whole(kSecond));
  if (whole(kMinute) < 60) return fmt::format("{}m", whole(kMinute));
  if (whole(kHour) < 48) return fmt::format("{}h", whole(kHour));
  return fmt::format("{}d", whole(kDay));
}

std::string relative(int64_t now, int64_t moment) {
  int64_t past = now - moment;
  if (past > -1000 && past < 1000) return "now";
  return past > 0 ? short_span(past) + " ago" : "in " + short_span(-past);
}

std::string when_of(const json& object, const char* name, std::string otherwise) {
  std::string text = text_of(object, name, "");
  if (text.empty()) return otherwise;
  auto moment = parse_moment(text);
  return moment ? relative(milliseconds_now(), *moment) : text;
}

Result<std::string> query_moment(const std::string& text) {
  if (text.find('-') != std::string::npos) return text;  // a date; the server knows what it takes
  ISOLA_TRY(auto ago, parse_duration(text));
  return format_moment(milliseconds_now() - ago.count());
}

std::string format_moment(int64_t ms) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(static_cast<std::time_t>(ms / 1000)));
}

}  // namespace isola::cli
