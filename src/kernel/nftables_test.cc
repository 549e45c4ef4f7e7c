// Packet rules in a network namespace of the test's own, tried with real packets.
#include "kernel/nftables.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "kernel/netlink.h"
#include "kernel/netlink_route.h"

namespace isola::kernel {
namespace {

sockaddr_in local(uint16_t port) {
  return {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
}

class Nftables : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    home_ = Fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
    NetlinkBatch up;
    add_link_up(up, kLoopbackIndex);
    ASSERT_TRUE(NetlinkSocket::open(NETLINK_ROUTE)->run(up));
    server_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at = local(7000);
    ASSERT_EQ(::bind(server_.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    ASSERT_EQ(::listen(server_.get(), 64), 0);
  }
  void TearDown() override {
    if (home_) {
      ASSERT_EQ(::setns(home_.get(), CLONE_NEWNET), 0);
    }
  }
  void install(NftBatch& nft) {
    auto done = NetlinkSocket::open(NETLINK_NETFILTER)->run(nft.take());
    ASSERT_TRUE(done) << done.error().text();
  }
  // A connection with both its ends.
  struct Talk {
    Fd client, server;
  };
  Talk dial(uint16_t port = 7000) {
    Talk talk{Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), Fd()};
    sockaddr_in to = local(port);
    if (::connect(talk.client.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) < 0)
      talk.client.reset();
    else
      talk.server = Fd(::accept4(server_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    return talk;
  }
  Fd home_, server_;
};

TEST_F(Nftables, OnlySoManyConnectionsAtATime) {
  NftBatch nft("t");
  nft.chain({.name = "out"});
  nft.rule("out", NftRule().fresh().protocol(IPPROTO_TCP).flows_over(3).reject_with_reset());
  install(nft);
  if (HasFatalFailure()) return;
  Talk one = dial(), two = dial(), three = dial();
  EXPECT_TRUE(one.client && two.client && three.client);
  EXPECT_FALSE(dial().client);
  EXPECT_EQ(errno, ECONNREFUSED);
  // What is open is not disturbed, and one that closes makes room for another.
  EXPECT_EQ(::write(one.client.get(), "x", 1), 1);
  one = {};
  bool room = false;  // the kernel looks for closed ones once per tick of its clock
  for (int i = 0; i < 2000 && !room; ++i, ::poll(nullptr, 0, 1)) room = dial().client.valid();
  EXPECT_TRUE(room);
}

TEST_F(Nftables, OnlySoManyNewOnesInAShortTime) {
  NftBatch nft("t");
  nft.chain({.name = "out"});
  nft.rule("out", NftRule().fresh().protocol(IPPROTO_TCP).rate_over(1, 5).reject_with_reset());
  install(nft);
  if (HasFatalFailure()) return;
  int refused = 0;
  for (int i = 0; i < 200; ++i) refused += !dial().client;
  EXPECT_GT(refused, 50);
  EXPECT_LE(refused, 195);
}

TEST_F(Nftables, UntrackedOnesAreNotFreshAndNotRedirected) {
  NftBatch nft("t");
  nft.chain({.name = "raw", .kind = NftChain::Kind::raw_output});
  nft.rule("raw", NftRule().protocol(IPPROTO_TCP).port(7000).do_not_track().accept());
  nft.rule("raw", NftRule().protocol(IPPROTO_TCP).from_port(7000).from("127.0.0.1").do_not_track().accept());
  nft.chain({.name = "nat", .kind = NftChain::Kind::nat_output});
  nft.rule("nat", NftRule().protocol(IPPROTO_TCP).port(7001).redirect(7000));
  nft.rule("nat", NftRule().protocol(IPPROTO_TCP).port(7000).redirect(7009));
  nft.chain({.name = "out"});
  nft.rule("out", NftRule().fresh().protocol(IPPROTO_TCP).port(7000).reject_with_reset());
  install(nft);
  if (HasFatalFailure()) return;
  EXPECT_TRUE(dial().client) << "tracked, it would be fresh, and redirected";
}

TEST_F(Nftables, RulesCanBeRead) {
  NftBatch nft("t");
  nft.chain({.name = "out"});
  nft.rule("out", NftRule().protocol(IPPROTO_UDP).port(9).reject());
  install(nft);
  if (HasFatalFailure()) return;
  auto socket = NetlinkSocket::open(NETLINK_NETFILTER);
  auto text = print_rules(*socket);
  ASSERT_TRUE(text);
  EXPECT_TRUE(text->starts_with("out: meta ")) << *text;
  EXPECT_NE(text->find("; reject "), std::string::npos) << *text;
  NftBatch more("u");
  more.chain({.name = "out"});
  more.rule("out", NftRule().protocol(IPPROTO_UDP).port(10).reject());
  auto before = describe_ruleset(*socket);
  install(more);
  EXPECT_NE(*describe_ruleset(*socket), *before);
}

TEST_F(Nftables, WhatHasAMarkPasses) {
  NftBatch nft("t");
  nft.chain({.name = "out"});
  nft.rule("out", NftRule().protocol(IPPROTO_UDP).not_marked(0xC114).drop());
  install(nft);
  if (HasFatalFailure()) return;
  Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = local(9);
  auto send = [&] { return ::sendto(fd.get(), "x", 1, 0, reinterpret_cast<sockaddr*>(&to), sizeof to); };
  EXPECT_EQ(send(), -1);
  EXPECT_EQ(errno, EPERM);
  for (int mark : {0xC114, 0xC115}) {
    ASSERT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_MARK, &mark, sizeof mark), 0);
    EXPECT_EQ(send(), mark == 0xC114 ? 1 : -1);
  }
}

TEST_F(Nftables, ATableCanBeTakenAway) {
  NftBatch nft("t");
  nft.chain({.name = "out"});
  nft.rule("out", NftRule().protocol(IPPROTO_TCP).port(7000).reject_with_reset());
  install(nft);
  if (HasFatalFailure()) return;
  EXPECT_FALSE(dial().client);
  auto socket = NetlinkSocket::open(NETLINK_NETFILTER);
  auto gone = socket->run(remove_table("t"));
  EXPECT_TRUE(gone) << gone.error().text();
  EXPECT_TRUE(dial().client);
  EXPECT_FALSE(socket->run(remove_table("t"))) << "it is no longer there";
}

}  // namespace
}  // namespace isola::kernel
