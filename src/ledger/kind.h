// What can be written into the ledger: one table of words, `subject.what-happened`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace isola::ledger {

enum class Kind : uint8_t {
  sandbox_created,
  sandbox_ready,
  sandbox_updated,
  sandbox_paused,
  sandbox_resumed,
  sandbox_forked,
  sandbox_ended,
  command_started,
  command_ended,
  file_written,
  file_moved,
  file_removed,
  key_created,
  key_revoked,
  project_created,
  project_updated,
  egress_allowed,
  egress_denied,
  egress_lost,
  secret_granted,
  secret_denied,
  prove_passed,
  prove_failed,
  server_started,
  server_stopped,
  usage_sample,
  volume_created,
  volume_updated,
  volume_removed,
  volume_full,
  bucket_mounted,  // a bucket is in a sandbox: whose, with which secret, by name
  secret_created,
  secret_rotated,
  secret_deleted,
  secret_exposed,  // given to a command as it is
  grant_created,   // a binding: which secret, for whom, at which names
  grant_revoked,
  secret_used,    // put into a request by the gate: its name, never its value
  secret_minted,  // a value that does not last was made
  scan_hit,       // a value was found in a stream: which secret, in which form, where
  key_used,       // the first use of an API key in an hour
  ledger_checkpoint,
  ledger_rotated,     // the first entry of a new file
  ledger_gap,         // entries that were written are not there any more
  gate_restarted,     // what a gate that is gone had not told by then is missing
  ledger_lost,        // so many entries found no room, and were never written
  sandbox_disk_full,  // next to nothing is left of what it may write
  image_damaged,      // what is kept of a sandbox is not what was written, or cannot be read
};

std::string_view to_string(Kind kind);  // sandbox.created
std::optional<Kind> parse_kind(std::string_view word);
std::span<const Kind> all_kinds();

}  // namespace isola::ledger
