#include "vault/aws_request.h"

#include <gtest/gtest.h>

namespace isola::vault {
namespace {

TEST(AwsRequest, AsksForOneSecretAndNamesWhatItSigned) {
  Source source = parse_source(R"({"type":"aws","region":"eu-central-1","secret_id":"prod/x","access_key_id":"AKIA1",
                                   "secret_access_key":"sk","session_token":"st"})")
                      .value();
  auto request = get_secret_value(source, "localhost:4566", "20260102T030405Z");
  EXPECT_EQ(request.body, R"({"SecretId":"prod/x"})");
  std::string all;
  for (const auto& [name, value] : request.headers) all += name + ": " + value + "\n";
  EXPECT_NE(all.find("x-amz-target: secretsmanager.GetSecretValue\n"), std::string::npos) << all;
  EXPECT_NE(all.find("x-amz-security-token: st\n"), std::string::npos) << all;
  EXPECT_NE(all.find("Credential=AKIA1/20260102/eu-central-1/secretsmanager/aws4_request, "
                     "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token;x-amz-target, Signature="),
            std::string::npos)
      << all;
  EXPECT_EQ(all.find("sk"), std::string::npos) << all;
  auto elsewhere = get_secret_value(source, "other:4566", "20260102T030405Z");
  EXPECT_NE(elsewhere.headers.back(), request.headers.back()) << "the host is signed";
}

}  // namespace
}  // namespace isola::vault
