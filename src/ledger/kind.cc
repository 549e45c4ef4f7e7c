#include "ledger/kind.h"

#include <array>

namespace isola::ledger {

namespace {

struct Word {
  Kind kind;
  std::string_view word;
};
constexpr std::array kWords = {
    Word{Kind::sandbox_created, "sandbox.created"},
    Word{Kind::sandbox_ready, "sandbox.ready"},
    Word{Kind::sandbox_updated, "sandbox.updated"},
    Word{Kind::sandbox_paused, "sandbox.paused"},
    Word{Kind::sandbox_resumed, "sandbox.resumed"},
    Word{Kind::sandbox_forked, "sandbox.forked"},
    Word{Kind::sandbox_ended, "sandbox.ended"},
    Word{Kind::command_started, "command.started"},
    Word{Kind::command_ended, "command.ended"},
    Word{Kind::file_written, "file.written"},
    Word{Kind::file_moved, "file.moved"},
    Word{Kind::file_removed, "file.removed"},
    Word{Kind::key_created, "key.created"},
    Word{Kind::key_revoked, "key.revoked"},
    Word{Kind::project_created, "project.created"},
    Word{Kind::project_updated, "project.updated"},
    Word{Kind::egress_allowed, "egress.allowed"},
    Word{Kind::egress_denied, "egress.denied"},
    Word{Kind::egress_lost, "egress.lost"},
    Word{Kind::secret_granted, "secret.granted"},
    Word{Kind::secret_denied, "secret.denied"},
    Word{Kind::prove_passed, "prove.passed"},
    Word{Kind::prove_failed, "prove.failed"},
    Word{Kind::server_started, "server.started"},
    Word{Kind::server_stopped, "server.stopped"},
    Word{Kind::usage_sample, "usage.sample"},
    Word{Kind::volume_created, "volume.created"},
    Word{Kind::volume_updated, "volume.updated"},
    Word{Kind::volume_removed, "volume.removed"},
    Word{Kind::volume_full, "volume.full"},
    Word{Kind::bucket_mounted, "bucket.mounted"},
    Word{Kind::secret_created, "secret.created"},
    Word{Kind::secret_rotated, "secret.rotated"},
    Word{Kind::secret_deleted, "secret.deleted"},
    Word{Kind::secret_exposed, "secret.exposed"},
    Word{Kind::grant_created, "grant.created"},
    Word{Kind::grant_revoked, "grant.revoked"},
    Word{Kind::secret_used, "secret.used"},
    Word{Kind::secret_minted, "secret.minted"},
    Word{Kind::scan_hit, "scan.hit"},
    Word{Kind::key_used, "key.used"},
    Word{Kind::ledger_checkpoint, "ledger.checkpoint"},
    Word{Kind::ledger_rotated, "ledger.rotated"},
    Word{Kind::ledger_gap, "ledger.gap"},
    Word{Kind::gate_restarted, "gate.restarted"},
    Word{Kind::ledger_lost, "ledger.lost"},
    Word{Kind::sandbox_disk_full, "sandbox.disk_full"},
    Word{Kind::image_damaged, "image.damaged"},
};
constexpr size_t kCount = static_cast<size_t>(Kind::image_damaged) + 1;

// Every kind once, in the order of the enum.
constexpr bool in_order() {
  for (size_t i = 0; i < kWords.size(); ++i)
    if (static_cast<size_t>(kWords[i].kind) != i) return false;
  return kWords.size() == kCount;
}
static_assert(in_order());

constexpr auto kKinds = [] {
  std::array<Kind, kCount> kinds{};
  for (size_t i = 0; i < kCount; ++i) kinds[i] = kWords[i].kind;
  return kinds;
}();

}  // namespace

std::string_view to_string(Kind kind) { return kWords.at(static_cast<size_t>(kind)).word; }

std::optional<Kind> parse_kind(std::string_view word) {
  for (const auto& entry : kWords)
    if (entry.word == word) return entry.kind;
  return std::nullopt;
}

std::span<const Kind> all_kinds() { return kKinds; }

}  // namespace isola::ledger
