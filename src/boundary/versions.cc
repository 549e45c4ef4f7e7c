#include "boundary/versions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace isola::boundary {

namespace {

using Numbers = std::vector<int>;

struct Fixed {
  Program program;
  const char* least;  // of the series with the same first two numbers; the last row of a program: of all others
  const char* what;   // an older one
};

constexpr char kNftables[] = "lets a local user become root through nf_tables (CVE-2024-1086)";
constexpr char kVirtio[] = "lets a guest have memory of virtio devices used after it was freed (CVE-2024-3446)";
// From the histories of the programs themselves; the kernel's from the record of its stable series.
constexpr Fixed kTable[] = {
    {Program::kernel, "5.4.269", kNftables},
    {Program::kernel, "5.10.210", kNftables},
    {Program::kernel, "5.15.149", kNftables},
    {Program::kernel, "6.1.76", kNftables},
    {Program::kernel, "6.6.15", kNftables},
    {Program::kernel, "6.7.3", kNftables},
    {Program::kernel, "6.8", kNftables},
    {Program::criu, "4.1.1", "does not restore mount namespaces on kernels of the second half of 2025 or later"},
    {Program::runsc, "20230621", "has ptrace for its platform, which is slower, or a first systrap"},
    {Program::qemu, "7.2.11", kVirtio},
    {Program::qemu, "8.2.3", kVirtio},
    {Program::qemu, "9.0", kVirtio},
};

// "6.1.76-1+deb" → 6, 1, 76.
Numbers numbers_of(std::string_view version) {
  Numbers numbers;
  size_t at = 0;
  while (at < version.size() && std::isdigit(static_cast<unsigned char>(version[at])) && numbers.size() < 4) {
    int number = 0;
    for (; at < version.size() && std::isdigit(static_cast<unsigned char>(version[at])) && number < 100000000; ++at)
      number = number * 10 + (version[at] - '0');
    numbers.push_back(number);
    if (at >= version.size() || version[at] != '.') break;
    ++at;
  }
  return numbers;
}

bool same_series(const Numbers& a, const Numbers& b) {
  return a.size() > 1 && b.size() > 2 && std::equal(a.begin(), a.begin() + 2, b.begin());
}

}  // namespace

std::string_view to_string(Program program) {
  switch (program) {
    case Program::kernel: return "Linux";
    case Program::criu: return "criu";
    case Program::runsc: return "runsc";
    case Program::qemu: return "QEMU";
  }
  return "";
}

std::string_view day_in(std::string_view version) {
  for (size_t at = 0; at + 8 <= version.size(); ++at) {
    auto day = version.substr(at, 8);
    if (day.starts_with("20") && std::ranges::all_of(day, [](unsigned char c) { return std::isdigit(c); })) return day;
  }
  return {};
}

std::string known_concern(Program program, std::string_view version) {
  const Numbers have = numbers_of(program == Program::runsc ? day_in(version) : version);
  if (have.empty()) return "";
  const Fixed* row = nullptr;
  for (const auto& fixed : kTable) {
    if (fixed.program != program) continue;
    row = &fixed;  // the last one, if none is of its series
    if (same_series(have, numbers_of(fixed.least))) break;
  }
  if (!row || have >= numbers_of(row->least)) return "";
  return fmt::format("{} {} {}: {} or newer does not", to_string(program), version, row->what, row->least);
}

std::string version_in(std::string_view text) {
  for (size_t at = 0; at < text.size(); ++at) {
    const bool begins = at == 0 || std::isspace(static_cast<unsigned char>(text[at - 1]));
    if (!begins || !std::isdigit(static_cast<unsigned char>(text[at]))) continue;
    auto word = text.substr(at, text.find_first_of(" \t\r\n,)", at) - at);
    if (word.find('.') != std::string_view::npos) return std::string(word.substr(0, 64));
  }
  return "";
}

std::string kernel_version(std::string_view release, std::string_view build) {
  // "#1 SMP PREEMPT_DYNAMIC Debian 6.1.76-1 (2024-02-01)"
  constexpr std::string_view kDebian = "Debian ";
  if (size_t at = build.find(kDebian); at != std::string_view::npos)
    return version_in(build.substr(at + kDebian.size()));
  // "6.5.0-41-generic": of what it has of 6.5.1 and later its number says nothing.
  const Numbers numbers = numbers_of(release);
  const bool own_count = numbers.size() > 2 && numbers[2] == 0 && release.find('-') != std::string_view::npos;
  return own_count ? "" : std::string(release);
}

}  // namespace isola::boundary
