#include "kernel/fault.h"

#ifdef ISOLA_FAULTS

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string>

namespace isola::kernel::fault {

namespace {

struct Plan {
  std::string name;
  uint64_t nth = 0;
  int error = 0;
};
Plan plan;
std::atomic<uint64_t> total = 0;  // tests have threads that come by here
std::atomic<uint64_t> matching = 0;

template <typename T>
bool number(std::string_view text, T& out) {
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
  return ec == std::errc() && end == text.data() + text.size();
}

}  // namespace

int at(std::string_view name) {
  ++total;
  if (plan.nth == 0 || (plan.name != "*" && plan.name != name)) return 0;
  return ++matching == plan.nth ? plan.error : 0;
}

Result<void> arm(std::string_view text) {
  Plan next;
  auto last = text.rfind(':');
  auto first = last == std::string_view::npos || last == 0 ? std::string_view::npos : text.rfind(':', last - 1);
  if (first == std::string_view::npos || !number(text.substr(first + 1, last - first - 1), next.nth) ||
      !number(text.substr(last + 1), next.error) || next.nth == 0 || next.error <= 0)
    return fail(Code::invalid, "a fault plan reads name:nth:errno, not '" + std::string(text) + "'");
  next.name = text.substr(0, first);
  plan = next;
  total = 0, matching = 0;
  return {};
}

void arm_from_environment() {
  if (const char* text = std::getenv("ISOLA_FAULT")) {
    if (!arm(text)) std::abort();  // a mistyped plan must not look like a run without faults
  }
}

void disarm() { plan = Plan{}, total = 0, matching = 0; }

uint64_t asked() { return total; }

}  // namespace isola::kernel::fault

#endif
