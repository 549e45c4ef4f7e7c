#include "boundary/microvm/state_stream.h"

#include <gtest/gtest.h>

#include <map>

#include "boundary/microvm/sample_stream_test.h"

namespace isola::boundary::microvm {
namespace {

constexpr uint64_t kMemory = SampleStream::kMemory;

using Sample = SampleStream;

struct Read {
  std::map<uint64_t, std::string> pages;
  std::string rest;
  Result<void> outcome;
};

Read read(const std::string& bytes, size_t at_once, uint64_t memory = kMemory) {
  Read read;
  StateStream stream(
      memory,
      [&](uint64_t at, std::string_view page) -> Result<void> {
        read.pages[at] = page;
        return {};
      },
      [&](std::string_view rest) -> Result<void> {
        read.rest += rest;
        return {};
      });
  for (size_t at = 0; at < bytes.size() && read.outcome; at += at_once)
    read.outcome = stream.feed(std::string_view(bytes).substr(at, at_once));
  if (read.outcome) read.outcome = stream.finish();
  return read;
}

Sample whole() {
  Sample sample;
  sample.begin();
  sample.part('\2');
  sample.both(big(0x08, 8) + named("rom") + page('r'));
  sample.both(big(0x1000 | 0x08 | 0x20, 8) + page('s'));
  sample.gone(big(0x3000 | 0x08, 8) + named("ram") + page('a'));
  sample.gone(big(0x4000 | 0x02 | 0x20, 8) + std::string(1, '\0'));
  sample.both(big(0x1000 | 0x08, 8) + named("rom") + page('t'));
  sample.end();
  sample.part('\3');
  sample.gone(big(0x3000 | 0x08, 8) + named("ram") + page('b'));
  sample.end();
  sample.both("\4devices, whatever they are: \2\3\x7e" + std::string(3, '\0'));
  return sample;
}

TEST(StateStream, MemoryGoesOneWayAndTheRestTheOther) {
  const Sample sample = whole();
  for (size_t at_once : {size_t{1}, size_t{7}, size_t{4096}, sample.bytes.size()}) {
    SCOPED_TRACE(at_once);
    auto got = read(sample.bytes, at_once);
    ASSERT_TRUE(got.outcome) << got.outcome.error().message;
    EXPECT_EQ(got.rest, sample.rest);
    ASSERT_EQ(got.pages.size(), 2u);
    EXPECT_EQ(got.pages[0x3000], page('b')) << "the later one counts";
    EXPECT_EQ(got.pages[0x4000], page('\0'));
  }
}

TEST(StateStream, AMachineWhoseMemoryIsSharedHasNoPagesInIt) {
  Sample sample;
  sample.begin();
  sample.part('\3');
  sample.end();
  sample.both("\4devices");
  auto got = read(sample.bytes, 100);
  ASSERT_TRUE(got.outcome) << got.outcome.error().message;
  EXPECT_EQ(got.rest, sample.bytes);
  EXPECT_TRUE(got.pages.empty());
}

TEST(StateStream, WhatDoesNotReadAsExpectedIsRefused) {
  auto refused = [](const std::string& bytes, const char* why, uint64_t memory = kMemory) {
    auto got = read(bytes, 1000, memory);
    ASSERT_FALSE(got.outcome) << why;
    EXPECT_EQ(got.outcome.error().code, Code::corrupt) << why;
  };
  const Sample good = whole();
  refused("", "nothing at all");
  refused("GIF89a and so on, for a while", "another kind of file");
  refused(good.bytes.substr(0, 20000), "cut off");
  refused(good.bytes, "a machine of another size", 2 * kMemory);
  refused(big(0x5145564d, 4) + big(3, 4) + std::string(100'000, 'x'), "no memory");
  Sample outside;
  outside.begin();
  outside.part('\3');
  outside.gone(big(kMemory | 0x08, 8) + named("ram") + page('x'));
  refused(outside.bytes, "a page outside");
  Sample nobody;
  nobody.begin();
  nobody.part('\3');
  nobody.gone(big(0x08 | 0x20, 8) + page('x'));
  refused(nobody.bytes, "a page of no block");
  Sample unknown;
  unknown.begin();
  unknown.part('\3');
  unknown.gone(big(0x40, 8) + named("ram") + page('x'));
  refused(unknown.bytes, "a packed page");
  Sample other;
  other.begin();
  other.both("\2" + big(9, 4));
  refused(other.bytes, "another section between");
  Sample twice;
  twice.begin();
  twice.part('\2');
  twice.both(big(kMemory | 0x04, 8));
  refused(twice.bytes, "sizes twice");
  Sample many;
  many.both("\1" + big(2, 4) + named("ram") + big(0, 4) + big(4, 4) + big((kMemory + (1 << 20)) | 0x04, 8));
  for (int i = 0; i < 100; ++i) many.both(named("x") + big(1, 8) + big(0, 8));
  refused(many.bytes, "blocks without end");
}

}  // namespace
}  // namespace isola::boundary::microvm
