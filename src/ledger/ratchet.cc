#include "ledger/ratchet.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/codec.h"
#include "base/file.h"
#include "base/hash/hmac.h"
#include "base/hash/sha256.h"
#include "store/sqlite.h"

namespace isola::ledger {

namespace {

constexpr std::string_view kRatchetMark = "isola-ledger-ratchet-1", kKeyMark = "isola-ledger-key-1";

Result<std::string> new_key() {
  std::string key(kKeySize, '\0');
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) return sys_error("no random numbers");
  return key;
}

// Always as long: it is overwritten in place, in one write within one sector.
Result<std::string> text_of(const ChainKey& key) {
  std::string text = fmt::format("{} {:020} {}", kRatchetMark, key.seq(), to_hex(key.key()));
  ISOLA_TRY(std::string sum, sha256(text));
  return text + " " + sum + "\n";
}

Result<ChainKey> parse_key(std::string_view number, std::string_view digits) {
  uint64_t seq = 0;
  auto [at, error] = std::from_chars(number.data(), number.data() + number.size(), seq);
  auto key = from_hex(digits);
  if (error != std::errc() || at != number.data() + number.size() || seq == 0 || !key || key->size() != kKeySize)
    return fail(Code::corrupt, "this is not a key of a ledger");
  return ChainKey(seq, std::move(*key));
}

// A key is in two files. The second is made whole beside its place, then the first is written, then the second gets its
// name: whatever is killed in between, the next one finds either the old state, or both halves and can finish.
std::string next_ratchet(const std::string& ledger) { return Ratchet::path_of(ledger) + ".next"; }

// As root in the folder of somebody else: never through a link, never over a file that is there.
Result<void> make_ratchet(const std::string& path, const ChainKey& key, unsigned uid, unsigned gid) {
  if (::unlink(path.c_str()) < 0 && errno != ENOENT) return sys_error("cannot remove " + path);
  Fd file(::open(path.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0600));
  if (!file) return sys_error("cannot create " + path);
  ISOLA_TRY(std::string text, text_of(key));
  ISOLA_CHECK(write_all(file.get(), text));
  wipe(text);
  if (::fchown(file.get(), uid, gid) < 0 || ::fsync(file.get()) < 0) return sys_error("cannot write " + path);
  return {};
}

// Of a ledger from before keys. As its owner: root opens no database in the folder of somebody else.
Result<uint64_t> entries_before(const std::string& ledger, unsigned uid, unsigned gid) {
  if (!is_there(ledger)) return 0;
  const unsigned own_uid = ::geteuid(), own_gid = ::getegid();
  if (::setegid(gid) < 0 || ::seteuid(uid) < 0) return sys_error("cannot look into " + ledger);
  auto newest = [&]() -> Result<int64_t> {
    ISOLA_TRY(auto db, sqlite::Database::open_reader(ledger));
    return db.integer("SELECT coalesce(max(seq), 0) FROM events");
  }();
  if (::seteuid(own_uid) < 0 || ::setegid(own_gid) < 0) return sys_error("cannot be root again");
  if (!newest) return std::unexpected(newest.error().in(ledger));
  return static_cast<uint64_t>(std::max<int64_t>(*newest, 0));
}

}  // namespace

ChainKey::~ChainKey() { wipe(key_); }
ChainKey& ChainKey::operator=(const ChainKey& other) {
  if (this == &other) return *this;
  wipe(key_);
  seq_ = other.seq_;
  key_ = other.key_;
  return *this;
}
ChainKey& ChainKey::operator=(ChainKey&& other) noexcept {
  if (this == &other) return *this;
  wipe(key_);
  seq_ = other.seq_;
  key_ = other.key_;
  wipe(other.key_);
  return *this;
}

Result<std::string> ChainKey::mac(std::string_view hash) const {
  Writer bytes;
  bytes.str("entry");
  bytes.u64(seq_);
  bytes.str(hash);
  ISOLA_TRY(std::string raw, hmac_sha256(key_, bytes.data()));
  return to_hex(raw);
}

