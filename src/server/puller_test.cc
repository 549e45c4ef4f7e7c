#include "server/puller.h"

#include <gtest/gtest.h>

namespace isola::server {
namespace {

TEST(Puller, WhatIsSaidOfAnImage) {
  EXPECT_EQ(pulled_name(R"({"name": "oci-0123456789abcdef", "digest": "x"})").value(), "oci-0123456789abcdef");
  auto missing = pulled_name(R"({"error": {"code": "not-found", "message": "no such tag"}})");
  EXPECT_EQ(missing.error().code, Code::not_found);
  EXPECT_EQ(missing.error().message, "no such tag");
  for (const char* odd : {"", "nonsense", "[]", "{}", R"({"name": 5})", R"({"error": {"code": "odd"}})"})
    EXPECT_EQ(pulled_name(odd).error().code, Code::unavailable) << odd;
}

TEST(Puller, OnlyRegistriesThatAreNamed) {
  const std::vector<std::string> some = {"docker.io", "127.0.0.1:5000"};
  EXPECT_TRUE(check_registry(some, "python:3.12"));
  EXPECT_TRUE(check_registry(some, "127.0.0.1:5000/a/b"));
  for (const char* other :
       {"127.0.0.1:5001/a", "127.0.0.1/a", "localhost:5000/a", "169.254.169.254/latest", "docker.io.example.org/a"})
    EXPECT_EQ(check_registry(some, other).error().code, Code::unsupported) << other;
  EXPECT_EQ(check_registry(some, "docker://python").error().code, Code::invalid);
  EXPECT_EQ(check_registry(some, "oci:/etc").error().code, Code::denied);
  EXPECT_EQ(check_registry({}, "python").error().code, Code::unsupported);
}

}  // namespace
}  // namespace isola::server
