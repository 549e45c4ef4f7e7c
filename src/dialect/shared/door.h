// The door of an API: which names it answers to, whose pages may call it, whose key it is, and what that key may do.
//
//   Door door(service, keys, guards);
//   group.filter([&](http::Exchange& ex) -> Task<bool> { co_return door.lets_in(ex, key); });
//
// A refusal is said in the words of the group that the request came to (its dresser).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "http/exchange.h"
#include "http/guards.h"
#include "sandbox/service.h"
#include "store/key_ring.h"

namespace isola::dialect {

class Door {
 public:
  // `unknown`: what is said of a key that nobody knows; empty: what the store says of it.
  Door(std::shared_ptr<sandbox::Service> service, std::shared_ptr<store::KeyRing> keys, http::Guards guards,
       std::string unknown = {})
      : service_(std::move(service)),
        keys_(std::move(keys)),
        guards_(std::move(guards)),
        unknown_(std::move(unknown)) {}

  // The host name and the page's origin, whoever calls; or replies, and then it is false.
  bool welcomes(http::Exchange& ex) const;
  // Notes who calls; or replies, and then it is false.
  bool lets_in(http::Exchange& ex, std::string_view key) const;

 private:
  std::shared_ptr<sandbox::Service> service_;
  std::shared_ptr<store::KeyRing> keys_;
  http::Guards guards_;
  std::string unknown_;
};

std::string_view bearer_of(const http::Exchange& ex);  // Authorization: Bearer …; empty: none

// Of the caller, as the door noted it.
std::string project_of(const http::Exchange& ex);
store::Scope scope_of(const http::Exchange& ex);
sandbox::Caller caller_of(const http::Exchange& ex);

inline constexpr size_t kMaxListing = 8 << 20;  // of a folder, from the guest: names may be long and deep

}  // namespace isola::dialect
