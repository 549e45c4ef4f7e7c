#include "dialect/e2b/metrics.h"

#include <cmath>

namespace isola::e2b {

Task<Result<Measured>> measure(sandbox::Service& service, sandbox::BoxPtr box) {
  ISOLA_CO_TRY(auto stats, co_await service.stats(box));
  auto record = box->record();
  Measured out;
  out.at = sandbox::now_millis();
  out.cpus = static_cast<int>(std::max(1.0, std::ceil(record.limits.cpus)));
  out.memory_used = stats.memory_bytes;
  out.memory_total = record.limits.memory;
  out.disk_used = stats.disk_bytes;
  out.disk_total = record.limits.disk;
  double micros = 1000.0 * static_cast<double>(std::max<store::Millis>(1, out.at - record.created));
  out.cpu_percent = std::min(100.0, 100.0 * static_cast<double>(stats.cpu_usec) / micros / out.cpus);
  out.cpu_percent = std::round(out.cpu_percent * 100) / 100;
  co_return out;
}

}  // namespace isola::e2b
