// TLS as a client over whatever carries bytes: nothing here reads or writes by itself.
//
//   ISOLA_TRY(auto tls, TlsClient::open("localhost"));
//   while (!tls.ready()) { send(tls.take()); tls.feed(receive()); ISOLA_CHECK(tls.advance()); }
//   ISOLA_CHECK(tls.write("GET / …"));   send(tls.take());
//   tls.feed(receive());   ISOLA_TRY(std::string text, tls.read());   if (tls.closed()) …
//
// Nobody's certificate is looked at: it is for services inside a sandbox, which are reached over its own link.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::dialect {

class TlsClient {
 public:
  static Result<TlsClient> open(const std::string& name);

  void feed(std::string_view bytes);  // what came
  std::string take();                 // what is to be sent
  Result<void> advance();             // with what was fed, until it is ready
  bool ready() const;
  Result<void> write(std::string_view bytes);
  // Everything that is there; empty: nothing yet, or closed. What came before an error comes before the error.
  Result<std::string> read();
  bool closed() const { return closed_; }
  bool amid() const;  // what was fed ends within a record
  void close();       // says so to the other end

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  explicit TlsClient(SSL* ssl) : ssl_(ssl) {}
  std::unique_ptr<SSL, Free> ssl_;
  bool closed_ = false;
  std::optional<Error> failed_;  // while reading, for good
};

}  // namespace isola::dialect
