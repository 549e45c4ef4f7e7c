// TLS on one end of a connection that is looked into: as the client of the real server, or as the server that the
// sandbox sees.
//
//   TlsLeg leg(setup.to_server("api.example.org", {"h2", "http/1.1"}), wire, meter);
//   switch (leg.handshake()) …                 // again when the socket is ready, until it has moved or failed
//   leg.protocol()                             // what ALPN chose, or ""
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "gate/leg.h"

namespace isola::gate {

struct SslFree {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using SslPointer = std::unique_ptr<SSL, SslFree>;

struct Leaf;

// What all legs share: the servers whose word is taken, and how we speak.
class TlsSetup {
 public:
  // `authorities`: certificates (PEM) that are trusted beside the host's own. Files are read here, and never again.
  static Result<TlsSetup> open(const std::string& authorities);

  // As the client: the server must prove this very name.
  Result<SslPointer> to_server(const std::string& name, const std::vector<std::string>& protocols);
  // As the server of this very name. `protocol`: the one to choose; empty: none.
  Result<SslPointer> to_client(const Leaf& leaf, const std::string& name, const std::string& protocol);

 private:
  using Context = std::unique_ptr<SSL_CTX, SslFree>;
  Result<void> prepare();

  std::string trusted_;  // PEM, until it is needed for the first time
  Context client_, server_;
};

class TlsLeg : public Leg {
 public:
  TlsLeg(SslPointer ssl, Wire& wire, Meter& meter, std::string first = "");

  Io handshake();
  std::string protocol() const;
  std::string why() const override { return why_; }

  Moved read(char* to, size_t size) override;
  Moved write(const char* from, size_t size) override;
  void finish() override;

 private:
  Moved result(int returned, size_t bytes);

  RawWire raw_;
  SslPointer ssl_;
  std::string why_;
};

}  // namespace isola::gate
