#include "bench/report.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace isola::bench {

namespace {

std::string time_text(double us) {
  if (us < 1000) return fmt::format("{:.0f} µs", us);
  if (us < 100'000) return fmt::format("{:.2f} ms", us / 1e3);
  return fmt::format("{:.3f} s", us / 1e6);
}

std::string value_text(double value, const std::string& unit) {
  return fmt::format("{:.{}f}{}{}", value, value < 10 ? 2 : value < 100 ? 1 : 0, unit.empty() ? "" : " ", unit);
}

}  // namespace

double Samples::percentile(double p) const {
  if (values_.empty()) return 0;
  auto sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  auto rank = static_cast<size_t>(std::ceil(p / 100 * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

double paired_ratio(const Samples& a, const Samples& b) {
  Samples ratios;
  for (size_t i = 0; i < std::min(a.count(), b.count()); ++i) ratios.add(a.values()[i] / b.values()[i]);
  return ratios.p50();
}

void Report::timing(std::string group, std::string name, const Samples& s, std::string note) {
  rows_.push_back({.group = std::move(group),
                   .name = std::move(name),
                   .unit = "us",
                   .note = std::move(note),
                   .count = s.count(),
                   .p50 = s.p50(),
                   .p95 = s.percentile(95),
                   .p99 = s.percentile(99),
                   .is_timing = true});
  const auto& row = rows_.back();
  progress(fmt::format("{}: p50 {}, p95 {}, p99 {} (n={})", row.name, time_text(row.p50), time_text(row.p95),
                       time_text(row.p99), row.count));
}

void Report::value(std::string group, std::string name, double value, std::string unit, std::string note) {
  rows_.push_back({.group = std::move(group),
                   .name = std::move(name),
                   .unit = std::move(unit),
                   .note = std::move(note),
                   .count = 1,
                   .p50 = value});
  progress(rows_.back().name + ": " + value_text(value, rows_.back().unit));
}

void Report::goal(std::string name, double ratio, double limit, std::string note) {
  goals_.push_back({.name = std::move(name), .note = std::move(note), .ratio = ratio, .limit = limit});
}

void Report::note(std::string text) {
  progress("note: " + text);
  notes_.push_back(std::move(text));
}

void Report::progress(const std::string& text) const {
  fmt::print(stderr, "  {}\n", text);
  std::fflush(stderr);
}

bool Report::all_met() const {
  return std::all_of(goals_.begin(), goals_.end(), [](const Goal& g) { return g.ratio <= g.limit; });
}

std::string Report::table() const {
  std::string text, group;
  for (const auto& row : rows_) {
    if (row.group != group) {
      group = row.group;
      text += fmt::format(
          "\n### {}\n\n| what | p50 | p95 | p99 | n | remark |\n| --- | ---: | ---: | ---: | ---: | --- |\n", group);
    }
    if (row.is_timing)
      text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", row.name, time_text(row.p50), time_text(row.p95),
                          time_text(row.p99), row.count, row.note);
    else
      text += fmt::format("| {} | {} | | | | {} |\n", row.name, value_text(row.p50, row.unit), row.note);
  }
  if (!goals_.empty()) text += "\n### Goals\n\n| goal | measured | limit | |\n| --- | ---: | ---: | --- |\n";
  for (const auto& goal : goals_)
    text += fmt::format("| {} | {:.2f} | {:.2f} | {}{}{} |\n", goal.name, goal.ratio, goal.limit,
                        goal.ratio <= goal.limit ? "met" : "**missed**", goal.note.empty() ? "" : "; ", goal.note);
  if (!notes_.empty()) text += "\n### Notes\n\n";
  for (const auto& note : notes_) text += "- " + note + "\n";
  return text;
}

Result<void> Report::write_json(const std::string& path, const std::string& mode) const {
  utsname kernel{};
  ::uname(&kernel);
  nlohmann::json out{{"version", 1},
                     {"time", ::time(nullptr)},
                     {"mode", mode},
                     {"boundary", boundary_},
                     {"kernel", kernel.release},
                     {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
                     {"rows", nlohmann::json::array()},
                     {"goals", nlohmann::json::array()},
                     {"notes", notes_}};
  for (const auto& row : rows_) {
    nlohmann::json one{
        {"group", row.group}, {"name", row.name}, {"unit", row.unit}, {"n", row.count}, {"note", row.note}};
    if (row.is_timing)
      one.update({{"p50", row.p50}, {"p95", row.p95}, {"p99", row.p99}});
    else
      one["value"] = row.p50;
    out["rows"].push_back(std::move(one));
  }
  for (const auto& goal : goals_)
    out["goals"].push_back({{"name", goal.name},
                            {"measured", goal.ratio},
                            {"limit", goal.limit},
                            {"met", goal.ratio <= goal.limit},
                            {"note", goal.note}});
  return replace_file(path, out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace isola::bench
