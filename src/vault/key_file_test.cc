#include "vault/key_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"

namespace isola::vault {
namespace {

class KeyFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-vault-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/vault/key"; }
  KeyFile open() {
    auto file = KeyFile::open_or_make(path());
    if (!file) throw std::runtime_error(file.error().message);
    return std::move(*file);
  }
  // As little work as the function allows: what is tested is not its slowness.
  static Lock quick_lock() {
    Lock lock = new_lock();
    lock.rounds = 1;
    lock.memory = 8192;
    return lock;
  }
  std::string folder_;
};

TEST_F(KeyFiles, TheFirstStartMakesOneAndTheNextFindsIt) {
  KeyFile made = open();
  ASSERT_FALSE(made.locked());
  struct stat status{};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat((folder_ + "/vault").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  KeyFile again = open();
  EXPECT_EQ(again.open_key(), made.open_key());
  EXPECT_EQ(again.keys()->gate.secret_key().view(), made.keys()->gate.secret_key().view());
  EXPECT_NE(again.keys()->gate.open_key(), again.keys()->current.open_key());
  EXPECT_FALSE(again.has_passphrase());
}

TEST_F(KeyFiles, OneThatOthersCouldReadIsRefused) {
  open();
  ::chmod(path().c_str(), 0640);
  EXPECT_EQ(KeyFile::open_or_make(path()).error().code, Code::denied);
  ::unlink(path().c_str());
  ::symlink("/dev/null", path().c_str());
  EXPECT_EQ(KeyFile::open_or_make(path()).error().code, Code::denied);
}

TEST_F(KeyFiles, DamageIsNeverTakenForAFreshStart) {
  open();
  auto bytes = read_file(path()).value();
  for (size_t i = 0; i < bytes.size(); i += 3) {
    ASSERT_TRUE(replace_file(path(), bytes.substr(0, i), 0600));
    EXPECT_FALSE(KeyFile::open_or_make(path())) << i;
  }
}

TEST_F(KeyFiles, APassphraseLocksIt) {
  KeyFile file = open();
  auto key = std::string(file.keys()->current.secret_key().view());
  auto sealed = seal(file.open_key(), "value").value();
  Lock lock = quick_lock();
  ASSERT_TRUE(file.set_passphrase(lock, derive_lock("correct horse", lock).value()));
  EXPECT_EQ(read_file(path()).value().find(key), std::string::npos) << "the key is in the file";
  KeyFile later = open();
  EXPECT_TRUE(later.locked());
  EXPECT_TRUE(later.has_passphrase());
  EXPECT_EQ(later.keys(), nullptr);
  EXPECT_EQ(later.open_key(), file.open_key()) << "values can be sealed while it is locked";
  EXPECT_FALSE(later.begin_rotation());
  EXPECT_FALSE(later.remove_passphrase());
  EXPECT_EQ(later.unlock(derive_lock("wrong horse", later.lock()).value()).error().code, Code::denied);
  EXPECT_TRUE(later.locked());
  ASSERT_TRUE(later.unlock(derive_lock("correct horse", later.lock()).value()));
  EXPECT_EQ(open_sealed(later.keys()->current, sealed).value().view(), "value");
  ASSERT_TRUE(later.remove_passphrase());
  EXPECT_FALSE(open().locked());
  EXPECT_FALSE(derive_lock("", lock));
}

TEST_F(KeyFiles, AForeignPublicKeyInALockedFileIsSeen) {
  KeyFile file = open();
  Lock lock = quick_lock();
  ASSERT_TRUE(file.set_passphrase(lock, derive_lock("p", lock).value()));
  auto bytes = read_file(path()).value();
  auto own = std::string(reinterpret_cast<const char*>(file.open_key().data()), kKeyBytes);
  auto other = KeyPair::make().value();
  bytes.replace(bytes.find(own), kKeyBytes, reinterpret_cast<const char*>(other.open_key().data()), kKeyBytes);
  ASSERT_TRUE(replace_file(path(), bytes, 0600));
  KeyFile changed = open();
  EXPECT_EQ(changed.unlock(derive_lock("p", changed.lock()).value()).error().code, Code::corrupt);
  EXPECT_TRUE(changed.locked());
}

TEST_F(KeyFiles, ARotationKeepsTheOldKeyUntilItIsOver) {
  KeyFile file = open();
  auto before = file.open_key();
  auto gate = file.keys()->gate.open_key();
  auto sealed = seal(before, "value").value();
  ASSERT_TRUE(file.begin_rotation());
  EXPECT_NE(file.open_key(), before);
  EXPECT_EQ(file.keys()->gate.open_key(), gate) << "what the gate holds is not touched";
  KeyFile crashed = open();
  ASSERT_TRUE(crashed.rotating());
  auto now = crashed.open_key();
  ASSERT_TRUE(crashed.begin_rotation());
  EXPECT_EQ(crashed.open_key(), now) << "one that is under way goes on";
  EXPECT_EQ(open_sealed(*crashed.keys()->old, sealed).value().view(), "value");
  ASSERT_TRUE(crashed.end_rotation());
  EXPECT_FALSE(open().keys()->old);
  EXPECT_FALSE(open().rotating());
  EXPECT_EQ(open().open_key(), now);
}

TEST_F(KeyFiles, ARotationUnderAPassphraseStaysUnderIt) {
  KeyFile file = open();
  Lock lock = quick_lock();
  ASSERT_TRUE(file.set_passphrase(lock, derive_lock("p", lock).value()));
  ASSERT_TRUE(file.begin_rotation());
  KeyFile again = open();
  EXPECT_TRUE(again.locked());
  EXPECT_TRUE(again.rotating());
  EXPECT_EQ(again.open_key(), file.open_key());
  ASSERT_TRUE(again.unlock(derive_lock("p", again.lock()).value()));
  EXPECT_TRUE(again.keys()->old);
}

}  // namespace
}  // namespace isola::vault
