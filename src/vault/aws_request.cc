#include "vault/aws_request.h"

#include <nlohmann/json.hpp>

#include "vault/aws_signature.h"

namespace isola::vault {

AwsRequest get_secret_value(const Source& source, const std::string& host, const std::string& time) {
  AwsRequest request;
  request.body = nlohmann::json{{"SecretId", source.secret_id}}.dump();
  // Signed in the order of their names.
  std::vector<std::pair<std::string, std::string>> sent = {
      {"content-type", "application/x-amz-json-1.1"}, {"host", host}, {"x-amz-date", time}};
  if (!source.session_token.empty()) sent.emplace_back("x-amz-security-token", source.session_token);
  sent.emplace_back("x-amz-target", "secretsmanager.GetSecretValue");
  std::string canonical = "POST\n/\n\n", names;
  for (const auto& [name, value] : sent) {
    canonical += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  canonical += "\n" + names + "\n" + aws_hash(request.body);
  const AwsScope scope{.region = source.region, .service = "secretsmanager", .time = time};
  std::string signature = aws_signature(source.secret_access_key, scope, canonical);
  for (auto& header : sent)
    if (header.first != "host" && header.first != "content-type") request.headers.push_back(std::move(header));
  request.headers.emplace_back("authorization", aws_authorization(source.access_key_id, scope, names, signature));
  return request;
}

}  // namespace isola::vault
