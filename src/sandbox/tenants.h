// Who is calling: API keys, from the store, remembered so that a request costs one hash and one look.
#pragma once

#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "store/keys.h"

namespace isola::sandbox {

struct Caller {
  std::string project, key;  // ids
  store::Scope scope = store::Scope::read;
};

class Tenants {
 public:
  explicit Tenants(store::Store& store) : store_(store) {}
  // denied, with one and the same sentence for everything that is wrong.
  Result<Caller> authenticate(std::string_view key);
  // Keys changed: look again.
  void forget();

 private:
  struct Known {
    Caller caller;
    std::chrono::steady_clock::time_point until;
  };
  store::Store& store_;
  std::shared_mutex mutex_;
  std::unordered_map<std::string, Known> known_;  // by hash, never by the key itself
};

}  // namespace isola::sandbox
