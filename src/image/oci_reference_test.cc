#include "image/oci_reference.h"

#include <gtest/gtest.h>

namespace isola::image {
namespace {

std::string whole(const std::string& text) {
  auto image = parse_reference(text);
  return image ? to_text(*image) : image.error().message;
}

TEST(ImageReference, AsPeopleWriteThem) {
  const std::string digest(64, 'a');
  EXPECT_EQ(whole("python"), "docker.io/library/python:latest");
  EXPECT_EQ(whole("python:3.12-slim"), "docker.io/library/python:3.12-slim");
  EXPECT_EQ(whole("team/app"), "docker.io/team/app:latest");
  EXPECT_EQ(whole("index.docker.io/library/python:3"), "docker.io/library/python:3");
  EXPECT_EQ(whole("127.0.0.1:5000/a/b:v1"), "127.0.0.1:5000/a/b:v1");
  EXPECT_EQ(whole("localhost/a"), "localhost/a:latest");
  EXPECT_EQ(whole("registry.example/a@sha256:" + digest), "registry.example/a@sha256:" + digest);
  EXPECT_EQ(whole("a:tag@sha256:" + digest), "docker.io/library/a@sha256:" + digest) << "the digest decides";
}

TEST(ImageReference, NothingElse) {
  for (const char* text : {"",
                           "/",
                           "a/",
                           "/a",
                           "A",
                           "a b",
                           "-a",
                           "--help",
                           "a:",
                           "a:-x",
                           "a@sha256:12",
                           "a@md5:x",
                           "docker://a",
                           "../a",
                           "a/../b",
                           "oci:/etc",
                           "a..example/-b",
                           "host:99999999/a",
                           "exa mple.org/a",
                           "a\n",
                           "a:b:c",
                           "[::1]/a",
                           "a//b"})
    EXPECT_EQ(parse_reference(text).error().code, Code::invalid) << text;
  EXPECT_FALSE(parse_reference(std::string(600, 'a')));
}

}  // namespace
}  // namespace isola::image
