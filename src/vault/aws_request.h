// One signed request to AWS Secrets Manager (GetSecretValue, Signature Version 4), as a source sends it.
//
//   AwsRequest request = get_secret_value(source, "secretsmanager.eu-central-1.example", "20260102T030405Z");
//   POST / with request.headers and request.body
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "vault/source.h"

namespace isola::vault {

struct AwsRequest {
  std::vector<std::pair<std::string, std::string>> headers;  // but for Host, which is the client's to send
  std::string body;
};

// `host`: exactly what the Host header will say. `time`: as X-Amz-Date has it.
AwsRequest get_secret_value(const Source& source, const std::string& host, const std::string& time);

}  // namespace isola::vault
