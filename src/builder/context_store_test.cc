#include "builder/context_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace isola::builder {
namespace {

class Contexts : public ::testing::Test {
 protected:
  Contexts() {
    char name[] = "/tmp/isola-contexts-XXXXXX";
    if (!::mkdtemp(name)) std::abort();
    folder_ = name;
    store_.emplace(folder_ + "/contexts");
  }
  ~Contexts() override { std::filesystem::remove_all(folder_); }
  size_t files() {
    size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) count += entry.is_regular_file();
    return count;
  }
  std::string folder_;
  std::optional<ContextStore> store_;
  const std::string hash_ = claimed(std::string(64, 'a'));
};

TEST_F(Contexts, WhatIsKeptIsThere) {
  EXPECT_FALSE(store_->has("p1", hash_));
  auto draft = store_->begin("p1", hash_);
  ASSERT_TRUE(draft);
  ASSERT_TRUE(draft->write("some "));
  ASSERT_TRUE(draft->write("bytes"));
  EXPECT_FALSE(store_->has("p1", hash_)) << "not before it is whole";
  ASSERT_TRUE(store_->keep(std::move(*draft)));
  EXPECT_TRUE(store_->has("p1", hash_));
  EXPECT_FALSE(store_->has("p2", hash_)) << "each project has its own";
  auto file = store_->open("p1", hash_);
  ASSERT_TRUE(file);
  char bytes[16] = {};
  EXPECT_EQ(::read(file->get(), bytes, sizeof bytes), 10);
  EXPECT_STREQ(bytes, "some bytes");
}

TEST_F(Contexts, AHashIsComparedWithTheBytes) {
  auto keep = [&](const std::string& hash, std::string_view bytes) {
    auto draft = store_->begin("p1", hash);
    return draft && draft->write(bytes) ? store_->keep(std::move(*draft)) : Result<void>(fail(Code::internal, "no"));
  };
  const std::string right = sha256("bytes").value();
  EXPECT_EQ(keep(right, "other bytes").error().code, Code::invalid);
  EXPECT_FALSE(store_->has("p1", right));
  EXPECT_EQ(files(), 0u);
  EXPECT_TRUE(keep(claimed(right), "other bytes"));
  EXPECT_FALSE(store_->has("p1", right)) << "what a client only says does not stand for it";
  EXPECT_TRUE(keep(right, "bytes"));
  EXPECT_TRUE(store_->has("p1", right));
}

TEST_F(Contexts, WhatIsNotKeptGoes) {
  {
    auto draft = store_->begin("p1", hash_);
    ASSERT_TRUE(draft);
    ASSERT_TRUE(draft->write("x"));
    EXPECT_EQ(files(), 1u);
  }
  EXPECT_EQ(files(), 0u);
  EXPECT_EQ(store_->open("p1", hash_).error().code, Code::not_found);
}

TEST_F(Contexts, NamesAreHashes) {
  for (const char* name : {"", "../../etc/passwd", "abc", "."}) {
    EXPECT_EQ(store_->begin("p1", name).error().code, Code::invalid) << name;
    EXPECT_EQ(store_->open("p1", name).error().code, Code::invalid) << name;
    EXPECT_FALSE(store_->has("p1", name)) << name;
  }
}

TEST_F(Contexts, OldOnesAreSweptAway) {
  for (char c : {'a', 'b'}) {
    auto draft = store_->begin("p1", claimed(std::string(64, c)));
    ASSERT_TRUE(draft && store_->keep(std::move(*draft)));
  }
  timespec old[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (folder_ + "/contexts/p1/" + hash_).c_str(), old, 0), 0);
  store_->sweep(std::chrono::hours(1));
  EXPECT_FALSE(store_->has("p1", hash_));
  EXPECT_TRUE(store_->has("p1", claimed(std::string(64, 'b'))));
}

// A sparse file takes no disk here, and counts as what it says.
TEST_F(Contexts, AProjectHasSoMuchRoom) {
  auto first = store_->begin("p1", hash_);
  ASSERT_TRUE(first && store_->keep(std::move(*first)));
  std::filesystem::resize_file(folder_ + "/contexts/p1/" + hash_, ContextStore::kMost - 4);
  auto second = store_->begin("p1", claimed(std::string(64, 'b')));
  ASSERT_TRUE(second);
  EXPECT_TRUE(second->write("1234"));
  EXPECT_EQ(second->write("5").error().code, Code::exhausted);
}

}  // namespace
}  // namespace isola::builder
