#include <gtest/gtest.h>

#include <set>

#include "base/codec.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/ids.h"
#include "base/units.h"

namespace isola {
namespace {

TEST(Ids, AreWellFormedAndDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    auto id = new_sandbox_id();
    EXPECT_TRUE(is_sandbox_id(id)) << id;
    EXPECT_TRUE(seen.insert(id).second);
  }
  EXPECT_FALSE(is_sandbox_id("i"));
  EXPECT_FALSE(is_sandbox_id("x0123456789abcdefghij"));
  EXPECT_FALSE(is_sandbox_id("i0123456789abcdefghi/"));
  EXPECT_FALSE(is_sandbox_id("i0123456789abcdefghijk"));
}

TEST(Units, Sizes) {
  EXPECT_EQ(*parse_size("64M"), 64u << 20);
  EXPECT_EQ(*parse_size("2G"), 2ull << 30);
  EXPECT_EQ(*parse_size("2GiB"), 2ull << 30);
  EXPECT_EQ(*parse_size("1.5K"), 1536u);
  EXPECT_EQ(*parse_size("17"), 17u);
  for (auto bad : {"", "M", "-1M", "12Q", "1e300G", "nan", "64 M", "0x10"}) EXPECT_FALSE(parse_size(bad)) << bad;
}

TEST(Units, Times) {
  using namespace std::chrono_literals;
  EXPECT_EQ(*parse_duration("5s"), 5s);
  EXPECT_EQ(*parse_duration("10m"), 10min);
  EXPECT_EQ(*parse_duration("250ms"), 250ms);
  EXPECT_EQ(*parse_duration("3"), 3s);
  EXPECT_EQ(*parse_duration("1d"), 24h);
  for (auto bad : {"", "s", "-5s", "5 s", "5y", "1e99h"}) EXPECT_FALSE(parse_duration(bad)) << bad;
}

TEST(Codec, RoundTrip) {
  Writer w;
  w.u8(7);
  w.u64(1ull << 40);
  w.i32(-5);
  w.str("hello");
  w.strs({"a", "", "ccc"});
  Reader r(w.data());
  EXPECT_EQ(r.u8(), 7);
  EXPECT_EQ(r.u64(), 1ull << 40);
  EXPECT_EQ(r.i32(), -5);
  EXPECT_EQ(r.str(), "hello");
  EXPECT_EQ(r.strs(), (std::vector<std::string>{"a", "", "ccc"}));
  EXPECT_TRUE(r.done());
}

TEST(Codec, ShortAndLyingInputIsRefused) {
  Writer w;
  w.str("hello");
  for (size_t n = 0; n < w.data().size(); ++n) {
    Reader r(std::string_view(w.data()).substr(0, n));
    r.str();
    EXPECT_FALSE(r.ok()) << n;
  }
  Writer lie;
  lie.u32(0xffffffff);
  Reader r(lie.data());
  EXPECT_TRUE(r.strs().empty());
  EXPECT_FALSE(r.ok());
  EXPECT_EQ(r.u64(), 0u);  // stays bad
  EXPECT_FALSE(r.done());
}

TEST(Errors, CarryCodeAndErrno) {
  auto missing = read_file("/nowhere/at/all");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::not_found);
  EXPECT_EQ(missing.error().sys_errno, ENOENT);
  EXPECT_EQ(missing.error().in("launch").message, "launch: cannot open /nowhere/at/all: No such file or directory");
}

TEST(Files, ReplaceLeavesNoTemporary) {
  char dir[] = "/tmp/isola-base-XXXXXX";
  ASSERT_TRUE(mkdtemp(dir));
  std::string path = std::string(dir) + "/f";
  ASSERT_TRUE(replace_file(path, "one"));
  ASSERT_TRUE(replace_file(path, "two"));
  EXPECT_EQ(*read_file(path), "two");
  EXPECT_FALSE(read_file(path + ".tmp"));
  EXPECT_FALSE(read_file(path, 2));  // over the limit
  unlink(path.c_str());
  rmdir(dir);
}

TEST(Fds, CloseOnce) {
  Fd a(::dup(0));
  int raw = a.get();
  Fd b = std::move(a);
  EXPECT_FALSE(a.valid());
  EXPECT_EQ(b.get(), raw);
  b.reset();
  EXPECT_EQ(::close(raw), -1);
}

}  // namespace
}  // namespace isola
