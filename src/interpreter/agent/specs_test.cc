#include "interpreter/agent/specs.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace isola::interpreter {
namespace {

class SpecFiles : public testing::Test {
 protected:
  SpecFiles() {
    char name[] = "/tmp/isola-specs-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~SpecFiles() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(folder_ + "/" + name);
    std::ofstream(folder_ + "/" + name + "/kernel.json") << text;
  }
  std::string folder_;
};

TEST_F(SpecFiles, AreFoundByLanguageAliasAndName) {
  write("python3",
        R"({"argv":["p","{connection_file}"],"language":"python","metadata":{"isola":{"cell_env":"metadata"}}})");
  write("ir", R"({"argv":["R"],"language":"R","interrupt_mode":"message"})");
  write("javascript", R"({"argv":["n"],"language":"javascript"})");
  Specs specs = Specs::read({folder_});
  EXPECT_EQ(specs.find("python").value()->name, "python3");
  EXPECT_EQ(specs.find("py").value()->cell_env, "metadata");
  EXPECT_EQ(specs.find("python3").value()->name, "python3");
  EXPECT_EQ(specs.find("R").value()->name, "ir");
  EXPECT_TRUE(specs.find("r").value()->interrupt_by_message);
  EXPECT_EQ(specs.find("js").value()->name, "javascript");
  auto none = specs.find("cobol");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::not_found);
  for (const char* word : {"python", "r", "javascript"})
    EXPECT_NE(none.error().message.find(word), std::string::npos) << none.error().message;
}

TEST_F(SpecFiles, BrokenOnesSayWhy) {
  write("a", "{");
  write("b", R"({"language":"b"})");
  write("c", R"({"argv":"not a list"})");
  Specs specs = Specs::read({folder_});
  ASSERT_EQ(specs.all().size(), 3u);
  for (const auto& spec : specs.all()) EXPECT_NE(spec.broken, "") << spec.name;
}

// Whoever installs kernels could keep this program for ever.
TEST_F(SpecFiles, APipeInThePlaceOfAFileIsNotWaitedFor) {
  std::filesystem::create_directories(folder_ + "/pipe");
  ASSERT_EQ(::mkfifo((folder_ + "/pipe/kernel.json").c_str(), 0600), 0);
  std::filesystem::create_directories(folder_ + "/folder/kernel.json");
  write("fine", R"({"argv":["x"],"language":"fine"})");
  Specs specs = Specs::read({folder_});
  ASSERT_EQ(specs.all().size(), 3u);
  for (const auto& spec : specs.all()) EXPECT_EQ(spec.broken.empty(), spec.name == "fine") << spec.name;
}

TEST_F(SpecFiles, TheFirstFolderWins) {
  write("one/x", R"({"argv":["first"],"language":"x"})");
  write("two/x", R"({"argv":["second"],"language":"x"})");
  Specs specs = Specs::read({folder_ + "/one", folder_ + "/two", folder_ + "/none"});
  ASSERT_EQ(specs.all().size(), 1u);
  EXPECT_EQ(specs.find("x").value()->argv[0], "first");
}

}  // namespace
}  // namespace isola::interpreter
