// AWS's signature version 4, for whoever signs: the source that asks for a secret, and the gate that signs a sandbox's
// requests anew.
//
//   AwsScope scope{.region = "eu-central-1", .service = "s3", .time = "20260102T030405Z"};
//   "Authorization: " + aws_authorization("AKIA…", scope, "host;x-amz-date", aws_signature(secret, scope, canonical))
#pragma once

#include <string>
#include <string_view>

namespace isola::vault {

struct AwsScope {
  std::string_view region, service;
  std::string_view time;  // as X-Amz-Date has it
};

// In hex, as all of it is.
std::string aws_hash(std::string_view text);
std::string aws_signature(std::string_view secret_key, const AwsScope& scope, std::string_view canonical_request);
// The value of the header. `names`: of the headers that were signed, in their order, with semicolons.
std::string aws_authorization(std::string_view access_key, const AwsScope& scope, std::string_view names,
                              std::string_view signature);

}  // namespace isola::vault
