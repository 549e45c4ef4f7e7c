#include "ledger/ratchet.h"

#include <sys/stat.h>

#include "base/file.h"
#include "base/hash/hmac.h"
#include "ledger/checkpoint.h"
#include "ledger/test_ledger.h"

namespace isola::ledger {
namespace {

using RatchetTest = LedgerTest;

TEST(ChainKey, MovesForwardOnly) {
  ChainKey key(1, std::string(32, 'k')), first = key;
  std::string mac = key.mac("hash").value();
  EXPECT_EQ(mac.size(), 64u);
  ASSERT_TRUE(key.forward_to(3));
  EXPECT_EQ(key.seq(), 3u);
  auto twice = hmac_sha256(hmac_sha256(first.key(), "ratchet").value(), "ratchet");
  EXPECT_EQ(key.key(), *twice);
  EXPECT_NE(key.mac("hash").value(), mac);
  EXPECT_EQ(first.mac("hash").value(), mac);
  EXPECT_NE(first.mac("other").value(), mac);
}

TEST_F(RatchetTest, WithoutAKeyNothingIsWritten) {
  add(3);
  ledger_.reset();
  std::filesystem::remove(Ratchet::path_of(path()));
  auto refused = Ledger::open(path());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::denied);
  EXPECT_NE(refused.error().message.find("has no key"), std::string::npos);
  // And no new one is made in silence.
  auto again = provide_key(path(), key_path(), ::getuid(), ::getgid());
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::corrupt);
}

TEST_F(RatchetTest, OneThatIsDamagedIsRefused) {
  add(1);
  ledger_.reset();
  std::string file = Ratchet::path_of(path()), good = read_file(file).value();
  for (size_t at : {size_t{3}, size_t{40}, size_t{60}, good.size() - 5}) {
    std::string bad = good;
    bad[at] = bad[at] == '1' ? '2' : '1';
    ASSERT_TRUE(replace_file(file, bad, 0600));
    EXPECT_EQ(Ledger::open(path()).error().code, Code::corrupt) << at;
  }
  ASSERT_TRUE(replace_file(file, good, 0600));
  reopen();
}

TEST_F(RatchetTest, TheKeyThatWasUsedIsGone) {
  struct stat status{};
  ASSERT_EQ(::stat(Ratchet::path_of(path()).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  std::string first = to_hex(keys().for_entry(1)->key());
  EXPECT_NE(read_file(Ratchet::path_of(path())).value().find(first), std::string::npos);
  add(5);
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path() == key_path()) continue;
    std::string bytes = read_file(entry.path(), 64 << 20).value_or("");
    for (uint64_t seq = 1; seq <= 5; ++seq) {
      std::string raw = keys().for_entry(seq)->key();
      EXPECT_EQ(bytes.find(raw), std::string::npos) << entry.path();
      EXPECT_EQ(bytes.find(to_hex(raw)), std::string::npos) << entry.path();
    }
  }
  EXPECT_EQ(Ratchet::open(path())->key().key(), keys().for_entry(6)->key());
}

// Killed between the commit and the key: the key is behind, and catches up over what it made itself.
TEST_F(RatchetTest, AKeyThatIsBehindCatchesUp) {
  add(3);
  std::string file = Ratchet::path_of(path()), then = read_file(file).value();
  add(4);
  ledger_.reset();
  ASSERT_TRUE(replace_file(file, then, 0600));
  reopen();
  EXPECT_EQ(Ratchet::open(path())->key().seq(), 8u);
  add(2);
  auto keys = this->keys();
  auto verdict = verify_file(path(), {.keys = &keys});
  ASSERT_TRUE(verdict);
  EXPECT_TRUE(verdict->good()) << verdict->what;
  EXPECT_EQ(verdict->keyed, 9u);
  // Not over what somebody else put there.
  ledger_.reset();
  ASSERT_TRUE(replace_file(file, then, 0600));
  auto db = sqlite::Database::open(path(), kLedgerSchema, sqlite::Sync::normal);
  ASSERT_TRUE(db->run("DROP TRIGGER events_stay; UPDATE events SET mac = replace(mac, 'a', 'b') WHERE seq = 6"));
  EXPECT_EQ(Ledger::open(path()).error().code, Code::corrupt);
}

