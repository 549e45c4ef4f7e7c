#include "image/image.h"

#include <gtest/gtest.h>

#include <functional>

namespace isola::image {
namespace {

Image example() {
  return {
      .id = "maaaaaaaaaaaaaaaaaaaa",
      .created = 1700000000,
      .sandbox = "ibbbbbbbbbbbbbbbbbbbb",
      .verb = "pause",
      .parent = "mcccccccccccccccccccc",
      .boundary = "jail",
      .version = "0.1.0",
      .digest = std::string(64, 'd'),
      .layers = {"maaaaaaaaaaaaaaaaaaaa", "mcccccccccccccccccccc"},
      .limits = {.milli_cpus = 1500, .memory = 1 << 30, .disk = 2ull << 30, .pids = 100, .open_files = 1024},
      .roots_own = true,
      .protections = "ids 0 1 2\ncapabilities 00\n",
      .memory = true,
      .host = {"criu 4.2.1", "6.18.0", "avx sse", "abc"},
      .files = {{"pages-1.img", kChunk + 1, {1, 0xffffffffffffffff}, std::string(64, 'e')}, {"mm-1.img", 0, {}, ""}},
      .memory_bytes = kChunk + 1,
      .layer_bytes = 4096};
}

TEST(Image, RoundTrip) {
  auto back = parse_image(to_json(example()));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(*back, example());
}

TEST(Image, WhatWasChangedIsNotRead) {
  const std::string text = to_json(example());
  size_t at = text.find("6.18.0");
  ASSERT_NE(at, std::string::npos);
  std::string other = text;
  other[at] = '7';
  auto read = parse_image(other);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::corrupt);
  EXPECT_NE(read.error().message.find("changed"), std::string::npos);
  for (size_t cut = 0; cut < text.size(); cut += 7) EXPECT_FALSE(parse_image(text.substr(0, cut))) << cut;
  for (size_t i = 0; i < text.size(); i += 3) {
    std::string flipped = text;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    auto back = parse_image(flipped);
    EXPECT_TRUE(!back || *back == example()) << "an unnoticed change at " << i;
  }
}

TEST(Image, ANewerFormatIsNamed) {
  std::string text = to_json(example());
  text.replace(text.find("\"format\": 1"), 11, "\"format\": 4");
  auto read = parse_image(text);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::unsupported);
}

TEST(Image, OfOneThatWasOutrunTheFilesAreLeft) {
  Image image = example();
  image.outrun = true;
  const std::string text = to_json(image);
  EXPECT_NE(text.find("\"format\": 3"), std::string::npos) << "an older Isola leaves it alone";
  auto read = parse_image(text);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, image);
  auto usable = check_host(image, image.host, "jail");
  ASSERT_FALSE(usable);
  EXPECT_EQ(usable.error().code, Code::unsupported);
  EXPECT_NE(usable.error().message.find("files_only"), std::string::npos) << usable.error().message;
  image.memory = false;
  EXPECT_TRUE(check_host(image, image.host, "jail"));
}

TEST(Image, TheHostMustBeAbleTo) {
  const Image image = example();
  EXPECT_TRUE(check_host(image, image.host, "jail"));
  EXPECT_TRUE(check_host(image, {image.host.checkpointer, image.host.kernel, "avx avx2 sse", "abc"}, "jail"));
  struct Case {
    ImageHost host;
    const char* says;
  } cases[] = {{{"criu 3.17", "6.18.0", "avx sse", "abc"}, "saved by criu 4.2.1, and this machine has criu 3.17"},
               {{"criu 4.2.1", "5.10", "avx sse", "abc"}, "Linux 6.18.0, and this machine runs 5.10"},
               {{"criu 4.2.1", "6.18.0", "sse", "abc"}, "lacks (avx)"},
               {{"criu 4.2.1", "6.18.0", "avx sse", "def"}, "another build"}};
  for (const auto& one : cases) {
    auto checked = check_host(image, one.host, "jail");
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, Code::unsupported);
    EXPECT_NE(checked.error().message.find(one.says), std::string::npos) << checked.error().message;
  }
  EXPECT_FALSE(check_host(image, image.host, "microvm"));
  // Files alone go anywhere.
  Image files = image;
  files.memory = false;
  EXPECT_TRUE(check_host(files, {}, "jail"));
}

}  // namespace
}  // namespace isola::image
