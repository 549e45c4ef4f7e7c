#include "gate/sigv4.h"

#include <gtest/gtest.h>

namespace isola::gate {
namespace {

constexpr char kPair[] = "AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
constexpr time_t kNow = 1440938160;  // 2015-08-30 12:36:00

std::string signature_of(Request request, const std::string& payload, const char* field = "us-east-1/service") {
  auto key = AwsKey::of(kPair, field);
  EXPECT_TRUE(key && sign(request, *key, payload, kNow));
  auto text = *find_field(request.fields, "Authorization");
  return text.substr(text.find("Signature=") + 10);
}

// A request of the same form is signed as AWS's documents say, checked with an independent implementation.
TEST(Sigv4, KnownSignatures) {
  Request request{.method = "GET", .target = "/?Param2=value2&Param1=value1", .authority = "example.amazonaws.com"};
  auto key = AwsKey::of(kPair, "us-east-1/service");
  ASSERT_TRUE(key);
  ASSERT_TRUE(sign(request, *key, payload_hash(""), kNow));
  auto text = *find_field(request.fields, "Authorization");
  EXPECT_TRUE(
      text.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
                       "SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature="))
      << text;
  EXPECT_EQ(*find_field(request.fields, "x-amz-date"), "20150830T123600Z");
  EXPECT_EQ(text.substr(text.find("Signature=") + 10),
            "311c7f58b10b06de8540bb5a27f441ee0609f1d5ad7b191e68d7ea87d90e3d6b");
  EXPECT_EQ(signature_of({.method = "PUT",
                          .target = "/a%20b/%E2%82%AC?x=%2F&a",
                          .authority = "b.s3.amazonaws.com",
                          .fields = {{"Content-Type", "text/plain"}, {"X-Amz-Meta-A", "two   words"}}},
                         "UNSIGNED-PAYLOAD", "eu-west-1/s3"),
            "be5db604bd6e24f23fa0551484f55fbdc28a406ed6658e7bdf7536b790af6c29");
  EXPECT_EQ(signature_of({.method = "POST", .target = "/a%20b", .authority = "x.amazonaws.com"}, payload_hash("body")),
            "a9b161c608b473baff1d347d7bc775c10e5213e5c3e3f72bf0b9837e30b6ef8d");
}

TEST(Sigv4, WhatTheClientSignedGoes) {
  Request request{.method = "GET",
                  .target = "/k?X-Amz-Signature=1&a=b&x%2dAmz-Date=2&X-Amz-Credential=3&X-Amz-Security-Token=4",
                  .authority = "x",
                  .fields = {{"authorization", "AWS4-HMAC-SHA256 x"}, {"X-Amz-Security-Token", "t"}, {"X-Other", "y"}}};
  strip_signature(request);
  EXPECT_EQ(request.target, "/k?a=b&x%2dAmz-Date=2");
  ASSERT_EQ(request.fields.size(), 1u);
}

TEST(Sigv4, Payloads) {
  Request request{.method = "PUT"};
  EXPECT_EQ(payload_of(request, "s3", true).value(), "UNSIGNED-PAYLOAD");
  EXPECT_EQ(payload_of(request, "sqs", true).value(), std::nullopt);
  EXPECT_EQ(payload_of(request, "sqs", false).value(), payload_hash(""));
  request.fields = {{"x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}};
  EXPECT_EQ(payload_of(request, "s3", true).value(), "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
  request.fields = {{"x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}};
  EXPECT_FALSE(payload_of(request, "s3", true));
}

TEST(Sigv4, Keys) {
  auto key = AwsKey::of("a:b:c:d", "r/s");
  ASSERT_TRUE(key);
  EXPECT_EQ(key->secret_key, "b");
  EXPECT_EQ(key->session_token, "c:d");
  EXPECT_FALSE(AwsKey::of("a", "r/s"));
}

}  // namespace
}  // namespace isola::gate
