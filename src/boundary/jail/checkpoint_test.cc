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

}  // namespace
}  // namespace isola::boundary::jail
