#include "server/syslog.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>

#include "base/file.h"

namespace isola::server {
namespace {

TEST(Syslog, Targets) {
  EXPECT_EQ(parse_syslog("unix:/dev/log")->host, "/dev/log");
  auto far = parse_syslog("tcp:log.example.org:601");
  ASSERT_TRUE(far);
  EXPECT_EQ(far->way, SyslogTarget::Way::tcp);
  EXPECT_EQ(far->host + "|" + far->port, "log.example.org|601");
  EXPECT_EQ(parse_syslog("udp:[2001:db8::1]:514")->host, "2001:db8::1");
  for (const char* bad :
       {"", "/dev/log", "unix:log", "udp:host", "udp::514", "tcp:host:0", "tcp:host:99999", "tls:h:1"})
    EXPECT_FALSE(parse_syslog(bad)) << bad;
}

ledger::Event entry(uint64_t seq, ledger::Kind kind = ledger::Kind::command_started) {
  return {.seq = seq, .time = 1763345678901, .project = "p", .sandbox = "i1", .kind = kind, .data = R"({"n":1})"};
}

TEST(Syslog, AMessage) {
  EXPECT_EQ(to_syslog(entry(7), "island", 42),
            "<110>1 2025-11-17T02:14:38.901Z island isola 42 command.started - "
            R"({"seq":7,"time":1763345678901,"project":"p","sandbox":"i1","task":"","actor":"","key":"",)"
            R"("kind":"command.started","data":{"n":1},"prev":"","hash":"","mac":""})");
  EXPECT_TRUE(
      to_syslog(entry(7, ledger::Kind::scan_hit), "", 42).starts_with("<108>1 2025-11-17T02:14:38.901Z - isola"));
}

class SyslogExporterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-syslog-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string position() const { return folder_ + "/position"; }
  static Result<std::vector<ledger::Event>> read(uint64_t after, size_t most, uint64_t newest) {
    std::vector<ledger::Event> events;
    for (uint64_t seq = after + 1; seq <= newest && events.size() < most; ++seq) events.push_back(entry(seq));
    return events;
  }
  // A collector over a local socket.
  Fd listen(const std::string& path) {
    Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{.sun_family = AF_UNIX};
    path.copy(address.sun_path, path.size());
    ::unlink(path.c_str());
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    timeval patience{.tv_sec = 30};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return socket;
  }
  static std::string next(const Fd& socket) {
    char buffer[4096];
    ssize_t n = ::recv(socket.get(), buffer, sizeof buffer, 0);
    return n < 0 ? "nothing came" : std::string(buffer, static_cast<size_t>(n));
  }
  static bool is_entry(const std::string& message, uint64_t seq) {
    return message.find("{\"seq\":" + std::to_string(seq) + ",") != std::string::npos;
  }
  std::string folder_;
};

TEST_F(SyslogExporterTest, EveryEntryInOrderAlsoAfterARestartAndACollectorThatWasAway) {
  std::string path = folder_ + "/log";
  std::atomic<uint64_t> newest = 3;
  auto reads = [&](uint64_t after, size_t most) { return read(after, most, newest); };
  Fd collector = listen(path);
  {
    SyslogExporter exporter({SyslogTarget::Way::local, path, ""}, position());
    exporter.start(reads, 3);  // what was there before is not told
    newest = 5;
    exporter.written(5);
    for (uint64_t seq : {4, 5}) EXPECT_TRUE(is_entry(next(collector), seq));
    // It is gone; entries wait.
    collector.reset();
    newest = 6;
    exporter.written(6);
    collector = listen(path);
    EXPECT_TRUE(is_entry(next(collector), 6));
  }
  newest = 8;
  SyslogExporter exporter({SyslogTarget::Way::local, path, ""}, position());
  exporter.start(reads, 8);
  for (uint64_t seq : {7, 8}) EXPECT_TRUE(is_entry(next(collector), seq));
}

TEST_F(SyslogExporterTest, OverTcpEachMessageSaysHowLongItIs) {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  SyslogExporter exporter({SyslogTarget::Way::tcp, "127.0.0.1", std::to_string(ntohs(address.sin_port))}, position());
  exporter.start([](uint64_t after, size_t most) { return read(after, most, 2); }, 0);
  exporter.written(2);
  Fd peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(peer);
  std::string all;
  while (all.find("\"seq\":2,") == std::string::npos ||
         all.find("\"mac\"", all.find("\"seq\":2,")) == std::string::npos) {
    char buffer[4096];
    ssize_t n = ::recv(peer.get(), buffer, sizeof buffer, 0);
    ASSERT_GT(n, 0);
    all.append(buffer, static_cast<size_t>(n));
  }
  size_t space = all.find(' '), length = std::stoul(all.substr(0, space));
  EXPECT_TRUE(is_entry(all.substr(space + 1, length), 1));
  EXPECT_TRUE(all.substr(space + 1 + length).starts_with(std::to_string(length) + " <110>1 "));
}

}  // namespace
}  // namespace isola::server
