// One connection that is looked into: TLS with the real server first, with all that is checked there; then with the
// sandbox, as that server and by the same protocol; then requests and answers (relay.h).
//
//   Interception inside(needs);
//   switch (inside.pump()) …                     // whenever a socket is ready
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gate/authority.h"
#include "gate/inspector.h"
#include "gate/relay.h"
#include "gate/tls_leg.h"

namespace isola::gate {

class Interception {
 public:
  // What a connection costs at most, in bytes: buffers, TLS, and the windows of HTTP/2.
  static constexpr size_t kCost = 256 << 10, kMoreForHttp2 = 1280 << 10;

  struct Needs {
    Premises& premises;
    Wire& client;
    Wire& server;
    Meter& client_meter;
    Meter& server_meter;
    TlsSetup* tls = nullptr;         // null: in clear
    Authority* authority = nullptr;  // the same
    std::string name;
    Address address;
    uint16_t port = 0;
    std::string first;                   // the client's first bytes
    std::vector<std::string> protocols;  // that it offers and we can look into
    Budget budget;
  };
  explicit Interception(Needs needs);

  // closing: everything is said; what the client still says is thrown away until it hangs up.
  enum class Outcome : uint8_t { going, again, closing, ended, broken, refused };
  Outcome pump();
  const Verdict& verdict() const { return verdict_; }  // of refused
  // Too slow: what it was waiting for.
  Verdict late() const;

  bool is_closing() const { return closing_; }
  bool is_established() const { return relay_ != nullptr; }
  bool is_waiting_for_head() const { return relay_ && relay_->is_waiting_for_head(); }
  bool begin_to_wait() { return relay_ && !closing_ && relay_->begin_to_wait(); }
  void let_go() {
    if (relay_ && !closing_) relay_->let_go();
  }
  bool waits_for_value() const { return relay_ && !closing_ && relay_->waits_for_value(); }
  bool is_revoked() const { return inspector_.is_revoked(); }
  bool is_over() const { return inspector_.is_over(); }

  // Of the protocols that a client offers, those that can be looked into; none where it offers only others.
  static std::vector<std::string> protocols_of(const std::vector<std::string>& offered);

 private:
  Outcome refuse(Reason reason, std::string rule);
  Outcome shake_hands();
  Outcome begin(const std::string& protocol);
  Outcome close();

  Needs needs_;
  Inspector inspector_;
  std::unique_ptr<Leg> client_, server_;
  TlsLeg *tls_client_ = nullptr, *tls_server_ = nullptr;  // of those, while hands are shaken
  bool server_proved_ = false, closing_ = false;
  size_t thrown_away_ = 0;
  std::unique_ptr<Relay> relay_;
  Verdict verdict_;
};

}  // namespace isola::gate
