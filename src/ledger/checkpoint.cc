#include "ledger/checkpoint.h"

#include <nlohmann/json.hpp>

#include "base/codec.h"
#include "base/hash/hmac.h"
#include "base/hash/sha256.h"

namespace isola::ledger {

namespace {

Result<std::string> mac_of(const Checkpoint& checkpoint, const VerificationKeys& keys) {
  ISOLA_TRY(std::string key, keys.derive("checkpoint"));
  Writer bytes;
  bytes.u64(checkpoint.head.seq);
  bytes.str(checkpoint.head.hash);
  bytes.i64(checkpoint.time);
  ISOLA_TRY(std::string raw, hmac_sha256(key, bytes.data()));
  wipe(key);
  return to_hex(raw);
}

}  // namespace

Result<std::string> to_text(const Checkpoint& checkpoint, const VerificationKeys& keys) {
  ISOLA_TRY(std::string mac, mac_of(checkpoint, keys));
  nlohmann::ordered_json out = {
      {"isola_checkpoint", 1}, {"head", to_text(checkpoint.head)}, {"time", checkpoint.time}, {"mac", mac}};
  return out.dump() + "\n";
}

Result<Checkpoint> parse_checkpoint(std::string_view text, const VerificationKeys* keys) {
  auto in = nlohmann::json::parse(text, nullptr, false);
  auto bad = [](const char* why) { return fail(Code::corrupt, std::string("this is no checkpoint: ") + why); };
  if (!in.is_object() || !in.contains("isola_checkpoint") || in["isola_checkpoint"] != 1)
    return bad("isola_checkpoint is missing, or not 1");
  if (!in.contains("head") || !in["head"].is_string() || !in.contains("time") || !in["time"].is_number_integer() ||
      !in.contains("mac") || !in["mac"].is_string())
    return bad("it has no head, time and mac");
  const Millis time = in["time"].get<Millis>();
  ISOLA_TRY(Head head, parse_head(in["head"].get<std::string>()));
  Checkpoint checkpoint;
  checkpoint.head = std::move(head);
  checkpoint.time = time;
  if (!keys) return checkpoint;
  ISOLA_TRY(std::string mac, mac_of(checkpoint, *keys));
  if (!equal_secrets(mac, in["mac"].get<std::string>())) return bad("it was not made with the key of this ledger");
  return checkpoint;
}

}  // namespace isola::ledger
