#include "ledger/usage.h"

#include <fmt/format.h>

#include <cmath>

namespace isola::ledger {

namespace {
constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr uint64_t kLargest = uint64_t{1} << 62;  // what the database can sum without a thought

bool sound(double amount) { return std::isfinite(amount) && amount >= 0 && amount < 1e30; }
}  // namespace

Cost price(const Usage& used, const PriceSheet& sheet) {
  return {.cpu = static_cast<double>(used.cpu_usec) / 3.6e9 * sheet.cpu_hour,
          .memory = used.memory_byte_seconds / kGiB / 3600 * sheet.memory_gib_hour,
          .disk = used.disk_byte_seconds / kGiB / 3600 * sheet.disk_gib_hour,
          .out = static_cast<double>(used.bytes_out) / kGiB * sheet.out_gib,
          .commands = static_cast<double>(used.commands) * sheet.command};
}

Result<std::string> to_data(const UsageRow& row) {
  const Usage& u = row.used;
  if (!sound(u.memory_byte_seconds) || !sound(u.disk_byte_seconds) || row.from > row.to)
    return fail(Code::invalid, "a usage sample has an amount or a time span that cannot be");
  for (uint64_t amount : {u.cpu_usec, u.bytes_out, u.commands, u.wall_ms})
    if (amount > kLargest) return fail(Code::invalid, "a usage sample has an amount that cannot be");
  return fmt::format(
      R"({{"from":{},"to":{},"cpu_usec":{},"memory_byte_seconds":{:.0f},"disk_byte_seconds":{:.0f},"bytes_out":{},"commands":{},"wall_ms":{}}})",
      row.from, row.to, u.cpu_usec, u.memory_byte_seconds, u.disk_byte_seconds, u.bytes_out, u.commands, u.wall_ms);
}

}  // namespace isola::ledger
