// A small internet of our own, in network namespaces that nobody else uses and that go with the last process in them:
// for tests, benchmarks and `isola prove`, which all need somebody outside to be reached or not to be reached.
//
//   ISOLA_TRY(Cable cable, Cable::make());                       // a gate (or a plain program) lives at one end
//   ISOLA_TRY(auto outside, Outside::open(cable.outside));       // servers at the other
//   outside->set("a.example", {"203.0.113.10"});
//   …
//   outside->asked()                                             // every name that reached the name server
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::gate {

// At each of kOutside: echo on 7 and 443, a greeting on 22, redirections elsewhere on 80, as many bytes as asked for
// on 9000; on 8443 somebody who answers every TLS hello by asking for another, and then is an echo. UDP echo on 9001 at
// kForbidden.
inline constexpr uint16_t kEchoPort = 7, kGreetPort = 22, kRedirectPort = 80, kTlsPort = 443, kSourcePort = 9000,
                          kUdpPort = 9001, kRetryPort = 8443, kDotPort = 853;
inline constexpr char kPublicResolver[] = "8.8.8.8";
inline constexpr const char* kOutside[] = {"203.0.113.10",    "203.0.113.11",   "198.51.100.7",
                                           "10.5.0.1",        kPublicResolver,  "100.64.0.9",
                                           "169.254.169.254", "2001:db8:5::10", "fd00:ec2::254"};
inline constexpr char kNameServer[] = "203.0.113.53";

// What the evasion programs (tests/hostile/programs/evasions*.cc) try to get around, and where they should not get.
inline constexpr char kEvasionPolicy[] =
    "allow a.example:7,80,443,8443\n"
    "allow rebind.example\n"
    "allow *.wild.example\n"
    "allow *.tunnel.example\n";
// The same the other way round: everything but what they should not reach.
inline constexpr char kDeniedPolicy[] =
    "deny b.example\n"
    "deny a.example:22\n"
    "deny *.evil.example\n"
    "deny evil-a.example\n"
    "deny wild.example\n"
    "deny notwild.example\n"
    "deny 203.0.113.11\n"
    "deny 203.0.113.10:22\n"
    "deny 2001:db8:5::10\n"
    "default allow\n";
inline constexpr char kForbidden[] = "203.0.113.11";  // where b.example is
// Somebody else's: a neighbour may reach what an evasion program may not.
inline constexpr char kNeighbourPolicy[] = "allow b.example\n";
inline constexpr char kNeighboursName[] = "b.example";

// A TLS server's request for another hello. Here, because the programs inside have only what is in this header.
inline std::string retry_request() {
  constexpr unsigned char kRandom[] = {0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c,
                                       0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb,
                                       0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c};
  // No session, a suite of TLS 1.3, and two extensions: which version, and which group it wants.
  std::string body{3, 3};
  body.append(reinterpret_cast<const char*>(kRandom), sizeof kRandom);
  const unsigned char rest[] = {0, 0x13, 0x01, 0, 0, 12, 0, 0x2b, 0, 2, 3, 4, 0, 0x33, 0, 2, 0, 0x17};
  body.append(reinterpret_cast<const char*>(rest), sizeof rest);
  std::string message = {2, 0, 0, static_cast<char>(body.size())};
  message += body;
  return std::string{22, 3, 3, 0, static_cast<char>(message.size())} + message;
}

// The calling thread's network namespace; a fresh one, with its loopback device up; a body run in another.
Fd own_netns();
Result<Fd> new_netns();
void in_netns(const Fd& netns, const std::function<void()>& body);

// Two namespaces and a cable between them. The gate's end (device kCableEnd) has a default route to the other.
struct Cable {
  Fd gate, outside;
  static Result<Cable> make();
};
inline constexpr char kCableEnd[] = "g";

// The servers, in a thread of this process.
class Outside {
 public:
  static Result<std::unique_ptr<Outside>> open(const Fd& netns);
  ~Outside();
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

  // What the name server says about a name from now on; "" is whatever is no name at all.
  void set(const std::string& name, std::vector<std::string> addresses);
  void set_names_for_evasions();
  std::vector<std::string> asked();
  // How many of the names that came after the first `from` have this text in them.
  size_t asked_with(const std::string& text, size_t from);
  size_t connections() const { return connections_; }

 private:
  struct Listener {
    Fd fd;
    std::string at;
    uint16_t port;
  };

  Outside() = default;
  Result<void> listen();
  void serve();
  void welcome(const Listener& listener);
  void echo() const;
  void answer();
  void answer(const Fd& fd);
  std::string reply_to(std::string_view query);

  std::vector<Listener> listeners_;
  Fd dns_, udp_, stop_read_, stop_write_;
  std::mutex mutex_;
  std::map<std::string, std::vector<std::string>> names_;
  std::vector<std::string> asked_;
  std::atomic<size_t> connections_ = 0;
  size_t talking_ = 0;
  std::condition_variable idle_;
  std::thread thread_;
};

}  // namespace isola::gate
