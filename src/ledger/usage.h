// What work cost: amounts, their sums, and money by a price sheet.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "ledger/event.h"

namespace isola::ledger {

struct Usage {
  uint64_t cpu_usec = 0;           // active: time spent waiting is not counted
  double memory_byte_seconds = 0;  // whole numbers
  double disk_byte_seconds = 0;
  uint64_t bytes_out = 0;
  uint64_t commands = 0;
  uint64_t wall_ms = 0;  // time that it was running
  bool operator==(const Usage&) const = default;
  Usage& operator+=(const Usage& more) {
    cpu_usec += more.cpu_usec;
    memory_byte_seconds += more.memory_byte_seconds;
    disk_byte_seconds += more.disk_byte_seconds;
    bytes_out += more.bytes_out;
    commands += more.commands;
    wall_ms += more.wall_ms;
    return *this;
  }

  // CPUs in use on average, over the wall time.
  double busy() const { return wall_ms ? static_cast<double>(cpu_usec) / (static_cast<double>(wall_ms) * 1000) : 0; }
};

// Running with less than a hundredth of a CPU is idling.
constexpr double kIdleBelow = 0.01;

// One sample: what was used between two moments, by one sandbox for one task. Samples must not overlap.
struct UsageRow {
  std::string project, sandbox, task;
  Millis from = 0, to = 0;
  Usage used;

  bool idle() const { return used.wall_ms > 0 && used.busy() < kIdleBelow; }
};

using Until = std::optional<std::chrono::steady_clock::time_point>;

enum class GroupBy : uint8_t { all, sandbox, task, project, day };

struct UsageFilter {
  std::string project, sandbox, task;     // empty: any
  Millis from = 0, to = 0;                // samples that began in [from, to); 0: no bound
  uint64_t up_to = 0;                     // the last entry that counts; 0: no bound
  std::optional<std::string> after = {};  // groups whose key is larger; none: from the first on
  size_t limit = 0;                       // groups; 0: all
  Until until = {};                       // then it is given up, with Code::timeout; none: never
};

struct UsageTotals {
  std::string key;  // the sandbox, task or project; 2026-11-16 (UTC) by day; empty for all
  Millis from = 0, to = 0;
  Usage used;
  uint64_t samples = 0;
  uint64_t idle_ms = 0;  // wall time of samples that were idle

  // How much of its running time it idled: 1 is a sandbox that somebody forgot.
  double idle_ratio() const {
    return used.wall_ms ? static_cast<double>(idle_ms) / static_cast<double>(used.wall_ms) : 0;
  }
};

// Money per unit; 0: free.
struct PriceSheet {
  std::string currency = "USD";
  double cpu_hour = 0;
  double memory_gib_hour = 0;
  double disk_gib_hour = 0;
  double out_gib = 0;
  double command = 0;
};

struct Cost {
  double cpu = 0, memory = 0, disk = 0, out = 0, commands = 0;
  double total() const { return cpu + memory + disk + out + commands; }
};

Cost price(const Usage& used, const PriceSheet& sheet);

// The sample as data of its event: the same row gives the same text. invalid: a negative or absurd amount.
Result<std::string> to_data(const UsageRow& row);

}  // namespace isola::ledger
