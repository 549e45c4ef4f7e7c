#include "boundary/uml/uml.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace isola::boundary::uml {
namespace {

TEST(UmlKernel, OnlyOneOfOursIsTaken) {
  EXPECT_EQ(parse_kernel_version("6.1.190-isola\n").value(), "6.1.190-isola");
  for (const char* other : {"6.1.176\n", "6.18.44-cloud-amd64\n", "", "usage: linux [options]\n"}) {
    auto refused = parse_kernel_version(other);
    ASSERT_FALSE(refused) << other;
    EXPECT_EQ(refused.error().code, Code::unsupported);
  }
}

TEST(UmlKernel, AnOldOneIsSaid) {
  UmlKernel kernel{.program = {}, .disk = {}, .version = "6.1.190-isola"};
  EXPECT_EQ(kernel.concern(), "");
  kernel.version = "6.1.69-isola";
  EXPECT_NE(kernel.concern().find("CVE"), std::string::npos);
}

TEST(UmlKernel, NoneIsSaid) {
  ::setenv("ISOLA_UML", "none", 1);
  auto none = UmlKernel::find();
  ::unsetenv("ISOLA_UML");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::not_found);
  EXPECT_NE(none.error().message.find("./dev up --boundary uml"), std::string::npos) << none.error().message;
}

TEST(UmlCommandLine, HasWhatTheGuestNeedsAndNothingOfTheHost) {
  LaunchSpec spec{.id = "i0123456789abcdefghij", .blob = "/secret/place.erofs", .layer = "/secret/layer"};
  spec.limits = {.cpus = 1, .memory = 300 << 20, .pids = 100, .open_files = 500};
  auto words = command_line(spec, true);
  auto has = [&](const std::string& word) { return std::ranges::find(words, word) != words.end(); };
  EXPECT_TRUE(has("ISOLA_ID=i0123456789abcdefghij"));
  EXPECT_TRUE(has("ISOLA_FILES=500"));
  EXPECT_TRUE(has("ISOLA_PROCESSES=84")) << "some are the program's own";
  EXPECT_TRUE(has("mem=257M"));
  EXPECT_FALSE(has("ipv6.disable=1"));
  for (const auto& word : words) {
    EXPECT_EQ(word.find("secret"), std::string::npos) << "the guest can read it: " << word;
    EXPECT_EQ(word.find(' '), std::string::npos) << word;
  }
  words = command_line(spec, false);
  EXPECT_TRUE(has("ipv6.disable=1")) << "else connections would wait instead of being refused";
}

TEST(UmlMemory, LeavesRoomForTheProgramItself) {
  for (uint64_t limit : {uint64_t{96} << 20, uint64_t{512} << 20, uint64_t{64} << 30}) {
    EXPECT_LT(guest_memory(limit), limit - (24 << 20));
    EXPECT_GT(guest_memory(limit), limit / 2);
  }
}

}  // namespace
}  // namespace isola::boundary::uml
