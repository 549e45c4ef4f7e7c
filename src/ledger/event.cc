#include "ledger/event.h"

#include <fmt/format.h>

#include <charconv>

#include "base/codec.h"
#include "base/hash/sha256.h"
#include "base/ids.h"

namespace isola::ledger {

namespace {
// Of the bytes below; another form gets another number. What has no mac is from a time before them, and without an
// API key from the time before those.
constexpr uint8_t kForm = 1, kFormWithKey = 2, kFormWithMac = 3;
}  // namespace

Result<std::string> chain_hash(const Event& event, std::string_view kind_word, std::string_view prev, bool keyed) {
  // Lengths in front of the texts: "ab" + "c" is not "a" + "bc".
  Writer bytes;
  bytes.u8(keyed ? kFormWithMac : event.key.empty() ? kForm : kFormWithKey);
  bytes.str(prev);
  bytes.u64(event.seq);
  bytes.i64(event.time);
  for (const std::string* text : {&event.project, &event.sandbox, &event.task, &event.actor}) bytes.str(*text);
  bytes.str(kind_word);
  bytes.str(event.data);
  if (keyed || !event.key.empty()) bytes.str(event.key);
  return sha256(bytes.data());
}

std::string to_text(const Head& head) { return fmt::format("{}:{}", head.seq, head.seq ? head.hash : kNoHash); }

Result<Head> parse_head(std::string_view text) {
  Head head;
  const char* end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, head.seq);
  if (error != std::errc() || at == end || *at != ':' || !is_digest(std::string_view(at + 1, end)))
    return fail(Code::invalid, "the head of a ledger reads NUMBER:HASH, with 64 hex digits");
  head.hash.assign(at + 1, end);
  return head;
}

}  // namespace isola::ledger
