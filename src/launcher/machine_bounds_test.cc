#include "launcher/machine_bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

namespace isola::launcher {
namespace {

TEST(MachineBounds, AreTheMachines) {
  MachineBoundsReader reader("/");
  const auto& now = reader.now();
  EXPECT_EQ(now.cpus, std::thread::hardware_concurrency());
  uint64_t most_pids = 0, most_files = 0, kilobytes = 0;
  std::ifstream("/proc/sys/kernel/pid_max") >> most_pids;
  std::ifstream("/proc/sys/fs/nr_open") >> most_files;
  std::string word;
  std::ifstream("/proc/meminfo") >> word >> kilobytes;
  EXPECT_EQ(now.pids, most_pids / 2);
  EXPECT_EQ(now.open_files, most_files);
  EXPECT_EQ(now.memory, kilobytes * 1024);
  EXPECT_EQ(now.disk, std::max<uint64_t>(std::filesystem::space("/").capacity, uint64_t{16} << 30));
}

TEST(MachineBounds, AFolderThatIsNotThereLimitsNothing) { EXPECT_EQ(MachineBoundsReader("").now().disk, UINT64_MAX); }

}  // namespace
}  // namespace isola::launcher
