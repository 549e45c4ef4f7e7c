#include "gate/interception.h"

#include <sys/socket.h>

#include <algorithm>

#include "gate/http1_relay.h"
#include "gate/http2_relay.h"

namespace isola::gate {

namespace {
constexpr size_t kThrowAway = 1 << 20;
}

std::vector<std::string> Interception::protocols_of(const std::vector<std::string>& offered) {
  std::vector<std::string> out;
  for (const auto& one : offered)
    if (one == "h2" || one == "http/1.1") out.push_back(one);
  return out;
}

Interception::Interception(Needs needs)
    : needs_(std::move(needs)),
      inspector_(needs_.premises, needs_.name, needs_.address, needs_.port, needs_.tls == nullptr) {}

Interception::Outcome Interception::refuse(Reason reason, std::string rule) {
  verdict_ = {reason, std::move(rule)};
  return Outcome::refused;
}

Verdict Interception::late() const {
  if (relay_) return {Reason::bad_request, "too slow"};
  return server_proved_ ? Verdict{Reason::bad_hello, "too slow"} : Verdict{Reason::upstream_tls, "too slow"};
}

Interception::Outcome Interception::pump() {
  if (closing_) return close();
  if (!relay_)
    if (auto outcome = shake_hands(); !relay_) return outcome;
  switch (relay_->pump()) {
    case Relay::State::going: return Outcome::going;
    case Relay::State::again: return Outcome::again;
    case Relay::State::broken: return Outcome::broken;
    case Relay::State::done: break;
  }
  closing_ = true;
  client_->finish();
  server_->finish();
  ::shutdown(needs_.client.fd.get(), SHUT_WR);
  return close();
}

Interception::Outcome Interception::shake_hands() {
  if (!needs_.tls) {
    client_ = std::make_unique<PlainLeg>(needs_.client, needs_.client_meter, std::move(needs_.first));
    server_ = std::make_unique<PlainLeg>(needs_.server, needs_.server_meter);
    return begin("");
  }
  if (!server_) {
    auto ssl = needs_.tls->to_server(needs_.name, needs_.protocols);
    if (!ssl) return refuse(Reason::upstream_tls, ssl.error().message);
    auto leg = std::make_unique<TlsLeg>(std::move(*ssl), needs_.server, needs_.server_meter);
    tls_server_ = leg.get();
    server_ = std::move(leg);
  }
  if (!server_proved_) {
    switch (tls_server_->handshake()) {
      case Io::blocked: return Outcome::going;
      case Io::moved: break;
      default: return refuse(Reason::upstream_tls, tls_server_->why());
    }
    server_proved_ = true;
  }
  if (!client_) {
    auto protocol = tls_server_->protocol();
    // A server that does not choose speaks HTTP/1; the client hears so if it asked.
    if (protocol.empty() &&
        std::find(needs_.protocols.begin(), needs_.protocols.end(), "http/1.1") != needs_.protocols.end())
      protocol = "http/1.1";
    if (protocol.empty() && !needs_.protocols.empty())
      return refuse(Reason::upstream_tls, "the server does not speak what the client does");
    auto leaf = needs_.authority->leaf(needs_.name);
    if (!leaf) return refuse(Reason::locked, leaf.error().message);
    auto ssl = needs_.tls->to_client(**leaf, needs_.name, protocol);
    if (!ssl) return refuse(Reason::locked, ssl.error().message);
    auto leg = std::make_unique<TlsLeg>(std::move(*ssl), needs_.client, needs_.client_meter, std::move(needs_.first));
    tls_client_ = leg.get();
    client_ = std::move(leg);
  }
  switch (tls_client_->handshake()) {
    case Io::blocked: return Outcome::going;
    case Io::moved: break;
    default: return refuse(Reason::bad_hello, tls_client_->why());
  }
  return begin(tls_client_->protocol());
}

Interception::Outcome Interception::begin(const std::string& protocol) {
  if (protocol != "h2") {
    relay_ = std::make_unique<Http1Relay>(inspector_, *client_, *server_, &needs_.budget);
    return Outcome::going;
  }
  if (!needs_.budget.more(kMoreForHttp2))
    return refuse(Reason::too_many_connections, "connections that are looked into");
  auto relay = Http2Relay::make(inspector_, *client_, *server_, &needs_.budget);
  if (!relay) return refuse(Reason::too_many_connections, relay.error().message);
  relay_ = std::move(*relay);
  return Outcome::going;
}

// A socket that is closed with something unread in it is reset, and the other side loses what it was told last.
Interception::Outcome Interception::close() {
  char piece[4096];
  RawWire raw(needs_.client, needs_.client_meter);
  for (;;) {
    auto moved = raw.read(piece, sizeof piece);
    if (moved.how == Io::blocked) return Outcome::closing;
    if (moved.how != Io::moved) return Outcome::ended;
    if ((thrown_away_ += moved.bytes) > kThrowAway) return Outcome::broken;
  }
}

}  // namespace isola::gate
