#include "vault/signing_keys.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json_bound.h"
#include "vault/seal.h"

namespace isola::vault {

using nlohmann::json;

Result<SigningKeys> SigningKeys::open(const std::string& path) {
  SigningKeys keys;
  keys.path_ = path;
  auto text = read_file(path, 1 << 20);
  if (!text && text.error().sys_errno == ENOENT) return keys;
  if (!text) return std::unexpected(text.error());
  auto odd = [&] { return fail(Code::corrupt, path + " is damaged"); };
  ISOLA_CHECK(check_json_bound(*text));
  json in = json::parse(*text, nullptr, false);
  if (!in.is_object() || !in.contains("keys") || !in["keys"].is_array()) return odd();
  for (const auto& one : in["keys"]) {
    if (!one.is_object() || !one.contains("jwk") || !one["jwk"].is_object() || !one["jwk"].contains("kid") ||
        !one["jwk"]["kid"].is_string() || !one.contains("created") || !one["created"].is_number_integer() ||
        !one.contains("sealed") || !one["sealed"].is_string())
      return odd();
    auto sealed = from_base64(one["sealed"].get_ref<const std::string&>());
    if (!sealed) return odd();
    keys.all_.push_back(
        {.id = one["jwk"]["kid"], .created = one["created"], .jwk = one["jwk"].dump(), .sealed = std::move(*sealed)});
  }
  return keys;
}

Result<void> SigningKeys::save(const std::vector<One>& all) const {
  json keys = json::array();
  for (const auto& one : all)
    keys.push_back({{"jwk", json::parse(one.jwk)}, {"created", one.created}, {"sealed", to_base64(one.sealed)}});
  return replace_file(path_, json{{"keys", keys}}.dump(2) + "\n", 0600);
}

const SigningKeys::One* SigningKeys::current(int64_t now) const {
  if (all_.empty()) return nullptr;
  for (size_t i = all_.size() - 1; i > 0; --i)
    if (all_[i].created + kAhead <= now) return &all_[i];
  return &all_[0];
}

// One is needed until the tokens are over that it signed before the next one began.
size_t SigningKeys::first_needed(int64_t now) const {
  size_t first = 0;
  while (first + 1 < all_.size() && all_[first + 1].created + kAhead + kBehind <= now) ++first;
  return first;
}

std::string SigningKeys::published(int64_t now) const {
  json keys = json::array();
  for (size_t i = first_needed(now); i < all_.size(); ++i) keys.push_back(json::parse(all_[i].jwk));
  return json{{"keys", keys}}.dump();
}

Result<void> SigningKeys::add(One key, int64_t now, bool at_once) {
  std::vector<One> next;
  if (!at_once) next.assign(all_.begin() + static_cast<ptrdiff_t>(first_needed(now)), all_.end());
  next.push_back(std::move(key));
  ISOLA_CHECK(save(next));
  all_ = std::move(next);
  return {};
}

Result<void> SigningKeys::reseal(const std::vector<std::string>& sealed) {
  if (sealed.size() != all_.size()) return fail(Code::internal, "not all keys were sealed anew");
  auto next = all_;
  for (size_t i = 0; i < next.size(); ++i) next[i].sealed = sealed[i];
  ISOLA_CHECK(save(next));
  all_ = std::move(next);
  return {};
}

}  // namespace isola::vault
