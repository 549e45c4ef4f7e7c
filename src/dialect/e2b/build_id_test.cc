#include "dialect/e2b/build_id.h"

#include <gtest/gtest.h>

#include "base/ids.h"

namespace isola::e2b {
namespace {

TEST(BuildId, GoesThereAndBack) {
  for (std::string id : {"b00000000000000000000", "bzzzzzzzzzzzzzzzzzzzz", "b8q8tgdu11r0b3k13f4n9"}) {
    std::string uuid = uuid_of(id);
    EXPECT_EQ(uuid.size(), 36u) << uuid;
    EXPECT_EQ(uuid.find_first_not_of("0123456789abcdef-"), uuid.npos) << uuid;
    EXPECT_EQ(uuid[8], '-');
    EXPECT_EQ(uuid[23], '-');
    EXPECT_EQ(build_id(uuid), id);
  }
  EXPECT_EQ(uuid_of("b00000000000000000010"), "00000000-0000-0000-0000-000000000024");
}

TEST(BuildId, WhatIsNoneStaysAsItIs) {
  for (const char* odd :
       {"", "b", "x8q8tgdu11r0b3k13f4n9", "b8q8tgdu11r0b3k13f4n", "B8q8tgdu11r0b3k13f4n9", "b8q8tgdu11r0b3k13f4-9"})
    EXPECT_EQ(uuid_of(odd), odd);
  // Ids of other systems may be larger than ours ever are.
  for (const char* odd : {"", "b8q8tgdu11r0b3k13f4n9", "ffffffff-ffff-ffff-ffff-ffffffffffff", "0-0",
                          "00000000-0000-0000-0000-0000000000240"})
    EXPECT_EQ(build_id(odd), odd);
}

}  // namespace
}  // namespace isola::e2b
