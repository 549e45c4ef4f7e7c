#include "launcher/past_bindings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "vault/binding_wire.h"

namespace isola::launcher {

namespace {

// A token that opens nothing any more: the gate does not search for it either.
bool is_over(const vault::Binding& one) {
  return one.until != 0 && one.until + vault::kStaysKnown < milliseconds_now();
}

}  // namespace

void PastBindings::remember(const std::string& before, const std::string& now) {
  if (before.empty() || before == now) return;
  auto had = vault::decode_bindings(before), has = vault::decode_bindings(now);
  if (!had || !has) return;
  auto same_in = [](const auto& list, const vault::Binding& one) {
    return std::any_of(list.begin(), list.end(),
                       [&](const auto& other) { return other.id == one.id && other.print == one.print; });
  };
  for (auto& one : *had) {
    // What could not be opened was never there.
    if (one.sealed.empty() || is_over(one) || same_in(*has, one) || same_in(all_, one)) continue;
    all_.push_front(std::move(one));
  }
  std::erase_if(all_, is_over);  // before anything that still opens something
  while (all_.size() > kMost) all_.pop_back();
}

std::string PastBindings::text(size_t room) const {
  std::vector<vault::Binding> out;
  size_t size = vault::kBindingsHead;
  for (const auto& one : all_) {
    const size_t more = vault::encode_bindings({one}).size() - vault::kBindingsHead;
    if (is_over(one) || size + more > room) continue;
    size += more;
    out.push_back(one);
  }
  return vault::encode_bindings(out);
}

}  // namespace isola::launcher
