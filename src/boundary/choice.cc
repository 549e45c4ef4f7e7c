#include "boundary/choice.h"

#include <fmt/format.h>

#include <algorithm>

namespace isola::boundary {

namespace {

std::string why_not(BoundaryKind kind, std::span<const Offer> offers) {
  auto it = std::ranges::find(offers, kind, &Offer::kind);
  if (it != offers.end() && !it->missing.empty()) return it->missing;
  return "this version of Isola does not have it";
}

}  // namespace

Result<BoundaryKind> choose(const Choice& choice, std::span<const Offer> offers) {
  std::vector<const Offer*> enough;  // the weakest first
  for (const auto& offer : offers)
    if (offer.offered && offer.kind >= choice.at_least) enough.push_back(&offer);
  std::ranges::sort(enough, {}, [](const Offer* offer) { return offer->kind; });
  if (auto demanded = kind_of(choice.wish)) {
    if (*demanded < choice.at_least)
      return fail(Code::denied, fmt::format("the boundary {} is not allowed here: at least {} is asked for",
                                            to_string(*demanded), to_string(choice.at_least)));
    if (std::ranges::none_of(enough, [&](const Offer* offer) { return offer->kind == *demanded; }))
      return fail(Code::unsupported, fmt::format("this machine does not offer the boundary {}: {}",
                                                 to_string(*demanded), why_not(*demanded, offers)));
    return *demanded;
  }
  if (enough.empty())
    return fail(Code::unsupported, fmt::format("this machine offers no boundary that is at least {}: {}",
                                               to_string(choice.at_least), why_not(choice.at_least, offers)));
  if (choice.wish == BoundaryWish::strongest) return enough.back()->kind;
  // A machine whose processor is made up is many times slower: only for who asks for it.
  std::erase_if(enough,
                [](const Offer* offer) { return offer->kind == BoundaryKind::microvm && !offer->engine.accelerated; });
  if (enough.empty())
    return fail(Code::unsupported,
                fmt::format("of the boundaries that are at least {} this machine offers microvm alone, "
                            "and without KVM: that one has to be asked for by name",
                            to_string(choice.at_least)));
  // Not a machine of its own by itself, though KVM were there: what microvm cannot do yet (docs/boundaries.md) nobody
  // would expect who did not ask for it.
  return enough.front()->kind;
}

std::string names_of(std::span<const Offer> offers) {
  std::string names;
  for (const auto& offer : offers)
    if (offer.offered)
      names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", to_string(offer.kind), offer.detail);
  return names;
}

}  // namespace isola::boundary
