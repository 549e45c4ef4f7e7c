#include "cli/port_forward.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

const Forward kForward{.sandbox = "i1", .token = "t", .port = 3000};

TEST(ForwardedHead, GetsOurHeadersAndOneRequestPerConnection) {
  EXPECT_EQ(forwarded_head("GET /a?b HTTP/1.1\r\nHost: localhost:3000\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\n",
                           kForward),
            "GET /a?b HTTP/1.1\r\nHost: localhost:3000\r\nAccept: */*\r\nConnection: close\r\nX-Isola-Sandbox: i1\r\n"
            "X-Isola-Port: 3000\r\nX-Isola-Token: t\r\n\r\n");
}

TEST(ForwardedHead, UpgradesStay) {
  auto head = forwarded_head("GET / HTTP/1.1\r\nUpgrade: websocket\r\nconnection: Upgrade\r\n\r\n", kForward);
  EXPECT_NE(head.find("Connection: Upgrade\r\n"), std::string::npos) << head;
  EXPECT_EQ(head.find("close"), std::string::npos) << head;
}

TEST(ForwardedHead, NobodyElseNamesTheSandbox) {
  auto head = forwarded_head("GET / HTTP/1.1\r\nx-isola-sandbox: i2\r\nX-Isola-Port: 22\r\n\r\n", kForward);
  EXPECT_EQ(head.find("i2"), std::string::npos) << head;
  EXPECT_EQ(head.find("22"), std::string::npos) << head;
}

}  // namespace
}  // namespace isola::cli
