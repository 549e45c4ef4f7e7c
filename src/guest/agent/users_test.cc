#include "guest/agent/users.h"

#include <gtest/gtest.h>

#include "guest/agent/procfs.h"

namespace isola::guest {
namespace {

constexpr char kPasswd[] =
    "root:x:0:0:root:/root:/bin/sh\nbroken\nuser:x:1000:1000::/home/user:/bin/bash\nodd:x:7:x:::\n";
constexpr char kGroup[] = "root:x:0:\nuser:x:1000:\nsudo:x:27:other,user\nx:x:28:username\ndocker:x:99:user";

TEST(Users, Resolve) {
  auto u = resolve_user("user", kPasswd, kGroup);
  ASSERT_TRUE(u);
  EXPECT_EQ(u->uid, 1000u);
  EXPECT_EQ(u->home, "/home/user");
  EXPECT_EQ(u->shell, "/bin/bash");
  EXPECT_EQ(resolve_user("4242", kPasswd, kGroup)->shell, "");
  EXPECT_EQ(u->groups, (std::vector<uint32_t>{1000, 27, 99}));
  EXPECT_EQ(resolve_user("1000", kPasswd, kGroup)->name, "user");
  EXPECT_EQ(resolve_user("1000:5", kPasswd, kGroup)->groups, (std::vector<uint32_t>{5}));
  EXPECT_EQ(resolve_user("4242", kPasswd, kGroup)->gid, 4242u);
  EXPECT_EQ(resolve_user("root", "", "")->uid, 0u);
  for (const char* bad : {"odd", "nobody", "-1", "4294967295", "user:", "1:x", "1:2:3"}) {
    EXPECT_FALSE(resolve_user(bad, kPasswd, kGroup)) << bad;
  }
}

TEST(Ports, OnlyListenersAndEachOnce) {
  Ports out;
  parse_ports(
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
      "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1\n"
      "   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1\n"
      "   2: 0100007F:1F91 0100007F:0001 01 00000000:00000000 00:00000000 00000000  1000        0 1 1\n"
      "   3: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1\ngarbage\n",
      false, out);
  ASSERT_EQ(out.list.size(), 2u);
  EXPECT_EQ(out.list[0].port, 8080);
  EXPECT_TRUE(out.list[0].loopback);
  EXPECT_EQ(out.list[0].uid, 1000u);
  EXPECT_FALSE(out.list[1].loopback);
}

}  // namespace
}  // namespace isola::guest
