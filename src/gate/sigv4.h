// AWS's signature version 4, made anew: the sandbox's own signature is taken away, whatever it signed with.
//
//   strip_signature(request);
//   sign(request, {.region = "us-east-1", .service = "s3", .access_key = …, .secret_key = …}, payload, now);
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "gate/request.h"

namespace isola::gate {

struct AwsKey {
  std::string_view region, service;
  std::string_view access_key, secret_key, session_token;
  // "ACCESS:SECRET[:TOKEN]" and "region/service".
  static Result<AwsKey> of(std::string_view value, std::string_view field);
};

// Headers and parameters of a signature.
void strip_signature(Request& request);

// What stands for the payload in the signature: what the request says of itself, where that can be kept; nothing: the
// body has to be seen. An error: signed piece by piece, which nobody but the client could do again.
Result<std::optional<std::string>> payload_of(const Request& request, std::string_view service, bool has_body);
std::string payload_hash(std::string_view body);

// After strip_signature().
Result<void> sign(Request& request, const AwsKey& key, const std::string& payload, time_t now);

}  // namespace isola::gate
