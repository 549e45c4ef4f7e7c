#include "image/template_index.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"

namespace isola::image {
namespace {

class TemplateIndexTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-index-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string make(const std::string& name, const std::string& text) {
    std::string tree = folder_ + "/tree";
    EXPECT_TRUE(make_dirs(tree));
    EXPECT_TRUE(replace_file(tree + "/file", text));
    auto made = TemplateCache(folder_ + "/cache").import_tree(name, tree, text, {});
    EXPECT_TRUE(made) << made.error().message;
    return made ? made->digest : "";
  }
  std::string folder_;
};

TEST_F(TemplateIndexTest, AnswersAsTheCacheDoes) {
  std::string one = make("one", "1");
  TemplateIndex index(TemplateCache(folder_ + "/cache"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(index.digest("one").value_or(""), one);
  auto none = index.digest("two");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::not_found);
  auto odd = index.digest("../one");
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().code, Code::invalid);
}

TEST_F(TemplateIndexTest, HearsOfANewOne) {
  std::string before = make("one", "1");
  TemplateIndex index(TemplateCache(folder_ + "/cache"));
  EXPECT_EQ(index.digest("one").value_or(""), before);
  std::string after = make("one", "2");
  EXPECT_NE(before, after);
  EXPECT_EQ(index.digest("one").value_or(""), after);
}

TEST_F(TemplateIndexTest, HearsOfOneThatWent) {
  std::string digest = make("one", "1");
  TemplateCache cache(folder_ + "/cache");
  TemplateIndex index(cache);
  EXPECT_TRUE(index.digest("one"));
  ::unlink(cache.blob_path(digest).c_str());
  auto blind = index.digest("one");
  ASSERT_FALSE(blind);
  EXPECT_EQ(blind.error().code, Code::corrupt);
  ASSERT_TRUE(cache.remove("one"));
  auto gone = index.digest("one");
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, Code::not_found);
}

}  // namespace
}  // namespace isola::image
