#include "sandbox/tenants.h"

namespace isola::sandbox {

namespace {
constexpr size_t kKnownMost = 10000;
constexpr auto kKnownFor = std::chrono::seconds(5);  // another process may revoke; this one forgets at once
}  // namespace

Result<Caller> Tenants::authenticate(std::string_view key) {
  if (!store::is_key(key)) return fail(Code::denied, "the API key is missing or wrong");
  ISOLA_TRY(std::string hash, store::hash_key(key));
  auto now = std::chrono::steady_clock::now();
  {
    std::shared_lock lock(mutex_);
    auto at = known_.find(hash);
    if (at != known_.end() && at->second.until > now) return at->second.caller;
  }
  auto record = store::authenticate(store_, key);
  if (!record && record.error().code == Code::denied) return fail(Code::denied, "the API key is missing or wrong");
  if (!record) return std::unexpected(record.error());
  Caller caller{record->project, record->id, record->scope};
  std::unique_lock lock(mutex_);
  if (known_.size() >= kKnownMost) known_.clear();
  known_[hash] = {caller, now + kKnownFor};
  return caller;
}

void Tenants::forget() {
  std::unique_lock lock(mutex_);
  known_.clear();
}

}  // namespace isola::sandbox
