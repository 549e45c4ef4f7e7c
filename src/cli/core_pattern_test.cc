#include "cli/core_pattern.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

TEST(CorePattern, TheFirstCharacterDecides) {
  for (const char* file : {"core", "/var/crash/%e.%p", "", "core@host", "a|b", " |/bin/handler"})
    EXPECT_EQ(core_road(file), CoreRoad::file) << file;
  for (const char* program : {"|/usr/lib/systemd/systemd-coredump %P", "|@/run/x"})
    EXPECT_EQ(core_road(program), CoreRoad::program) << program;
  // Two of them: the newer form, in which the program is asked first.
  for (const char* socket : {"@/run/coredump.socket", "@@/run/coredump.socket", "@"})
    EXPECT_EQ(core_road(socket), CoreRoad::socket) << socket;
}

}  // namespace
}  // namespace isola::cli
