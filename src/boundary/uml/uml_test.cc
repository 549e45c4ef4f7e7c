#include "boundary/uml/uml.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/file.h"
#include "boundary/uml/archive.h"
#include "boundary/uml/disk.h"

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

TEST(UmlArchive, IsACpioOfTheNewForm) {
  Archive archive;
  archive.folder("isola");
  archive.file("isola/a", "12345", 0444);
  const std::string bytes = archive.take();
  EXPECT_EQ(bytes.substr(0, 6), "070701");
  EXPECT_EQ(bytes.size() % 4, 0u);
  EXPECT_EQ(bytes.substr(14, 8), "000041ED") << "a folder, 0755";
  EXPECT_EQ(bytes.substr(110, 6), std::string("isola\0", 6));
  const std::string second = bytes.substr(116);
  EXPECT_EQ(second.substr(0, 6), "070701");
  EXPECT_EQ(second.substr(14, 8), "00008124") << "a file, 0444";
  EXPECT_EQ(second.substr(54, 8), "00000005") << "its size";
  EXPECT_EQ(second.substr(120, 8), std::string("12345\0\0\0", 8)) << "behind the name, filled up to four";
  EXPECT_NE(bytes.find("TRAILER!!!"), std::string::npos);
}

class UmlDisk : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(::mkdtemp(folder_)); }
  void TearDown() override { (void)!std::system(("rm -rf " + std::string(folder_)).c_str()); }
  std::string at(const char* name) const { return std::string(folder_) + "/" + name; }
  char folder_[32] = "/tmp/isola-uml-test-XXXXXX";
};

TEST_F(UmlDisk, HasTheSameBytesAndHoles) {
  Fd empty(::open(at("empty").c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(::ftruncate(empty.get(), 16 << 20), 0);
  const std::string text(5000, 'x');
  for (off_t place : {0, 1 << 20, (16 << 20) - 5000})
    ASSERT_EQ(::pwrite(empty.get(), text.data(), text.size(), place), static_cast<ssize_t>(text.size()));
  auto made = make_disk(at("empty"), at("disk"), uint64_t{1} << 30);
  ASSERT_TRUE(made) << made.error().message;
  Fd disk(::open(at("disk").c_str(), O_RDONLY));
  struct stat st{};
  ASSERT_EQ(::fstat(disk.get(), &st), 0);
  EXPECT_EQ(st.st_size, 1 << 30);
  EXPECT_LT(st.st_blocks * 512, 1 << 20) << "what is empty takes no room";
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  for (off_t place : {0, 1 << 20, (16 << 20) - 5000}) {
    std::string read(text.size(), '\0');
    ASSERT_EQ(::pread(disk.get(), read.data(), read.size(), place), static_cast<ssize_t>(read.size()));
    EXPECT_EQ(read, text);
  }
  EXPECT_FALSE(make_disk(at("empty"), at("disk"), uint64_t{1} << 30)) << "one that is there is nobody's to overwrite";
  EXPECT_FALSE(make_disk(at("empty"), at("small"), 1 << 20));
}

TEST(UmlDiskSize, IsBelowTheLimitAndWhole) {
  for (uint64_t limit : {kLeastDisk, uint64_t{32} << 20, uint64_t{2} << 30, uint64_t{100} << 30}) {
    EXPECT_LT(disk_size(limit), limit);
    EXPECT_GT(disk_size(limit), limit / 10 * 9);
    EXPECT_EQ(disk_size(limit) % 4096, 0u);
    EXPECT_GT(disk_size(limit), 16u << 20) << "what the empty disk has";
  }
}

}  // namespace
}  // namespace isola::boundary::uml
