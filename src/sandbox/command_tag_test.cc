#include "sandbox/command_tag.h"

#include <gtest/gtest.h>

namespace isola::sandbox {
namespace {

CommandInfo example() {
  CommandInfo info{.id = "cabcdefghijkl"};
  info.task = "t";
  info.actor = std::string("a\0.\xff", 4);
  info.key = "k1";
  info.started = 123456789;
  info.takes_input = false;
  return info;
}

TEST(CommandTag, GivesBackWhatWasPutIn) {
  auto back = read_tag("secret", "i1", make_tag("secret", "i1", example()));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->id, example().id);
  EXPECT_EQ(back->task, "t");
  EXPECT_EQ(back->actor, example().actor);
  EXPECT_EQ(back->key, "k1");
  EXPECT_EQ(back->started, 123456789);
  EXPECT_FALSE(back->takes_input);
  EXPECT_TRUE(back->counted);
  CommandInfo hook = example();
  hook.takes_input = true;
  hook.counted = false;
  back = read_tag("secret", "i1", make_tag("secret", "i1", hook));
  ASSERT_TRUE(back);
  EXPECT_TRUE(back->takes_input);
  EXPECT_FALSE(back->counted);
}

TEST(CommandTag, IsNobodyElsesToMake) {
  std::string tag = make_tag("secret", "i1", example());
  EXPECT_FALSE(read_tag("another", "i1", tag));
  EXPECT_FALSE(read_tag("secret", "i2", tag));  // another sandbox's
  for (size_t i = 0; i < tag.size(); ++i) {
    std::string bent = tag;
    bent[i] = bent[i] == '0' ? '1' : '0';
    EXPECT_FALSE(read_tag("secret", "i1", bent)) << i;
  }
  for (const char* text : {"", ".", "c1", "c1.", "c1..", "cabcdefghijkl.00.00"})
    EXPECT_FALSE(read_tag("secret", "i1", text));
}

}  // namespace
}  // namespace isola::sandbox
