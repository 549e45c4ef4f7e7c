// One HTTP request, carried to a port inside a sandbox and back; upgraded connections byte for byte.
#pragma once

#include <functional>
#include <string>

#include "http/exchange.h"
#include "sandbox/service.h"

namespace isola::dialect {

// How a dialect wants it done.
struct Passage {
  std::string host;                             // what the service inside gets as Host; empty: localhost:PORT
  bool tls = false;                             // it speaks TLS, with whatever certificate
  std::function<void(http::Exchange&)> closed;  // answers where nothing listens; none: say_no does
};

// Keys and tokens of ours that the request carried stay outside.
Task<void> forward(sandbox::Service& service, http::Exchange& ex, sandbox::BoxPtr box, uint16_t port,
                   std::string target);
Task<void> forward(sandbox::Service& service, http::Exchange& ex, sandbox::BoxPtr box, uint16_t port,
                   std::string target, Passage passage);

// A page for people, the error shape for programs.
void say_no(http::Exchange& ex, int status, const std::string& code, const std::string& message);

}  // namespace isola::dialect
