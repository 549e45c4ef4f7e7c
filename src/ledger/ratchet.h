// The key of the ledger, which only moves forward: entry n is authenticated with key n, and
//
//   key 1     is made once, when a server starts for the first time; DIR/ledger.key keeps it, for root alone (for a
//             ledger that is older than its key it is that of the first entry which was not there yet)
//   key n+1   is HMAC-SHA-256(key n, "ratchet"); key n is forgotten as soon as entry n is in the file
//
// So whoever takes the server over can write what they like from then on, and nothing into the time before: to make a
// fitting entry n they need key n, and there is no way back to it. Whoever holds key 1 can check every entry.
//
// The newest key stands in a small file beside the ledger (ledger.db.ratchet), not in the database: a database with a
// write-ahead log keeps old pages, and old keys with them. It is overwritten in place after each commit. A server that
// was killed in between finds a key that is some entries behind, checks those entries with it, and moves it on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::ledger {

inline constexpr size_t kKeySize = 32;

// A key and the entry that it is for. Wiped when it goes.
class ChainKey {
 public:
  ChainKey() = default;
  ChainKey(uint64_t seq, std::string key) : seq_(seq), key_(std::move(key)) {}
  ~ChainKey();
  ChainKey(const ChainKey&) = default;
  ChainKey(ChainKey&&) = default;
  ChainKey& operator=(const ChainKey& other);
  ChainKey& operator=(ChainKey&& other) noexcept;

  uint64_t seq() const { return seq_; }
  const std::string& key() const { return key_; }
  Result<std::string> mac(std::string_view hash) const;  // of the entry seq() with that hash: 64 hex digits
  Result<void> forward();
  Result<void> forward_to(uint64_t seq);

 private:
  uint64_t seq_ = 0;
  std::string key_;
};

// The file beside the ledger.
class Ratchet {
 public:
  static std::string path_of(const std::string& ledger) { return ledger + ".ratchet"; }
  // denied: there is none. corrupt: it cannot be read.
  static Result<Ratchet> open(const std::string& ledger);
  static Result<Ratchet> open_at(const std::string& path);  // not_found: there is none
  const ChainKey& key() const { return key_; }
  // The new key, over the old one.
  Result<void> move_to(const ChainKey& key);

 private:
  Ratchet(Fd file, ChainKey key) : file_(std::move(file)), key_(std::move(key)) {}
  Fd file_;
  ChainKey key_;
};

// What whoever verifies holds: the first key, and those of later new beginnings.
class VerificationKeys {
 public:
  static Result<VerificationKeys> read(const std::string& path);
  static Result<VerificationKeys> parse(std::string_view text);
  // The newest beginning that is not after `seq`, moved on to it; not_found: there is none.
  Result<ChainKey> for_entry(uint64_t seq) const;
  // Entries from there on have a mac.
  bool covers(uint64_t seq) const { return beginnings_.front().seq() <= seq; }
  // Another key begins at this entry.
  bool begins_at(uint64_t seq) const;
  const ChainKey& newest() const { return beginnings_.back(); }
  // For what is not an entry, such as exported checkpoints: of the first beginning.
  Result<std::string> derive(std::string_view purpose) const;

 private:
  std::vector<ChainKey> beginnings_;  // by seq
};

// On the first start, as root: makes the first key, puts it into `key_file` (0600) and the ratchet beside the ledger,
// owned by the server's user. Later: does nothing. A ratchet that is gone although there is a key is an error: somebody
// took it away, and a new one would hide that (`isola audit rotate --new-key` starts anew, and tells).
Result<void> provide_key(const std::string& ledger, const std::string& key_file, unsigned uid, unsigned gid);
// A new beginning from entry `seq` on, for a ratchet that is lost. Adds a line to `key_file`.
Result<void> replace_key(const std::string& ledger, const std::string& key_file, uint64_t seq, unsigned uid,
                         unsigned gid);

}  // namespace isola::ledger
