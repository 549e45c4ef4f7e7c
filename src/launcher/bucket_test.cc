#include "launcher/bucket.h"

#include <gtest/gtest.h>

namespace isola::launcher {
namespace {

TEST(Endpoint, Plain) {
  EXPECT_EQ(*parse_endpoint("https://s3.example"), (Endpoint{true, "s3.example", 443}));
  EXPECT_EQ(*parse_endpoint("https://s3.example/"), (Endpoint{true, "s3.example", 443}));
  EXPECT_EQ(*parse_endpoint("http://10.0.0.5:9000"), (Endpoint{false, "10.0.0.5", 9000}));
  EXPECT_EQ(*parse_endpoint("http://store"), (Endpoint{false, "store", 80}));
}

TEST(Endpoint, Odd) {
  for (const char* url : {"",
                          "s3.example",
                          "ftp://s3.example",
                          "https://",
                          "https://user@s3.example",
                          "https://s3.example/path",
                          "https://s3.example:0",
                          "https://s3.example:70000",
                          "https://s3.example:",
                          "https://s3.example:80x",
                          "https://[::1]:9000",
                          "https://-o",
                          "https://a,b",
                          "https://a b",
                          "https://127.1",
                          "https://2130706433",
                          "https://0x7f000001:1:2",
                          "https://a\n",
                          "https://.example",
                          "http://1.2.3.04"})
    EXPECT_FALSE(parse_endpoint(url)) << url;
}

BucketMount plain() {
  return {.endpoint = "https://s3.example",
          .bucket = "data",
          .prefix = "team/a=1",
          .region = "eu-central-1",
          .target = "/mnt/data",
          .sealed = "sealed"};
}

// Each of them would be another word, or another option, of the client's command line.
TEST(Bucket, OddWords) {
  EXPECT_TRUE(check_bucket(plain()));
  for (const char* name : {"", "ab", "-data", "a,b,c", "data:/etc", "data/x", "da ta", "d\nata"}) {
    auto bucket = plain();
    bucket.bucket = name;
    EXPECT_FALSE(check_bucket(bucket)) << name;
  }
  for (const char* prefix : {"/a", "a/", "a//b", "..", "a/../b", "./a", "a,b", "a:b", "a b", "a\\b", "*"}) {
    auto bucket = plain();
    bucket.prefix = prefix;
    EXPECT_FALSE(check_bucket(bucket)) << prefix;
  }
  auto bucket = plain();
  bucket.region = "eu,uid=0";
  EXPECT_FALSE(check_bucket(bucket));
  bucket = plain();
  bucket.sealed.clear();
  EXPECT_FALSE(check_bucket(bucket));
}

}  // namespace
}  // namespace isola::launcher
