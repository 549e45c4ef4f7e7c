#include "boundary/jail/checkpoint.h"

#include <gtest/gtest.h>

namespace isola::boundary::jail {
namespace {

// What would be paused without it could never be resumed.
TEST(MemoryHost, NeedsTheLibraryToo) {
  auto host = memory_host({.program = "/bin/true", .preload = ""});
  ASSERT_FALSE(host);
  EXPECT_EQ(host.error().code, Code::unsupported);
  EXPECT_NE(host.error().message.find(Criu::kPreload), std::string::npos) << host.error().message;
  EXPECT_FALSE((Criu{.program = "/bin/true", .preload = ""}.complete()));
}

// On a full disk the lines in the middle are lost, and the last one is there again when others have given room back.
TEST(LogOfCriu, ThatLacksTheReason) {
  const std::string began = "(00.000012) Version: 4.2.1\n",
                    last = "(00.3) Error (criu/cr-dump.c:2111): Dumping FAILED.\n";
  const std::string why = "(00.2) Error (criu/image.c:553): Unable to write\n";
  EXPECT_TRUE(lost_words(""));
  EXPECT_TRUE(lost_words(began + last));
  EXPECT_FALSE(lost_words(began + why + last));
  EXPECT_FALSE(lost_words(began)) << "it was killed";
  EXPECT_EQ(reasons_of(began + why + last), " (Unable to write; Dumping FAILED.)");
}

}  // namespace
}  // namespace isola::boundary::jail
