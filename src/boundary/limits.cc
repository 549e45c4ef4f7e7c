#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>

#include "boundary/boundary.h"

namespace isola::boundary {

double usual_cpus() {
  static const double cpus = std::clamp(static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN)), 1.0, 2.0);
  return cpus;
}

uint64_t usual_memory() {
  static const uint64_t memory = [] {
    struct sysinfo machine{};
    if (::sysinfo(&machine) < 0) return uint64_t{512} << 20;
    uint64_t half = uint64_t{machine.totalram} * machine.mem_unit / 2;
    return std::min(uint64_t{512} << 20, half >> 20 << 20);
  }();
  return memory;
}

}  // namespace isola::boundary
