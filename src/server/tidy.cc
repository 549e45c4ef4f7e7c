#include "server/tidy.h"

#include <algorithm>

namespace isola::server {

namespace {
constexpr size_t kForgottenAtOnce = 1000;
}

Result<size_t> forget_ended(store::Store& store, uint64_t days, store::Millis now, size_t most) {
  constexpr store::Millis kDay = 24 * 3600 * 1000;
  // Any number of days is a setting: one that reaches back behind all time keeps everything.
  const auto back = static_cast<store::Millis>(std::min<uint64_t>(days, static_cast<uint64_t>(now / kDay))) * kDay;
  size_t all = 0;
  for (size_t i = 0; i < most; ++i) {
    ISOLA_TRY(size_t some, store.forget_ended_before(now - back, kForgottenAtOnce));
    all += some;
    if (some < kForgottenAtOnce) break;
  }
  return all;
}

}  // namespace isola::server