// A key is in two files, and the machine can stop between them.
TEST_F(RatchetTest, AReplacementThatWasKilledHalfway) {
  add(4);
  ledger_.reset();
  const std::string ratchet = Ratchet::path_of(path());
  auto replace = [&] { return replace_key(path(), key_path(), 5, ::getuid(), ::getgid()); };
  auto provide = [&] { return provide_key(path(), key_path(), ::getuid(), ::getgid()); };
  ASSERT_TRUE(replace());
  // The key is in the file for root, the one for the server is not in its place yet: the next start finishes it.
  std::filesystem::rename(ratchet, ratchet + ".next");
  ASSERT_TRUE(provide());
  EXPECT_FALSE(std::filesystem::exists(ratchet + ".next"));
  reopen();
  ledger_.reset();
  // Not with a key that is not root's.
  std::filesystem::rename(ratchet, ratchet + ".next");
  std::string lines = read_file(key_path()).value(), other = lines;
  other[other.size() - 2] = other[other.size() - 2] == '0' ? '1' : '0';
  ASSERT_TRUE(replace_file(key_path(), other, 0600));
  EXPECT_EQ(provide().error().code, Code::corrupt);
  EXPECT_FALSE(std::filesystem::exists(ratchet));
  // Nothing of the second half is left: it is done anew, as often as it takes.
  std::filesystem::remove(ratchet + ".next");
  for (int again = 0; again < 2; ++again) {
    std::filesystem::remove(ratchet);
    auto done = replace();
    ASSERT_TRUE(done) << done.error().message;
  }
  reopen();
  add(3);
  auto keys = this->keys();
  auto verdict = verify_file(path(), {.keys = &keys});
  EXPECT_TRUE(verdict->good()) << verdict->what;
  EXPECT_EQ(verdict->keyed, 7u);
}

// The very first one, too, when there is no ledger yet that could be rotated.
TEST_F(RatchetTest, AFirstKeyThatWasKilledHalfway) {
  const std::string ledger = folder_ + "/first.db", key = folder_ + "/first.key";
  ASSERT_TRUE(provide_key(ledger, key, ::getuid(), ::getgid()));
  std::filesystem::rename(Ratchet::path_of(ledger), Ratchet::path_of(ledger) + ".next");
  auto again = provide_key(ledger, key, ::getuid(), ::getgid());
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(Ratchet::open(ledger)->key().key(), VerificationKeys::read(key)->for_entry(1)->key());
}

TEST_F(RatchetTest, Checkpoints) {
  Checkpoint checkpoint{.head = {.seq = 17, .hash = std::string(64, 'a')}, .time = 5};
  auto keys = this->keys();
  std::string text = to_text(checkpoint, keys).value();
  EXPECT_EQ(parse_checkpoint(text, &keys).value(), checkpoint);
  EXPECT_EQ(parse_checkpoint(text, nullptr).value(), checkpoint);
  std::string later = text;
  later.replace(later.find("17:"), 3, "16:");
  EXPECT_EQ(parse_checkpoint(later, &keys).error().code, Code::corrupt);
  for (const char* bad :
       {"", "{}", "[]", R"({"isola_checkpoint":1})", R"({"isola_checkpoint":2,"head":"","time":0,"mac":""})"})
    EXPECT_FALSE(parse_checkpoint(bad, nullptr)) << bad;
}

TEST_F(RatchetTest, CheckpointsAreEntriesToo) {
  reopen({.checkpoint_entries = 10});
  for (int i = 0; i < 25; ++i) ASSERT_TRUE(ledger_->append_durably(event("i1")));
  auto found = ledger_->query({.kind_prefix = "ledger.checkpoint"});
  ASSERT_TRUE(found);
  ASSERT_EQ(found->size(), 2u);
  auto before = ledger_->query({.after = found->front().seq - 2, .limit = 1});
  EXPECT_EQ(found->front().data, fmt::format(R"({{"head":"{}:{}"}})", found->front().seq - 1, before->front().hash));
}

}  // namespace
}  // namespace isola::ledger
