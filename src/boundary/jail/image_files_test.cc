#include "boundary/jail/image_files.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "boundary/jail/protobuf.h"
#include "boundary/jail/syscall_policy.h"
#include "kernel/seccomp_program.h"

namespace isola::criu {
namespace {

namespace fs = std::filesystem;

std::string framed(const std::string& entry) {
  std::string out = "magicone";
  auto size = static_cast<uint32_t>(entry.size());
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  return out + entry;
}

class ImageFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-criu-files-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
    fs::create_directory(from());
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string from() const { return folder_ + "/from"; }
  std::string to() const { return folder_ + "/to"; }
  void put(const std::string& name, const std::string& bytes) {
    std::ofstream(from() + "/" + name, std::ios::binary) << bytes;
  }

  std::string folder_;
};

TEST_F(ImageFilesTest, OnlyIdsAndNameAreWrittenAnew) {
  put("pages-1.img", "memory");
  put("userns-5.img", framed("old map"));
  put("utsns-6.img", framed("old name"));
  put("dump.log", "noise");
  auto linked = link_image(from(), to(), {.id = "iaaaaaaaaaaaaaaaaaaaa", .id_base = 0x40010000, .id_count = 65536});
  ASSERT_TRUE(linked) << linked.error().message;
  struct stat a{}, b{};
  ASSERT_EQ(::stat((from() + "/pages-1.img").c_str(), &a), 0);
  ASSERT_EQ(::stat((to() + "/pages-1.img").c_str(), &b), 0);
  EXPECT_EQ(a.st_ino, b.st_ino) << "nothing large is copied";
  EXPECT_FALSE(fs::exists(to() + "/dump.log"));
  EXPECT_EQ(read_file(from() + "/userns-5.img").value_or(""), framed("old map")) << "the image itself stays";
  std::string names = read_file(to() + "/utsns-6.img").value_or("");
  EXPECT_TRUE(names.starts_with("magicone"));
  EXPECT_NE(names.find("iaaaaaaaaaaaaaaaaaaaa"), std::string::npos);
  int maps = 0;
  std::string bytes = read_file(to() + "/userns-5.img").value_or("");
  ProtoReader entry(std::string_view(bytes).substr(12));
  while (entry.next()) {
    ProtoReader extent(entry.text());
    uint64_t inside = 1, outside = 0, count = 0;
    while (extent.next()) {
      if (extent.field() == 1) inside = extent.number();
      if (extent.field() == 2) outside = extent.number();
      if (extent.field() == 3) count = extent.number();
    }
    EXPECT_EQ(inside, 0u);
    EXPECT_EQ(outside, 0x40010000u);
    EXPECT_EQ(count, 65536u);
    ++maps;
  }
  EXPECT_EQ(maps, 2);
}

TEST_F(ImageFilesTest, AnotherShapeIsRefused) {
  put("utsns-6.img", framed("old name"));
  EXPECT_EQ(link_image(from(), to(), {"i", 1, 2}).error().code, Code::corrupt);
  fs::remove_all(to());
  put("userns-5.img", framed("one"));
  put("userns-7.img", framed("two"));
  EXPECT_EQ(link_image(from(), to(), {"i", 1, 2}).error().code, Code::corrupt);
  EXPECT_FALSE(link_image(folder_ + "/nowhere", folder_ + "/other", {"i", 1, 2}));
}

// seccomp_entry {repeated {filter = 1, prev = 2}}; the last one is followed by number `next`.
std::string filters(const std::vector<std::string>& codes, int next = -1) {
  ProtoWriter all;
  for (const auto& code : codes) {
    ProtoWriter one;
    one.text(1, code);
    if (next >= 0 && &code == &codes.back()) one.number(2, static_cast<uint64_t>(next));
    all.text(1, one.take());
  }
  return framed(all.take());
}

TEST_F(ImageFilesTest, TheFilterOfAllIsFound) {
  auto program = boundary::jail_syscall_program();
  ASSERT_TRUE(program);
  std::string code(reinterpret_cast<const char*>(program->code().data()), program->code().size() * sizeof(sock_filter));
  std::string other = code;
  other[5] = static_cast<char>(other[5] ^ 1);
  put("seccomp.img", filters({code}));
  EXPECT_EQ(filter_hash(from()).value_or("none"), program->hash());
  put("seccomp.img", filters({code, code}));
  EXPECT_EQ(filter_hash(from()).value_or("none"), program->hash());
  put("seccomp.img", filters({code, other, code}, 1));  // of process 1; then a program's own, and ours below it
  EXPECT_EQ(filter_hash(from()).value_or("none"), program->hash());
  put("seccomp.img", filters({code, other}, 0));  // ours would come after another
  EXPECT_NE(filter_hash(from()).value_or("none"), program->hash());
  put("seccomp.img", filters({other}));
  EXPECT_NE(filter_hash(from()).value_or("none"), program->hash());
  for (const std::string& bad : {filters({code, other}), filters({code}, 0), filters({}), filters({code.substr(1)}),
                                 filters({code}).substr(0, 50), std::string()}) {
    put("seccomp.img", bad);
    EXPECT_FALSE(filter_hash(from()));
  }
  fs::remove(from() + "/seccomp.img");
  EXPECT_EQ(filter_hash(from()).error().code, Code::corrupt);
}

}  // namespace
}  // namespace isola::criu
