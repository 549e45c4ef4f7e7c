// Protections are data: what a living sandbox has installed is what its boundary says, whichever way it was born, and
// each thing that differs makes the comparison fail.
#include <fmt/format.h>

#include <fstream>

#include "boundary/jail/jail.h"
#include "e2e/island.h"

namespace isola::e2e {
namespace {

using boundary::jail::Jail;
using boundary::jail::MountRule;
using boundary::jail::Protections;
using boundary::jail::verify;

class ProtectionsTest : public SharedIsland {
 protected:
  void SetUp() override {
    SharedIsland::SetUp();
    if (IsSkipped()) return;
    auto tree = kernel::CgroupTree::detect({});
    ASSERT_OK(tree);
    auto jail = Jail::make(*tree);
    ASSERT_OK(jail);
    standard_ = (*jail)->protections();
  }
  // What one sandbox should have, from the launcher's journal.
  Protections wanted(const std::string& id, pid_t& pid) {
    std::ifstream journal(island().data() + "/run/" + id);
    std::string version, name, digest;
    Protections p = standard_;
    journal >> version >> name >> p.id_base >> digest >> pid;
    p.cgroup = id;
    return p;
  }
  Protections standard_;
};

TEST_F(ProtectionsTest, EveryBirthHasThem) {
  auto client = island().client();
  ASSERT_TRUE(client.park(island().digest(), 1));
  ASSERT_TRUE(eventually([&] { return client.info()->parked == 1; }));
  for (bool cold : {true, false}) {
    auto sandbox = client.launch({.digest = island().digest(), .cold = cold});
    ASSERT_OK(sandbox);
    EXPECT_EQ(sandbox->reply.birth, cold ? Birth::cold : Birth::pooled);
    pid_t pid = 0;
    Protections p = wanted(sandbox->reply.id, pid);
    auto verified = verify(pid, p);
    EXPECT_TRUE(verified) << verified.error().message;
    EXPECT_TRUE(client.kill(sandbox->reply.id));
  }
  auto info = client.info();
  ASSERT_OK(info);
  EXPECT_EQ(info->protections, standard_.describe()) << "what the launcher tells is what this build makes";
}

TEST_F(ProtectionsTest, EachDifferenceIsNoticed) {
  auto client = island().client();
  auto sandbox = client.launch({.digest = island().digest()});
  ASSERT_OK(sandbox);
  pid_t pid = 0;
  const Protections good = wanted(sandbox->reply.id, pid);
  ASSERT_TRUE(verify(pid, good));
  auto differs = [&](const char* saying, const std::function<void(Protections&)>& change) {
    Protections bad = good;
    change(bad);
    auto verified = verify(pid, bad);
    ASSERT_FALSE(verified) << saying;
    EXPECT_NE(verified.error().message.find(saying), std::string::npos) << verified.error().message;
  };
  differs("uid_map", [](auto& p) { p.id_base += 65536; });
  differs("uid_map", [](auto& p) { p.id_count -= 1; });
  differs("CapBnd", [](auto& p) { p.capabilities ^= 1; });
  differs("seccomp", [](auto& p) { p.filter_hash[0] ^= 1; });
  differs("Max open files", [](auto& p) { p.open_files -= 1; });
  differs("control group", [](auto& p) { p.cgroup = "i0123456789abcdefghij"; });
  for (size_t i = 0; i < good.mounts.size(); ++i) {
    SCOPED_TRACE("/" + good.mounts[i].target);
    differs("mount table", [i](auto& p) { p.mounts.erase(p.mounts.begin() + static_cast<long>(i)); });
    differs("mount table", [i](auto& p) { p.mounts[i].attributes.read_only ^= true; });
    differs("mount table", [i](auto& p) { p.mounts[i].attributes.nosuid ^= true; });
    differs("mount table", [i](auto& p) { p.mounts[i].attributes.nodev ^= true; });
    differs("mount table", [i](auto& p) { p.mounts[i].attributes.noexec ^= true; });
    differs("mount table", [i](auto& p) { p.mounts[i].target += "x"; });
    if (good.mounts[i].from == MountRule::From::stage)
      differs("mount table", [i](auto& p) { p.mounts[i].source += "x"; });
    for (size_t o = 0; o < good.mounts[i].options.size(); ++o) {
      std::string key = good.mounts[i].options[o].key;
      if (key == "size" || key == "nr_inodes" || key == "max")
        differs("mount table", [i, o](auto& p) { p.mounts[i].options[o].value = "77"; });
    }
  }
  differs("mount table", [](auto& p) { p.mounts.push_back({.target = "mnt", .from = MountRule::From::shown}); });
  EXPECT_TRUE(client.kill(sandbox->reply.id));
}

// What a launch adds of its own is compared too: these are launches that would fail if it were not found.
TEST_F(ProtectionsTest, OtherLimitsThanTheStandardOnes) {
  auto client = island().client();
  auto few = client.launch({.digest = island().digest(), .limits = {.open_files = 99}});
  ASSERT_OK(few);
  pid_t pid = 0;
  Protections p = wanted(few->reply.id, pid);
  EXPECT_FALSE(verify(pid, p));
  p.open_files = 99;
  auto verified = verify(pid, p);
  EXPECT_TRUE(verified) << verified.error().message;
  auto slow = client.launch({.digest = island().digest(), .limits = {.io_bytes_per_second = 8 << 20}});
  if (!slow && slow.error().code == Code::unsupported) GTEST_SKIP() << slow.error().message;
  ASSERT_OK(slow);
  p = wanted(slow->reply.id, pid);
  p.limits.io_bytes_per_second = 8 << 20;
  verified = verify(pid, p);
  EXPECT_TRUE(verified) << verified.error().message;
}

}  // namespace
}  // namespace isola::e2e