Result<void> ChainKey::forward() {
  ISOLA_TRY(std::string next, hmac_sha256(key_, "ratchet"));
  wipe(key_);
  key_ = std::move(next);
  ++seq_;
  return {};
}

Result<void> ChainKey::forward_to(uint64_t seq) {
  while (seq_ < seq) ISOLA_CHECK(forward());
  return {};
}

Result<Ratchet> Ratchet::open(const std::string& ledger) {
  auto ratchet = open_at(path_of(ledger));
  if (!ratchet && ratchet.error().code == Code::not_found)
    return fail(Code::denied, "the ledger " + ledger + " has no key, and nothing is written without one");
  return ratchet;
}

Result<Ratchet> Ratchet::open_at(const std::string& path) {
  Fd file(::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!file && errno == ENOENT) return fail(Code::not_found, "there is no " + path);
  if (!file) return sys_error("cannot open " + path);
  char buffer[256];
  ssize_t n = ::pread(file.get(), buffer, sizeof buffer, 0);
  if (n < 0) return sys_error("cannot read " + path);
  std::string_view text(buffer, static_cast<size_t>(n));
  const size_t mark = kRatchetMark.size();
  if (text.size() != mark + 1 + 20 + 1 + 64 + 1 + 64 + 1 || !text.starts_with(kRatchetMark))
    return fail(Code::corrupt, path + " does not hold the key of a ledger");
  auto key = parse_key(text.substr(mark + 1, 20), text.substr(mark + 22, 64));
  auto again = key ? text_of(*key) : Result<std::string>(std::unexpected(key.error()));
  if (!again || *again != text) return fail(Code::corrupt, path + " does not hold the key of a ledger");
  ::explicit_bzero(buffer, sizeof buffer);
  return Ratchet(std::move(file), std::move(*key));
}

Result<void> Ratchet::move_to(const ChainKey& key) {
  ISOLA_TRY(std::string text, text_of(key));
  key_ = key;
  ssize_t n = ::pwrite(file_.get(), text.data(), text.size(), 0);
  bool whole = n == static_cast<ssize_t>(text.size());
  wipe(text);
  if (!whole) return sys_error("cannot move the ledger's key on");
  return {};
}

Result<VerificationKeys> VerificationKeys::read(const std::string& path) {
  ISOLA_TRY(std::string text, read_file(path, 1 << 20));
  auto keys = parse(text);
  wipe(text);
  if (!keys) return std::unexpected(keys.error().in(path));
  return keys;
}

Result<VerificationKeys> VerificationKeys::parse(std::string_view text) {
  VerificationKeys keys;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.empty() || line[0] == '#') continue;
    size_t space = line.rfind(' ');
    if (!line.starts_with(kKeyMark) || space == std::string_view::npos || space <= kKeyMark.size())
      return fail(Code::corrupt, "this is not a key of a ledger");
    ISOLA_TRY(ChainKey key,
              parse_key(line.substr(kKeyMark.size() + 1, space - kKeyMark.size() - 1), line.substr(space + 1)));
    if (!keys.beginnings_.empty() && key.seq() <= keys.beginnings_.back().seq())
      return fail(Code::corrupt, "the keys are not in order");
    keys.beginnings_.push_back(std::move(key));
  }
  if (keys.beginnings_.empty()) return fail(Code::corrupt, "there is no key");
  return keys;
}

Result<ChainKey> VerificationKeys::for_entry(uint64_t seq) const {
  auto after = std::find_if(beginnings_.begin(), beginnings_.end(), [&](const auto& key) { return key.seq() > seq; });
  if (after == beginnings_.begin()) return fail(Code::not_found, fmt::format("there is no key for entry {}", seq));
  ChainKey key = *(after - 1);
  ISOLA_CHECK(key.forward_to(seq));
  return key;
}

