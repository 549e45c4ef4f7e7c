#include "store/key_ring.h"

#include <mutex>

#include "base/hash/sha256.h"

namespace isola::store {

std::shared_ptr<const KeyRecord> KeyRing::recall(const std::string& hash, Millis now, uint64_t& generation) {
  std::shared_lock lock(mutex_);
  generation = generation_;
  auto found = known_.find(hash);
  if (found == known_.end() || !equal_secrets(found->first, hash)) return nullptr;
  found->second.used.store(now, std::memory_order_relaxed);
  auto key = found->second.key;
  auto before = count(found->second, now);
  lock.unlock();
  if (before && heard_) heard_(*key, *before);
  return key;
}

std::optional<uint64_t> KeyRing::count(Entry& entry, Millis now) {
  const Millis hour = now / (3600 * 1000);
  Millis last = entry.hour.load(std::memory_order_relaxed);
  if (last != hour && entry.hour.compare_exchange_strong(last, hour)) return entry.uses.exchange(1);
  entry.uses.fetch_add(1, std::memory_order_relaxed);
  return std::nullopt;
}

Result<std::shared_ptr<const KeyRecord>> KeyRing::authenticate(std::string_view text, Millis now) {
  if (is_key(text)) {
    ISOLA_TRY(std::string hash, hash_key(text));
    uint64_t generation = 0;
    if (auto key = recall(hash, now, generation)) return key;
    ISOLA_TRY(KeyRecord record, store::authenticate(store_, text));
    auto key = std::make_shared<const KeyRecord>(std::move(record));
    std::optional<uint64_t> before;
    {
      std::lock_guard lock(mutex_);
      if (generation == generation_) {
        Entry& entry = known_[hash];
        entry.key = key;
        entry.used = now;
        before = count(entry, now);
      }
    }
    if (before && heard_) heard_(*key, *before);
    return key;
  }
  ISOLA_TRY(KeyRecord never, store::authenticate(store_, text));  // says the refusal
  return std::make_shared<const KeyRecord>(std::move(never));
}

Result<NewKey> KeyRing::issue(std::string project, std::string name, Scope scope, Millis now) {
  ISOLA_TRY(NewKey made, make_key(std::move(project), std::move(name), scope, now));
  ISOLA_CHECK(store_.insert_key(made.record));
  return made;
}

Result<void> KeyRing::revoke(const std::string& id, Millis now) {
  ISOLA_CHECK(store_.revoke_key(id, now));
  std::lock_guard lock(mutex_);
  ++generation_;
  read_ = false;
  std::erase_if(known_, [&](const auto& entry) { return entry.second.key->id == id; });
  return {};
}

Millis KeyRing::revoked_at(const std::string& id) {
  uint64_t generation = 0;
  {
    std::shared_lock lock(mutex_);
    generation = generation_;
    if (read_) {
      auto at = revoked_.find(id);
      return at == revoked_.end() ? 0 : at->second;
    }
  }
  auto all = store_.list_keys("");
  // Nobody knows: whoever has a right to come in comes again, whoever has none must not get in meanwhile.
  if (!all) return -1;
  std::unordered_map<std::string, Millis> revoked;
  for (const auto& key : *all)
    if (key.revoked) revoked[key.id] = key.revoked;
  auto at = revoked.find(id);
  Millis when = at == revoked.end() ? 0 : at->second;
  std::lock_guard lock(mutex_);
  if (generation == generation_) {
    revoked_ = std::move(revoked);
    read_ = true;
  }
  return when;
}

void KeyRing::reload() {
  std::lock_guard lock(mutex_);
  ++generation_;
  read_ = false;
  known_.clear();
}

Result<void> KeyRing::save_uses() {
  Touched uses;
  {
    std::lock_guard lock(mutex_);
    for (auto& [hash, entry] : known_) {
      Millis used = entry.used;
      if (used > entry.saved) uses.emplace_back(entry.key->id, used);
      entry.saved = used;
    }
  }
  return store_.touch_keys(uses);
}

}  // namespace isola::store
