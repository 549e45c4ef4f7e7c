#include "vault/aws_signature.h"

#include <gtest/gtest.h>

namespace isola::vault {
namespace {

// AWS's own test suite for the signature, "get-vanilla".
TEST(AwsSignature, SignsAsTheTestSuiteDoes) {
  const AwsScope scope{.region = "us-east-1", .service = "service", .time = "20150830T123600Z"};
  EXPECT_EQ(aws_hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  std::string canonical =
      "GET\n/\n\nhost:example.amazonaws.com\nx-amz-date:20150830T123600Z\n\nhost;x-amz-date\n" + aws_hash("");
  auto signature = aws_signature("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", scope, canonical);
  EXPECT_EQ(signature, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  EXPECT_EQ(aws_authorization("AKIDEXAMPLE", scope, "host;x-amz-date", signature),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
            "SignedHeaders=host;x-amz-date, Signature=" +
                signature);
}

}  // namespace
}  // namespace isola::vault