bool VerificationKeys::begins_at(uint64_t seq) const {
  return std::any_of(beginnings_.begin(), beginnings_.end(), [&](const auto& key) { return key.seq() == seq; });
}

Result<std::string> VerificationKeys::derive(std::string_view purpose) const {
  return hmac_sha256(beginnings_.front().key(), "derive " + std::string(purpose));
}

namespace {

Result<void> put_key(const std::string& ledger, const std::string& key_file, std::string lines, const ChainKey& key,
                     unsigned uid, unsigned gid) {
  lines += fmt::format("{} {} {}\n", kKeyMark, key.seq(), to_hex(key.key()));
  ISOLA_CHECK(VerificationKeys::parse(lines));
  ISOLA_CHECK(make_ratchet(next_ratchet(ledger), key, uid, gid));
  auto written = replace_file(key_file, lines, 0600);
  wipe(lines);
  ISOLA_CHECK(written);
  if (::rename(next_ratchet(ledger).c_str(), Ratchet::path_of(ledger).c_str()) < 0)
    return sys_error("cannot rename " + next_ratchet(ledger));
  return {};
}

// A change that was killed after its first half. The server's user could put a file there, but not with that key in it.
Result<bool> finish_key(const std::string& ledger, const std::string& key_file) {
  auto next = Ratchet::open_at(next_ratchet(ledger));
  if (!next) return false;
  auto keys = VerificationKeys::read(key_file);
  if (!keys || keys->newest().seq() != next->key().seq() || !equal_secrets(keys->newest().key(), next->key().key()))
    return false;
  if (::rename(next_ratchet(ledger).c_str(), Ratchet::path_of(ledger).c_str()) < 0)
    return sys_error("cannot rename " + next_ratchet(ledger));
  return true;
}

// What an earlier try left of a beginning at this entry or later never authenticated anything that is here. It stays
// readable, for copies that may be elsewhere, and counts no more.
Result<std::string> without_later(std::string_view lines, uint64_t seq) {
  std::string kept;
  for (size_t at = 0; at < lines.size();) {
    size_t end = std::min(lines.find('\n', at), lines.size());
    std::string_view line = lines.substr(at, end - at);
    at = end + 1;
    if (auto one = VerificationKeys::parse(line); one && one->newest().seq() >= seq) kept += "# replaced: ";
    kept += line;
    kept += '\n';
  }
  return kept;
}

}  // namespace

Result<void> provide_key(const std::string& ledger, const std::string& key_file, unsigned uid, unsigned gid) {
  ISOLA_TRY(bool finished, finish_key(ledger, key_file));
  if (finished || is_there(Ratchet::path_of(ledger))) return {};
  if (is_there(key_file))
    return fail(Code::corrupt, Ratchet::path_of(ledger) + " is gone, the key of the ledger, although " + key_file +
                                   " says that there was one: put it back, or start a new part of the ledger with "
                                   "`isola audit rotate --new-key`, which says so in it");
  ISOLA_TRY(uint64_t before, entries_before(ledger, uid, gid));
  ISOLA_TRY(std::string raw, new_key());
  return put_key(ledger, key_file, "", ChainKey(before + 1, std::move(raw)), uid, gid);
}

Result<void> replace_key(const std::string& ledger, const std::string& key_file, uint64_t seq, unsigned uid,
                         unsigned gid) {
  ISOLA_TRY(std::string raw, new_key());
  ChainKey key(seq, std::move(raw));
  std::string lines;
  if (auto before = read_file(key_file, 1 << 20); before) {
    ISOLA_TRY(lines, without_later(*before, seq));
    wipe(*before);
  } else if (before.error().code != Code::not_found) {
    return std::unexpected(before.error());
  }
  return put_key(ledger, key_file, std::move(lines), key, uid, gid);
}

}  // namespace isola::ledger
