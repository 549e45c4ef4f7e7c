// Keys for a server that checks one with every request: those that were seen good are remembered, so that most checks
// cost a SHA-256 and a look-up. Changes go through the ring; reload() is for those that another process made.
//
//   ISOLA_TRY(auto who, ring.authenticate(text, now));    // denied: malformed, unknown or revoked
//   if (!allows(who->scope, Scope::use)) …
//
// When revoke() has returned, no authenticate() that begins afterwards lets the key in. Unknown keys are not
// remembered: whoever tries many fills nothing. Any thread may call.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "store/keys.h"
#include "store/store.h"

namespace isola::store {

class KeyRing {
 public:
  explicit KeyRing(Store& store) : store_(store) {}

  // Hears of the first use of a key in each hour, and how often it was used in the last one that it was used in. Set it
  // before the first authenticate(); it is called by whoever authenticates, and must not wait.
  using Heard = std::function<void(const KeyRecord& key, uint64_t uses_before)>;
  void on_hour(Heard heard) { heard_ = std::move(heard); }

  Result<std::shared_ptr<const KeyRecord>> authenticate(std::string_view text, Millis now);
  // Makes a key and keeps its record; the secret is in the answer and nowhere else.
  Result<NewKey> issue(std::string project, std::string name, Scope scope, Millis now);
  Result<void> revoke(const std::string& id, Millis now);
  void reload();
  // When it was revoked; 0: it was not, or there is no key of that id.
  Millis revoked_at(const std::string& id);
  // Writes down when keys were last used: call it now and then, not per request.
  Result<void> save_uses();

 private:
  struct Entry {
    std::shared_ptr<const KeyRecord> key;
    std::atomic<Millis> used = 0;
    Millis saved = 0;
    std::atomic<Millis> hour = -1;  // the last one in which it was used
    std::atomic<uint64_t> uses = 0;
  };
  std::shared_ptr<const KeyRecord> recall(const std::string& hash, Millis now, uint64_t& generation);
  // Gives what `heard_` is to be told, if this is the first use in its hour.
  static std::optional<uint64_t> count(Entry& entry, Millis now);

  Store& store_;
  Heard heard_;
  std::shared_mutex mutex_;
  std::unordered_map<std::string, Entry> known_;     // by hash
  bool read_ = false;                                // revoked_ is what the store says
  std::unordered_map<std::string, Millis> revoked_;  // by id
  uint64_t generation_ = 0;  // counts revocations and reloads: what was read before one is not remembered after it
};

}  // namespace isola::store
